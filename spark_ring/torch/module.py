"""Modules: their weights as safetensors, and how rows go in and come out.

Used in training, by the check on the driver, and in scoring, so that all three treat a batch alike:

* Inputs go to ``forward`` by the contract: positional in order, or by keyword.
* Floating inputs take the model's own floating dtype. Integers stay integers.
* What ``forward`` returns may be one tensor, or a tuple, list or dict of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors

from spark_ring.data.schema import Contract
from spark_ring.errors import DataError

__all__ = [
    "align_label",
    "build_module",
    "float_dtype",
    "forward",
    "load_weights",
    "outputs_of",
    "tensor_of",
    "weights_bytes",
]

_SHARED = "spark_ring.shared"
_LENGTH_BYTES = 8


def build_module(model: Any) -> torch.nn.Module:
    """Return the module of a payload: the module itself, or what a callable makes.

    Raises:
        DataError: there is no ``nn.Module`` to be had.
    """
    if isinstance(model, torch.nn.Module):
        return model
    made = model() if callable(model) else model
    if not isinstance(made, torch.nn.Module):
        what = "the callable given as model returned" if callable(model) else "model is"
        raise DataError(f"{what} a {type(made).__name__}; it must be a torch.nn.Module")
    return made


def weights_bytes(module: torch.nn.Module) -> bytes:
    """Return parameters and buffers as safetensors.

    Tensors that share memory (tied weights) are stored once; the file's metadata says which names share.
    Equal weights give equal bytes.

    Raises:
        DataError: the state holds something that is not a tensor.
    """
    kept: dict[str, torch.Tensor] = {}
    first: dict[tuple[Any, ...], str] = {}
    shared: dict[str, str] = {}
    for name, tensor in module.state_dict().items():
        if not isinstance(tensor, torch.Tensor):
            raise DataError(
                f"{name!r} in the model's state is a {type(tensor).__name__}; weights files hold tensors "
                "only. Keep such values out of get_extra_state(), or make them buffers"
            )
        same = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() and same in first:
            shared[name] = first[same]
        else:
            first[same] = name
            kept[name] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    # One entry at most: the order of several would differ from call to call, and so would the bytes.
    metadata = {_SHARED: json.dumps(shared)} if shared else None
    return save_safetensors(kept, metadata=metadata)  # type: ignore[no-any-return]


def load_weights(module: torch.nn.Module, data: bytes) -> None:
    """Put what :func:`weights_bytes` returned into a module of the same architecture.

    Raises:
        DataError: names or shapes do not fit; all that differ are named.
    """
    tensors = load_safetensors(data)
    for name, source in json.loads(_metadata(data).get(_SHARED, "{}")).items():
        tensors[name] = tensors[source]
    try:
        module.load_state_dict(tensors, strict=True)
    except RuntimeError as error:
        raise DataError(f"the weights do not fit the model {type(module).__name__}: {error}") from error


def float_dtype(module: torch.nn.Module) -> torch.dtype:
    """Return the dtype of the module's first floating parameter or buffer; float32 if it has none."""
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.dtype.is_floating_point:
            return tensor.dtype
    return torch.float32


def tensor_of(array: np.ndarray[Any, Any], dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return a batch's array as a tensor, without a copy where that is possible.

    Args:
        array: from a reader; a read-only one is copied, because a model may write into its input.
        dtype: floating arrays are converted to it; others keep their dtype.
    """
    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    return tensor.to(dtype) if dtype is not None and tensor.dtype.is_floating_point else tensor


def forward(
    module: torch.nn.Module, contract: Contract, inputs: Mapping[str, np.ndarray[Any, Any] | torch.Tensor]
) -> Any:
    """Call a module with the inputs of a batch, by the contract.

    Args:
        module: the model, in the mode and on the device it should run.
        contract: ``inputs`` says the order, and which go by keyword.
        inputs: tensor name → array or tensor ``(rows, *shape)``.

    Returns:
        What ``module`` returns.
    """
    dtype = float_dtype(module)
    args: list[torch.Tensor] = []
    kwargs: dict[str, torch.Tensor] = {}
    for spec in contract.inputs:
        value = inputs[spec.name]
        tensor = value if isinstance(value, torch.Tensor) else tensor_of(value, dtype)
        if spec.key is None:
            args.append(tensor)
        else:
            kwargs[spec.key] = tensor
    return module(*args, **kwargs)


def outputs_of(value: Any) -> tuple[torch.Tensor, ...]:
    """Return a model's outputs as a tuple: of one tensor, or of a tuple's, list's or dict's tensors in order.

    Raises:
        DataError: something in it is not a tensor.
    """
    parts: tuple[Any, ...]
    if isinstance(value, Mapping):
        parts = tuple(value.values())
    elif isinstance(value, (tuple, list)):
        parts = tuple(value)
    else:
        parts = (value,)
    for part in parts:
        if not isinstance(part, torch.Tensor):
            raise DataError(
                f"the model returned a {type(value).__name__} that holds a {type(part).__name__}; "
                "it must return a tensor, or a tuple, list or dict of tensors"
            )
    return parts


def align_label(output: Any, label: torch.Tensor) -> torch.Tensor:
    """Give a label the output's shape when they differ only by a last dimension of size 1.

    ``(B,)`` beside an output ``(B, 1)`` would silently broadcast to ``(B, B)`` in most losses. Labels of
    classes, ``(B,)`` beside ``(B, C)``, stay as they are; ``(B, 1)`` beside ``(B, C)`` becomes ``(B,)``.
    """
    if not isinstance(output, torch.Tensor) or output.shape == label.shape:
        return label
    if _squeezed(output.shape) == _squeezed(label.shape):
        return label.reshape(output.shape)
    if not label.dtype.is_floating_point and label.dim() == output.dim() > 1 and label.shape[-1] == 1:
        return label.squeeze(-1)
    return label


def _squeezed(shape: torch.Size) -> tuple[int, ...]:
    """Drop last dimensions of size 1, but never the rows."""
    sizes = list(shape)
    while len(sizes) > 1 and sizes[-1] == 1:
        sizes.pop()
    return tuple(sizes)


def _metadata(data: bytes) -> dict[str, str]:
    """Read the metadata of a safetensors file: its header is JSON after 8 bytes of length."""
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    found: dict[str, str] = json.loads(data[_LENGTH_BYTES : _LENGTH_BYTES + length]).get("__metadata__", {})
    return found
