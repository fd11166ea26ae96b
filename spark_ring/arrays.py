"""NumPy arrays as the ring sees them: contiguous, in native byte order, of a dtype it can reduce.

Inputs are copied when they are not so. Outputs never are: a result that landed in a copy would be lost, so
an output that cannot be written in place is refused by name.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from spark_ring._core import Buffer
from spark_ring.errors import DataError

__all__ = [
    "Array",
    "as_input",
    "as_output",
    "buffer_of",
    "check_rows",
    "dtype_named",
    "output_for",
    "rows_output",
]

Array = np.ndarray[Any, Any]

# Which reductions each dtype has is the native ring's to say (csrc/base/dtype.h), for every framework alike.
FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
SUPPORTED = (*FLOATS, *INTEGERS, "bool")

# NumPy makes up a dtype's name anew each time, which takes longer than a small allreduce; numbers are fast.
_NUMBERS = frozenset(np.dtype(name).num for name in SUPPORTED if name != "bfloat16")


def as_input(array: Any, operation: str) -> Array:
    """Return ``array`` itself when the ring can read it, else a contiguous copy. 0-d stays 0-d.

    Args:
        array: an array or anything that ``numpy.asarray`` takes.
        operation: for the message, for example ``"allreduce 'grad'"``.

    Raises:
        DataError: the dtype is not supported.
    """
    source = np.asarray(array)
    dtype = source.dtype
    if dtype.num not in _NUMBERS and dtype.name not in SUPPORTED:
        raise DataError(
            f"{operation}: dtype {source.dtype} of shape {source.shape} is not supported; "
            f"the supported dtypes are {', '.join(SUPPORTED)}"
        )
    if not source.flags.c_contiguous or not dtype.isnative:
        source = np.array(source, dtype=dtype.newbyteorder("="), order="C")
    return source


def as_output(out: Any, shape: tuple[int, ...], dtype: np.dtype[Any], operation: str) -> Array:
    """Return ``out`` when a result of this shape and dtype can be written into it where it is.

    Raises:
        DataError: it cannot; the message says why and what to do.
    """
    if not isinstance(out, np.ndarray):
        raise DataError(f"{operation}: the output must be a numpy.ndarray, not {type(out).__name__}")
    if out.shape != shape or out.dtype != dtype:
        raise DataError(
            f"{operation}: the output must have shape {shape} and dtype {dtype}; "
            f"it has shape {out.shape} and dtype {out.dtype}"
        )
    if not out.flags.writeable:
        raise DataError(
            f"{operation}: the output is read-only; pass a writable array, for example array.copy()"
        )
    if not out.flags.c_contiguous:
        raise DataError(
            f"{operation}: the output of shape {out.shape} is not C-contiguous (strides {out.strides}); "
            "pass numpy.ascontiguousarray(array) or leave out= away"
        )
    return out


def output_for(source: Array, out: Any, operation: str) -> tuple[Array, Array]:
    """Return ``(input, output)`` of an operation whose output looks like its input.

    ``out`` may be the input itself. When the two overlap in any other way, the input is copied first.
    """
    if out is None:
        return source, np.empty_like(source, order="C", subok=False)
    target = as_output(out, source.shape, source.dtype, operation)
    if target is not source and _overlap(source, target):
        source = source.copy()
    return source, target


def rows_output(out: Any, source: Array, operation: str) -> tuple[Array, Array]:
    """Return ``(input, output)`` of an operation that gathers rows like the input's, not known how many.

    When the two overlap, the input is copied first.

    Raises:
        DataError: the output cannot be written in place, or its rows do not look like the input's.
    """
    rows = out.shape[:1] if isinstance(out, np.ndarray) else ()
    target = as_output(out, (*(rows or (0,)), *source.shape[1:]), source.dtype, operation)
    return (source.copy() if np.may_share_memory(source, target) else source), target


def check_rows(target: Array, rows: int, operation: str) -> Array:
    """Return an output that was as long as what came.

    Raises:
        DataError: it was not; what came is lost.
    """
    if target.shape[0] != rows:
        raise DataError(
            f"{operation}: the output has {target.shape[0]} rows and {rows} came; pass an output of shape "
            f"{(rows, *target.shape[1:])}, or none"
        )
    return target


def buffer_of(array: Array, *, writable: bool) -> Buffer:
    """Wrap a checked array for the native ring, without a copy."""
    if array.dtype.num not in _NUMBERS and array.dtype.name == "bfloat16":
        # It is of ml_dtypes, and the buffer protocol has no letter for it.
        return Buffer.from_pointer(array.ctypes.data, list(array.shape), "bfloat16", array)
    return Buffer.from_array(array, writable)


def dtype_named(name: str, operation: str) -> np.dtype[Any]:
    """Return the NumPy dtype of what came with a native dtype's name.

    Raises:
        DataError: ``"bfloat16"`` without the package ml_dtypes, which brings it to NumPy.
    """
    if name == "bfloat16":
        try:
            import_module("ml_dtypes")
        except ImportError:
            raise DataError(
                f"{operation}: a bfloat16 array came, which NumPy knows only with the package ml_dtypes "
                "installed"
            ) from None
    return np.dtype(name)


def _overlap(a: Array, b: Array) -> bool:
    return a.ctypes.data != b.ctypes.data and bool(np.may_share_memory(a, b))
