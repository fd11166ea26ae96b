"""torch tensors as the ring sees them: their own memory, no copy.

The ring takes contiguous CPU tensors. What is not contiguous is copied by the caller (and copied back where
the result belongs in the tensor); what is not on the CPU or not dense is refused by name.
"""

from __future__ import annotations

import torch

from spark_ring._core import Buffer
from spark_ring.errors import DataError

__all__ = ["buffer_of", "check_dense", "check_movable", "check_reducible", "dtype_name", "dtype_named"]

_REDUCED = {
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.int32: "int32",
    torch.int64: "int64",
}
_MOVED = {**_REDUCED, torch.bool: "bool", torch.int16: "int16"}


def buffer_of(tensor: torch.Tensor) -> Buffer:
    """Wrap a checked, contiguous tensor. It stays alive as long as the ring works on it."""
    return Buffer.from_pointer(tensor.data_ptr(), list(tensor.shape), _MOVED[tensor.dtype], tensor)


def check_reducible(tensor: torch.Tensor, operation: str, op: str, *, whole_average: bool = False) -> None:
    """Refuse a tensor that the ring cannot do arithmetic on.

    Args:
        tensor: what would be reduced.
        operation: for the message.
        op: the reduction's text.
        whole_average: allow the average of integers, rounded toward zero.

    Raises:
        DataError: wrong kind of object, device, layout or dtype, or the average of integers.
    """
    _check(tensor, operation, _REDUCED)
    if op == "average" and not whole_average and not tensor.dtype.is_floating_point:
        raise DataError(
            f"{operation}: the average of {tensor.dtype} would have to round; use op=Sum and divide, "
            "or convert to a floating dtype first"
        )


def check_movable(tensor: torch.Tensor, operation: str) -> None:
    """Refuse a tensor that the ring cannot copy.

    Raises:
        DataError: wrong kind of object, device, layout or dtype.
    """
    _check(tensor, operation, _MOVED)


def check_dense(tensor: torch.Tensor, operation: str) -> None:
    """Refuse what is not a dense tensor on the CPU; its dtype does not matter.

    Raises:
        DataError: wrong kind of object, device or layout.
    """
    _check(tensor, operation, None)


def dtype_name(dtype: torch.dtype) -> str:
    """Return ``"float32"`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def dtype_named(name: str) -> torch.dtype:
    """Return the dtype of a name, in torch's or NumPy's spelling.

    Raises:
        DataError: torch has no such dtype.
    """
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise DataError(f"torch has no dtype named {name!r}")
    return dtype


def _check(tensor: torch.Tensor, operation: str, known: dict[torch.dtype, str] | None) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise DataError(f"{operation}: expected a torch.Tensor, found {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise DataError(
            f"{operation}: the tensor is {tensor.layout}; the ring takes dense tensors (to_dense())"
        )
    if tensor.device.type != "cpu":
        raise DataError(f"{operation}: the tensor is on {tensor.device}; the ring takes CPU tensors (cpu())")
    if known is not None and tensor.dtype not in known:
        raise DataError(
            f"{operation}: dtype {tensor.dtype} is not supported; it takes {', '.join(known.values())}"
        )
