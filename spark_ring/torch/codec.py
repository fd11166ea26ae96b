"""Plain Python values and tensors as bytes, without pickle.

State of optimizers and schedulers is made of ``None``, numbers, text, lists, tuples, dicts and tensors. Here
such a value becomes JSON (with a tag where JSON would lose the type) beside a list of tensors; both come back
with every type kept. Anything else is refused by the path at which it was found.

As bytes: 8 bytes length of the JSON, the JSON, then each tensor's raw bytes in order.
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from spark_ring.errors import DataError
from spark_ring.torch.buffers import dtype_name, dtype_named

__all__ = ["decode", "encode", "pack", "raw_bytes", "unpack"]

_LENGTH_BYTES = 8
_DICTS = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}


def encode(value: Any, path: str = "state") -> tuple[Any, list[torch.Tensor]]:
    """Split a value into a JSON structure and its tensors.

    Raises:
        DataError: something in it is of a kind that cannot travel; the message has its path.
    """
    tensors: list[torch.Tensor] = []
    return _encode(value, path, tensors), tensors


def decode(structure: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """Put together what :func:`encode` took apart."""
    if not isinstance(structure, dict):
        return structure
    ((tag, content),) = structure.items()
    if tag == "list":
        return [decode(item, tensors) for item in content]
    if tag == "tuple":
        return tuple(decode(item, tensors) for item in content)
    if tag in _DICTS:
        return _DICTS[tag]({decode(k, tensors): decode(v, tensors) for k, v in content})
    if tag == "tensor":
        return tensors[content]
    if tag == "numpy":
        return np.dtype(content[0]).type(content[1])
    if tag == "dtype":
        return dtype_named(content)
    if tag == "device":
        return torch.device(content)
    raise DataError(f"unknown tag {tag!r} in encoded state; a newer version of spark_ring wrote it")


def pack(value: Any, path: str = "state") -> bytes:
    """Return a value as bytes.

    Raises:
        DataError: as :func:`encode`.
    """
    structure, tensors = encode(value, path)
    described = [[dtype_name(tensor.dtype), list(tensor.shape)] for tensor in tensors]
    header = json.dumps({"value": structure, "tensors": described}).encode()
    parts = [len(header).to_bytes(_LENGTH_BYTES, "little"), header]
    return b"".join([*parts, *(raw_bytes(tensor) for tensor in tensors)])


def unpack(data: bytes) -> Any:
    """Read what :func:`pack` wrote. The tensors own their memory."""
    start = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    header = json.loads(data[_LENGTH_BYTES:start])
    tensors = []
    for name, shape in header["tensors"]:
        tensor = torch.empty(shape, dtype=dtype_named(name))
        end = start + tensor.numel() * tensor.element_size()
        _as_bytes(tensor)[:] = np.frombuffer(data, np.uint8, count=end - start, offset=start)
        tensors.append(tensor)
        start = end
    return decode(header["value"], tensors)


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """Return a tensor's values as bytes; without a copy when it is contiguous and on the CPU."""
    return _as_bytes(tensor.detach().cpu().contiguous()).data


def _as_bytes(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    flat = tensor.reshape(-1)
    if not flat.numel():
        return np.empty(0, np.uint8)
    return flat.view(torch.uint8).numpy()  # type: ignore[no-any-return]


def _encode(value: Any, path: str, tensors: list[torch.Tensor]) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_quantized:
            raise DataError(f"{path} is a {value.layout} tensor; only dense tensors can be stored")
        tensors.append(value)
        return {"tensor": len(tensors) - 1}
    if type(value) in (list, tuple):
        items = [_encode(item, f"{path}[{i}]", tensors) for i, item in enumerate(value)]
        return {type(value).__name__: items}
    if isinstance(value, dict):
        return {_dict_tag(value, path): [_encode_item(k, v, path, tensors) for k, v in value.items()]}
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return {"numpy": [value.dtype.name, value.item()]}
    if isinstance(value, torch.dtype):
        return {"dtype": dtype_name(value)}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    raise DataError(
        f"{path} is a {type(value).__module__}.{type(value).__qualname__}; only None, numbers, text, lists, "
        "tuples, dicts and tensors can be stored (nothing is pickled)"
    )


def _dict_tag(value: dict[Any, Any], path: str) -> str:
    if type(value) is defaultdict:  # its factory is code; state dicts do not need it
        return "dict"
    name = type(value).__name__
    if _DICTS.get(name) is not type(value):
        raise DataError(f"{path} is a {type(value).__qualname__}; use a plain dict")
    return name


def _encode_item(key: Any, value: Any, path: str, tensors: list[torch.Tensor]) -> list[Any]:
    return [_encode(key, f"key {key!r} of {path}", tensors), _encode(value, f"{path}[{key!r}]", tensors)]
