"""Arrow arrays to NumPy tensors, without a Python loop and without a silent change of type.

A tensor of shape ``(3, 4)`` may arrive as nested lists of that shape or as one flat list of 12 numbers, in
any mixture of ``list``, ``large_list`` and ``fixed_size_list``. Each level of lists is peeled off by Arrow's
``flatten`` (which honours the offset of a sliced array) after its lengths were compared with the shape. What
is left is one flat array of numbers that is reshaped, usually without a copy.

Casts: numbers of one kind change width when every value fits (an integer that does not is an error; a float64
becomes the nearest float32), bool becomes 0 and 1. Integers never become floats here, and floats never become
integers: whoever wants that asks for it in Spark, where the contract is decided.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from spark_ring.data.schema import TensorSpec
from spark_ring.errors import ColumnError

__all__ = ["check_type", "source_names", "to_tensor"]


def source_names(spec: TensorSpec) -> str:
    """Name the user's columns behind a tensor, for a message: ``column 'a'`` or ``columns 'a', 'b'``."""
    names = ", ".join(repr(column.name) for column in spec.columns) or repr(spec.name)
    return f"{'columns' if len(spec.columns) > 1 else 'column'} {names}"


def to_tensor(values: pa.Array | pa.ChunkedArray, spec: TensorSpec) -> np.ndarray:
    """Return the rows of one tensor.

    Args:
        values: one Arrow array, or several chunks of one type; sliced arrays are fine.
        spec: says dtype and shape, and which columns to name in an error.

    Returns:
        C-contiguous array ``(rows, *spec.shape)`` of ``spec.dtype``. It may share memory with ``values`` and
        may then be read-only.

    Raises:
        ColumnError: nulls, lists of another length than the shape asks for, or a type that would need a
            cast between kinds. The message names the source columns and counts the rows.
    """
    check_type(values.type, spec)
    if isinstance(values, pa.ChunkedArray):
        parts = [_chunk(chunk, spec) for chunk in values.chunks if len(chunk)]
        if not parts:
            return np.empty((0, *spec.shape), spec.dtype)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
    return _chunk(values, spec)


def check_type(arrow_type: pa.DataType, spec: TensorSpec) -> None:
    """Check that a column of this type can become the tensor, by type alone.

    Raises:
        ColumnError: the number of list levels, a fixed list size or the kind of number does not fit.
    """
    levels, inner = 0, arrow_type
    while _is_list(inner):
        levels, inner = levels + 1, inner.value_type
    if pt.is_dictionary(inner):
        inner = inner.value_type
    if pt.is_null(inner):
        raise _error(spec, "has no non-null value; remove the column or fill it")
    if levels not in _allowed_levels(spec.shape):
        raise _error(
            spec,
            f"has type {arrow_type} ({levels} levels of lists), not a row of shape {spec.shape}",
        )
    found, wanted = _kind(inner), np.dtype(spec.dtype).kind
    if found == "b" or found == wanted or {found, wanted} == {"i", "u"}:
        return
    raise _error(
        spec, f"has type {arrow_type}, which is never turned into {spec.dtype} here; cast it in Spark"
    )


def _chunk(array: pa.Array, spec: TensorSpec) -> np.ndarray:
    rows = len(array)
    _check_no_nulls(array, rows, spec)
    if pt.is_dictionary(array.type):
        array = array.dictionary_decode()
    if _is_list(array.type):
        array = _flatten(array, spec)
        _check_elements(array, rows, spec)
    return _numbers(array, spec).reshape(rows, *spec.shape)


def _flatten(array: pa.Array, spec: TensorSpec) -> pa.Array:
    """Peel every level of lists, checking lengths; one flat list may stand for a whole row."""
    nested = _is_list(array.type.value_type)
    widths = spec.shape if nested else (_product(spec.shape),)
    for width in widths:
        _check_lengths(array, width, spec)
        array = array.flatten()
        if array.null_count and _is_list(array.type):
            raise _error(spec, f"holds {array.null_count} null inner array(s); {_FILL}")
    return array.dictionary_decode() if pt.is_dictionary(array.type) else array


def _check_lengths(array: pa.Array, width: int, spec: TensorSpec) -> None:
    if pt.is_fixed_size_list(array.type):
        if array.type.list_size == width or not len(array):
            return
        lengths = np.full(len(array), array.type.list_size)
    else:
        lengths = np.diff(array.offsets.to_numpy())
        if (lengths == width).all():
            return
    found, counts = np.unique(lengths, return_counts=True)
    listed = ", ".join(
        f"{length} ({count} times)" for length, count in list(zip(found, counts, strict=True))[:5]
    )
    more = f" and {len(found) - 5} other lengths" if len(found) > 5 else ""
    raise _error(
        spec,
        f"holds arrays of length {listed}{more}; each must have length {width} (shape {spec.shape})",
    )


def _check_no_nulls(array: pa.Array, rows: int, spec: TensorSpec) -> None:
    if array.null_count == rows and rows:
        raise _error(spec, f"has no non-null value among {rows} rows; {_FILL}")
    if array.null_count:
        raise _error(spec, f"is null in {array.null_count} of {rows} rows; {_FILL}")


def _check_elements(flat: pa.Array, rows: int, spec: TensorSpec) -> None:
    if not flat.null_count:
        return
    where = np.flatnonzero(pc.is_null(flat).to_numpy(zero_copy_only=False))
    touched = len(np.unique(where // max(1, len(flat) // rows)))
    raise _error(spec, f"holds {len(where)} null element(s) in {touched} of {rows} rows; {_FILL}")


def _numbers(flat: pa.Array, spec: TensorSpec) -> np.ndarray:
    wanted = np.dtype(spec.dtype)
    values: np.ndarray = flat.to_numpy(zero_copy_only=not pt.is_boolean(flat.type))
    if values.dtype == wanted:
        return values
    if wanted.kind in "iu" and values.size and values.dtype.kind in "iu":
        limits, low, high = np.iinfo(wanted), int(values.min()), int(values.max())
        if low < limits.min or high > limits.max:
            raise _error(spec, f"holds integers from {low} to {high}, which do not all fit {wanted}")
    with np.errstate(over="ignore"):
        result = values.astype(wanted)
    if wanted.kind == "f" and wanted.itemsize < values.dtype.itemsize:
        lost = int((np.isinf(result) & np.isfinite(values)).sum())
        if lost:
            raise _error(spec, f"holds {lost} finite number(s) too large for {wanted}")
    return result


def _allowed_levels(shape: tuple[int, ...]) -> set[int]:
    # A tensor of one number per row may come as a plain number although its shape is (1,) or (1, 1).
    return {len(shape)} | ({1} if shape else set()) | ({0} if _product(shape) == 1 else set())


def _kind(inner: pa.DataType) -> str:
    if pt.is_boolean(inner):
        return "b"
    if pt.is_signed_integer(inner):
        return "i"
    if pt.is_unsigned_integer(inner):
        return "u"
    return "f" if pt.is_floating(inner) else "?"


def _is_list(arrow_type: pa.DataType) -> bool:
    return bool(pt.is_list(arrow_type) or pt.is_large_list(arrow_type) or pt.is_fixed_size_list(arrow_type))


def _product(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))


_FILL = "fill or drop them before fit or transform"


def _error(spec: TensorSpec, what: str) -> ColumnError:
    column = spec.columns[0].name if spec.columns else spec.name
    return ColumnError(f"{source_names(spec)} (tensor {spec.name!r}) {what}", column=column)
