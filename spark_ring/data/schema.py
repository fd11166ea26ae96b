"""The column contract: which columns become which tensors, with what dtype and shape.

It is decided on the driver before any job, used alike by fit and transform, and stored with the model.
One *tensor* is one argument of the model (or one label, or the row weight). A tensor is made of one source
column, or of several that are concatenated in order. In a materialized dataset each tensor is one Parquet
column, so that whatever a user's column is called, the reader sees plain names.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Contract", "SourceColumn", "TensorSpec"]


@dataclass(frozen=True)
class SourceColumn:
    """A column of the user's DataFrame.

    Attributes:
        name: as the user wrote it (dots, spaces and backticks allowed).
        spark_type: Spark's ``simpleString`` of its type, for example ``"decimal(18,2)"`` or ``"vector"``.
        width: how many numbers it adds to its tensor; ``1`` for a scalar.
    """

    name: str
    spark_type: str
    width: int = 1


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a batch.

    Attributes:
        name: column in the dataset: inputs ``x0``, ``x1``, …; labels ``y0``, …; the weight ``w``.
        columns: the source columns, concatenated in this order.
        dtype: NumPy name: ``float32``, ``float64``, ``int64``, ``int32``, …
        shape: shape of one row: ``()`` a scalar, ``(10,)`` a vector, ``(3, 4)`` a matrix.
        key: keyword argument of the model; ``None`` for a positional argument.
    """

    name: str
    columns: tuple[SourceColumn, ...]
    dtype: str
    shape: tuple[int, ...] = ()
    key: str | None = None


@dataclass(frozen=True)
class Contract:
    """All tensors of a fit. ``labels`` is empty in the contract of a transform."""

    inputs: tuple[TensorSpec, ...]
    labels: tuple[TensorSpec, ...] = ()
    weight: TensorSpec | None = None

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """Every tensor: inputs, labels, weight."""
        return (*self.inputs, *self.labels, *((self.weight,) if self.weight else ()))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)

    def to_json(self) -> str:
        """Return JSON text; the same contract gives the same text."""
        return json.dumps(self.to_dict(), sort_keys=True)

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Contract:
        """Read what :meth:`to_dict` wrote."""
        weight = value.get("weight")
        return cls(
            inputs=tuple(map(_tensor, value["inputs"])),
            labels=tuple(map(_tensor, value.get("labels", ()))),
            weight=_tensor(weight) if weight else None,
        )


def _tensor(value: dict[str, Any]) -> TensorSpec:
    return TensorSpec(
        name=value["name"],
        columns=tuple(SourceColumn(**column) for column in value["columns"]),
        dtype=value["dtype"],
        shape=tuple(value["shape"]),
        key=value.get("key"),
    )
