"""A tensor as one run of bytes, and back: what the process group does before and after moving it."""

from __future__ import annotations

from typing import Any

import torch

from spark_ring.errors import DataError
from spark_ring.torch.buffers import buffer_of

__all__ = [
    "apart",
    "bring_home",
    "bytes_of",
    "check_alike",
    "expect_bytes",
    "fill",
    "listed",
    "received",
    "stacked",
]


def listed(tensors: Any) -> list[torch.Tensor]:
    """Return one tensor or a sequence of them as a list."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def bytes_of(tensor: torch.Tensor) -> Any:
    """Wrap a contiguous tensor of any dtype as bytes, one row: what moves without being looked at."""
    flat = tensor.reshape(-1)
    if flat.dtype is not torch.uint8:
        flat = flat.view(torch.uint8) if flat.numel() else flat.new_empty(0, dtype=torch.uint8)
    return buffer_of(flat)


def received(native: Any, dtype: torch.dtype, elements: int, verb: str) -> torch.Tensor:
    """Return what came as a flat tensor; it must have as many elements as the output."""
    memory = memoryview(native.take_result())
    size = torch.empty(0, dtype=dtype).element_size()
    if len(memory) != elements * size:
        raise DataError(
            f"{verb}: the output has {elements} elements of {dtype}; the ranks sent {len(memory)} bytes, "
            f"which are {len(memory) / size:g}"
        )
    if elements == 0:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype)


def expect_bytes(native: Any, output: torch.Tensor, verb: str) -> None:
    """Refuse an output that is larger or smaller than what came; then nothing was written to it."""
    came = sum(shape[0] for shape in native.result_shapes())
    if came != output.numel() * output.element_size():
        raise DataError(
            f"{verb}: the output has {output.numel()} elements of {output.dtype}; the ranks sent {came} "
            f"bytes, which are {came / output.element_size():g}"
        )


def apart(source: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """Return the source, or a copy of it if it lies in the output's storage (a gather into the whole)."""
    same = source.untyped_storage().data_ptr() == output.untyped_storage().data_ptr()
    return source.clone() if same else source


def stacked(native: Any, like: torch.Tensor, ranks: int) -> torch.Tensor:
    """Return what came from all ranks, equal tensors ``like`` this rank's, stacked."""
    memory = native.take_result()
    if like.numel() == 0:
        return like.new_empty((ranks, *like.shape))
    return torch.frombuffer(memory, dtype=torch.uint8).view(like.dtype).reshape(ranks, *like.shape)


def check_alike(tensors: list[torch.Tensor], source: torch.Tensor, verb: str) -> None:
    """Refuse tensors that differ from the source in number of elements or dtype."""
    for r, tensor in enumerate(tensors):
        if tensor.numel() != source.numel() or tensor.dtype != source.dtype:
            raise DataError(
                f"{verb}: the output for rank {r} has shape {tuple(tensor.shape)} and dtype {tensor.dtype}; "
                f"the input has {tuple(source.shape)} and {source.dtype}"
            )


def fill(output: torch.Tensor, values: torch.Tensor) -> None:
    """Write values into a user's tensor of as many elements, whatever its shape and strides."""
    output.detach().copy_(values.reshape(output.shape))


def bring_home(done: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copy a result into the user's tensor if it was not reduced there; tell autograd of the change."""
    if done.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(done)
    elif not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)
