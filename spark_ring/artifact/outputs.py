"""From a model's outputs to the columns that transform adds.

Decided on the driver (:func:`plan_outputs`), computed in the workers (:meth:`OutputPlan.arrays`). A plan has
one or more fields. A single field is the UDF's result itself; several are a struct, which the driver takes
apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from spark_ring.artifact.fitted import FittedModel, OutputSpec
from spark_ring.errors import ConfigError

__all__ = ["Field", "OutputPlan", "plan_for", "plan_outputs", "to_arrow"]


@dataclass(frozen=True)
class Field:
    """One column that transform adds.

    Attributes:
        column: its name.
        what: ``"output"``, ``"raw"``, ``"probability"`` or ``"class"``.
        output: index of the model's output it is made of.
        shape: of one row's value; ``()`` a double, ``(n,)`` a vector, beyond that nested arrays.
        single: whether it travels as float32 (a double column is always float64).
    """

    column: str
    what: str
    output: int
    shape: tuple[int, ...]
    single: bool = False

    @property
    def spark_type(self) -> str:
        """The type that the UDF returns for it."""
        number = "float" if self.single and self.shape else "double"
        return "array<" * len(self.shape) + number + ">" * len(self.shape)


@dataclass(frozen=True)
class OutputPlan:
    """All columns that transform adds.

    Attributes:
        fields: at least one.
        logits: for a classifier, whether outputs are logits (else probabilities).
    """

    fields: tuple[Field, ...]
    logits: bool = True

    @property
    def spark_type(self) -> str:
        """The UDF's return type."""
        if len(self.fields) == 1:
            return self.fields[0].spark_type
        return "struct<" + ", ".join(f"f{i}: {field.spark_type}" for i, field in enumerate(self.fields)) + ">"

    def arrays(self, outputs: Sequence[np.ndarray]) -> pa.Array:
        """Return the UDF's result for some rows."""
        columns = [
            to_arrow(self._values(field, outputs[field.output]), field.single) for field in self.fields
        ]
        return self._packed(columns)

    def nothing(self) -> pa.Array:
        """Return the result for no rows."""
        columns = [to_arrow(np.empty((0, *field.shape)), field.single) for field in self.fields]
        return self._packed(columns)

    def _packed(self, columns: list[pa.Array]) -> pa.Array:
        if len(columns) == 1:
            return columns[0]
        return pa.StructArray.from_arrays(columns, [f"f{i}" for i in range(len(columns))])

    def _values(self, field: Field, output: np.ndarray) -> np.ndarray:
        if field.what == "output":
            return output
        scores = output.astype(np.float64)
        if field.what == "class":
            return self._classes(scores)
        if field.what == "raw":
            return scores if scores.ndim > 1 else _two(-scores if self.logits else 1.0 - scores, scores)
        return self._probabilities(scores)

    def _classes(self, scores: np.ndarray) -> np.ndarray:
        """Return the best class, or NaN where a score is NaN: no class is better than it."""
        if scores.ndim == 1:
            best, unknown = scores > (0.0 if self.logits else 0.5), np.isnan(scores)
        else:
            best, unknown = np.argmax(scores, axis=1), np.isnan(scores).any(axis=1)
        return np.where(unknown, np.nan, best)

    def _probabilities(self, scores: np.ndarray) -> np.ndarray:
        if not self.logits:
            return scores if scores.ndim > 1 else _two(1.0 - scores, scores)
        if scores.ndim == 1:
            scores = _two(np.zeros_like(scores), scores)
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def plan_for(model: FittedModel, params: Mapping[str, Any]) -> OutputPlan:
    """Decide which columns transform adds for a model under Params (name → value)."""
    labels = model.contract.labels
    return plan_outputs(
        model.outputs,
        kind=params["outputKind"],
        integer_label=len(labels) == 1 and labels[0].dtype.startswith("int") and labels[0].shape == (),
        prediction=params["predictionCol"],
        probability=params["probabilityCol"],
        raw=params["rawPredictionCol"],
        labels=[spec.columns[0].name for spec in labels],
    )


def plan_outputs(
    outputs: Sequence[OutputSpec],
    *,
    kind: str,
    integer_label: bool,
    prediction: str,
    probability: str,
    raw: str,
    labels: Sequence[str] = (),
) -> OutputPlan:
    """Decide which columns transform adds.

    Args:
        outputs: of the model.
        kind: Param ``outputKind``.
        integer_label: whether the model was trained on one integer label per row.
        prediction: Param ``predictionCol``; with several outputs each column is called
            ``<prediction>_<label>``.
        probability: Param ``probabilityCol``.
        raw: Param ``rawPredictionCol``.
        labels: names of the label columns.

    Raises:
        ConfigError: the outputs cannot mean what ``kind`` says.
    """
    if kind == "auto":
        scores = len(outputs) == 1 and len(outputs[0].shape) == 1
        kind = "logits" if scores and integer_label else "value"
    if kind == "value":
        names = _names(prediction, len(outputs), labels)
        return OutputPlan(
            tuple(
                Field(name, "output", i, output.shape, np.dtype(output.dtype) == np.float32)
                for i, (name, output) in enumerate(zip(names, outputs, strict=True))
            )
        )
    if len(outputs) != 1 or len(outputs[0].shape) > 1:
        found = ", ".join(str(output.shape) for output in outputs)
        raise ConfigError(
            f"outputKind={kind!r} needs a model with one output of one number per class; its outputs "
            f"have shapes {found} per row. Use outputKind='value'"
        )
    classes = outputs[0].shape or (2,)
    fields = [Field(prediction, "class", 0, ())]
    if probability:
        fields.insert(0, Field(probability, "probability", 0, classes))
    if raw:
        fields.insert(0, Field(raw, "raw", 0, classes))
    return OutputPlan(tuple(fields), logits=kind == "logits")


def to_arrow(values: np.ndarray, single: bool = False) -> pa.Array:
    """Return rows as Arrow: float64 numbers, or (nested) lists of float64, or of float32 with ``single``."""
    shape = values.shape[1:]
    wanted = np.float32 if single and shape else np.float64
    array = pa.array(np.ascontiguousarray(values, wanted).reshape(-1))
    lists = int(np.prod(values.shape))
    for width in reversed(shape):
        lists = lists // width if width else 0
        offsets = np.arange(0, (lists + 1) * width, width, dtype=np.int32)
        array = pa.ListArray.from_arrays(pa.array(offsets), array)
    return array


def _names(prediction: str, count: int, labels: Sequence[str]) -> list[str]:
    if count == 1:
        return [prediction]
    suffixes = labels if len(labels) == count else [str(i) for i in range(count)]
    return [f"{prediction}_{suffix}" for suffix in suffixes]


def _two(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.stack([first, second], axis=1)
