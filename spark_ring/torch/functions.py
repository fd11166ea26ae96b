"""Making one rank's state everybody's.

What travels is a JSON description, agreed on first, and then tensors. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from spark_ring import world
from spark_ring.communicator import Handle
from spark_ring.errors import DataError, MismatchError
from spark_ring.torch import codec
from spark_ring.torch.buffers import dtype_name, dtype_named
from spark_ring.torch.ops import broadcast_async_, synchronize

__all__ = [
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "load_optimizer_state",
]

NamedTensors = Mapping[str, Any] | Iterable[tuple[str, Any]]


def broadcast_parameters(params: NamedTensors, root_rank: int = 0) -> None:
    """Overwrite tensors on every rank with the root's, in place.

    Args:
        params: ``model.state_dict()`` or ``model.named_parameters()``; the same names, shapes and dtypes on
            every rank. ``None`` values are passed over.
        root_rank: the rank whose values count.

    Raises:
        DataError: a value is not a tensor.
        MismatchError: ranks have different names, shapes or dtypes; raised on every rank.
    """
    pairs = params.items() if isinstance(params, Mapping) else params
    tensors = {name: value for name, value in pairs if value is not None}
    for name, value in tensors.items():
        if not isinstance(value, torch.Tensor):
            raise DataError(
                f"broadcast_parameters: {name!r} is a {type(value).__name__}, not a tensor; "
                "send it with broadcast_object"
            )
    _check_alike(tensors)
    _broadcast_all([(f"broadcast_parameters {name}", tensor) for name, tensor in tensors.items()], root_rank)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0) -> None:
    """Make the root's optimizer state and options everybody's, whatever the other ranks have.

    Works before the first step, after it, and when only the root has loaded a checkpoint: structure first,
    then tensors. Options and scalars keep their Python types.

    Args:
        optimizer: any torch optimizer, of the same class over the same parameters on every rank.
        root_rank: the rank whose state counts.

    Raises:
        DataError: on the root: the state holds something that is neither plain data nor a tensor. The other
            ranks raise it too, with the root's message.
        MismatchError: a rank's parameter groups do not fit the root's.
    """
    is_root = world.rank() == root_rank
    tensors: list[torch.Tensor] = []
    message: dict[str, Any] = {}
    if is_root:
        message, tensors = _described(optimizer)
    message = world.broadcast_object(message, root=root_rank)
    if "error" in message:
        raise DataError(message["error"])
    if not is_root:
        tensors = [torch.empty(shape, dtype=dtype_named(name)) for name, shape in message["tensors"]]
    _broadcast_all([(f"broadcast_optimizer_state {i}", t) for i, t in enumerate(tensors)], root_rank)
    if not is_root:
        load_optimizer_state(optimizer, codec.decode(json.loads(message["structure"]), tensors))


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """Return the root's object on every rank: JSON values and bytes, never pickle.

    Args:
        obj: ``None``, bool, number, text, list, dict with text keys, or bytes.
        root_rank: the rank whose object counts.
        name: matches the operation across ranks.
    """
    return world.broadcast_object(obj, root=root_rank, name=name)


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Return the objects of all ranks, in rank order. Objects as in :func:`broadcast_object`."""
    return world.allgather_object(obj, name=name)


def _described(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """Describe an optimizer's state; an error is part of the message, so that no rank is left waiting."""
    try:
        structure, tensors = codec.encode(optimizer.state_dict(), f"state of {type(optimizer).__name__}")
    except DataError as error:
        return {"error": str(error)}, []
    tensors = [tensor.detach().cpu().contiguous() for tensor in tensors]
    described = [[dtype_name(tensor.dtype), list(tensor.shape)] for tensor in tensors]
    return {"structure": json.dumps(structure), "tensors": described}, tensors


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Put a state dict into an optimizer as it is; ``load_state_dict`` would cast tensors and drop types.

    Raises:
        MismatchError: the parameter groups do not fit.
    """
    mine = [len(group["params"]) for group in optimizer.param_groups]
    theirs = [len(group["params"]) for group in state["param_groups"]]
    if mine != theirs:
        raise MismatchError(
            f"optimizer state: {type(optimizer).__name__} has parameter groups of {mine} parameters, the "
            f"state was made with groups of {theirs}; build the same optimizer on every rank"
        )
    if set(state) != {"state", "param_groups"}:  # an optimizer with a format of its own
        optimizer.load_state_dict(state)
        return
    # Keys of the state are numbers in the order in which parameters first appear in the groups.
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    params = [param for group in optimizer.param_groups for param in group["params"]]
    by_number = dict(zip(numbers, params, strict=True))
    optimizer.state.clear()
    for key, value in state["state"].items():
        optimizer.state[by_number.get(key, key)] = _beside(value, by_number.get(key))
    for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
        params_of_group = group["params"]
        group.clear()
        group.update({**saved, "params": params_of_group})


def _beside(value: Any, param: torch.Tensor | None) -> Any:
    """Move the tensors of one parameter's state to its device; scalars such as ``step`` stay on the CPU."""
    if isinstance(value, torch.Tensor):
        return value if param is None or value.dim() == 0 else value.to(param.device)
    if isinstance(value, dict):
        return {name: _beside(item, param) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_beside(item, param) for item in value)
    return value


def _check_alike(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise on every rank when ranks do not have the same tensors. Digests first: they are small."""
    described = [[name, dtype_name(t.dtype), list(t.shape)] for name, t in tensors.items()]
    digest = hashlib.sha256(json.dumps(described).encode()).hexdigest()
    if len(set(world.allgather_object(digest))) == 1:
        return
    of_all = world.allgather_object(described)
    for rank, theirs in enumerate(of_all):
        if theirs != of_all[0]:
            mine_only = [entry for entry in theirs if entry not in of_all[0]]
            first_only = [entry for entry in of_all[0] if entry not in theirs]
            raise MismatchError(
                f"broadcast_parameters: rank {rank} has {_shown(mine_only)} where rank 0 has "
                f"{_shown(first_only)}; build the same model on every rank, its tensors in the same order",
                rank=rank,
                operation="broadcast_parameters",
            )


def _shown(entries: list[Any]) -> str:
    text = ", ".join(f"{name} ({dtype}, {tuple(shape)})" for name, dtype, shape in entries[:3])
    return f"{text or 'nothing else'}{' and more' if len(entries) > 3 else ''}"


def _broadcast_all(named: list[tuple[str, torch.Tensor]], root_rank: int) -> None:
    handles: list[Handle] = []
    for name, tensor in named:
        movable = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
        handles.append(broadcast_async_(movable, root_rank, name=name))
    for handle in handles:
        synchronize(handle)
