"""Score what MLflow hands to a pyfunc model: a pandas DataFrame, a dict of arrays, or one array."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from spark_ring.artifact import FittedModel
from spark_ring.artifact.outputs import OutputPlan
from spark_ring.data.schema import SourceColumn, TensorSpec
from spark_ring.errors import ColumnError, DataError
from spark_ring.tracking.signature import source_columns, value_shape

__all__ = ["FrameModel"]


class FrameModel:
    """A fitted model with MLflow's ``predict(model_input, params)``.

    Args:
        model: the model.
        plan: what to make of its outputs.
        keep_invalid: whether a row with a null gets NaN; else it is an error.
    """

    def __init__(self, model: FittedModel, plan: OutputPlan, *, keep_invalid: bool) -> None:
        self._model = model
        self._plan = plan
        self._keep_invalid = keep_invalid

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> Any:
        """Score some rows.

        Args:
            model_input: a DataFrame or dict with the source columns (others are ignored), or, for a model
                with one source column, that column as an array ``(rows, …)``.
            params: not used.

        Returns:
            An array ``(rows,)`` or ``(rows, n)`` for a model with one output column, else a DataFrame of the
            columns that ``transform`` adds.

        Raises:
            ColumnError: a column is missing, or holds nulls or values of another length than the model takes.
        """
        columns = self._columns(model_input)
        rows = len(next(iter(columns.values())))
        valid = self._valid(columns, rows)
        if not valid.any():
            return self._unpacked(self._plan.nothing(), valid)
        inputs = {
            spec.name: _tensor({column.name: columns[column.name][valid] for column in spec.columns}, spec)
            for spec in self._model.contract.inputs
        }
        return self._unpacked(self._plan.arrays(self._model.outputs_for(inputs)), valid)

    def _columns(self, model_input: Any) -> dict[str, np.ndarray]:
        wanted = source_columns(self._model.contract)
        if isinstance(model_input, np.ndarray):
            if len(wanted) > 1:
                raise DataError(
                    f"one array was given and the model takes {len(wanted)} columns: "
                    f"{', '.join(wanted)}; give a pandas DataFrame or a dict of arrays"
                )
            return {next(iter(wanted)): model_input}
        found = {}
        for name in wanted:
            if name not in model_input:
                raise ColumnError(
                    f"the input has no column {name!r}; it has {', '.join(map(str, model_input))}",
                    column=name,
                )
            value = model_input[name]
            found[name] = value if isinstance(value, np.ndarray) else np.asarray(value)
        return found

    def _valid(self, columns: Mapping[str, np.ndarray], rows: int) -> np.ndarray:
        """Find rows without a null. NaN is a number, but pandas writes a missing number so: both give NaN."""
        valid = np.ones(rows, bool)
        for name, values in columns.items():
            missing = np.array([_is_missing(value) for value in values]) if values.dtype == object else None
            if missing is None or not missing.any():
                continue
            if not self._keep_invalid:
                raise ColumnError(
                    f"column {name!r} is null, or holds a null, in {int(missing.sum())} of {rows} "
                    "rows. Fill or drop nulls first, or log the model with setHandleInvalid('keep')",
                    column=name,
                )
            valid &= ~missing
        return valid

    def _unpacked(self, result: Any, valid: np.ndarray) -> Any:
        import pandas as pd

        fields = self._plan.fields
        arrays = [result] if len(fields) == 1 else [result.field(i) for i in range(len(fields))]
        columns = {}
        for field, array in zip(fields, arrays, strict=True):
            flat = array
            for _ in field.shape:
                flat = flat.flatten()
            values = np.full((len(valid), *field.shape), np.nan)
            values[valid] = flat.to_numpy(zero_copy_only=False).reshape(-1, *field.shape)
            columns[field.column] = values
        if len(fields) == 1:
            return columns[fields[0].column]
        return pd.DataFrame(
            {name: list(values) if values.ndim > 1 else values for name, values in columns.items()}
        )


def _tensor(columns: Mapping[str, np.ndarray], spec: TensorSpec) -> np.ndarray:
    """Return one tensor: each column flat, row-major, side by side, then in the tensor's shape."""
    parts = [_flat(columns[column.name], column, spec) for column in spec.columns]
    whole = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
    return np.ascontiguousarray(whole.reshape(-1, *spec.shape), spec.dtype)


def _flat(values: np.ndarray, column: SourceColumn, spec: TensorSpec) -> np.ndarray:
    """Return one column as ``(rows, width)`` numbers."""
    width = int(np.prod(value_shape(column, spec)))
    if values.dtype == object:
        rows = [np.asarray(_numbers(value)).reshape(-1) for value in values]
        lengths = sorted({len(row) for row in rows})
        if lengths != [width]:
            raise _wrong_length(column, width, lengths)
        values = np.stack(rows)
    flat = values.reshape(len(values), -1)
    if flat.shape[1] != width:
        raise _wrong_length(column, width, [flat.shape[1]])
    wanted = np.dtype(spec.dtype)
    if flat.dtype.kind not in ("biu" if wanted.kind in "iu" else "biuf"):
        raise ColumnError(
            f"column {column.name!r} holds {flat.dtype}; the model was fitted on {column.spark_type}",
            column=column.name,
        )
    return flat


def _numbers(value: Any) -> Any:
    if hasattr(value, "toArray"):  # a Spark vector
        return value.toArray()
    array = np.asarray(value)
    if array.dtype != object:
        return array
    # Decimals, or nested arrays as Spark gives them.
    return np.array([_numbers(one) for one in value]) if array.ndim else np.float64(value)


def _is_missing(value: Any) -> bool:
    if value is None:
        return True
    if isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.dtype == object):
        return any(map(_is_missing, value))
    return False


def _wrong_length(column: SourceColumn, width: int, lengths: list[int]) -> ColumnError:
    return ColumnError(
        f"column {column.name!r} holds values of length {', '.join(map(str, lengths))}; the model "
        f"takes {width} numbers per row",
        column=column.name,
    )
