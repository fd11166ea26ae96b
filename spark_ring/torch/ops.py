"""Collectives on torch tensors, under Horovod's names, over the process's default communicator.

Each verb has up to four forms: ``verb`` returns a new tensor (and passes gradients through, where that means
something), ``verb_`` works in place, ``verb_async`` and ``verb_async_`` return a handle for :func:`poll` and
:func:`synchronize`. Ranks match operations by ``name`` when one is given, else by the order of the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from spark_ring import _core, world
from spark_ring.communicator import Handle
from spark_ring.errors import DataError
from spark_ring.ops import ReduceOp
from spark_ring.torch.buffers import buffer_of, check_movable, check_reducible

__all__ = [
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "synchronize",
]


def allreduce(
    tensor: torch.Tensor,
    *,
    op: ReduceOp | str = ReduceOp.Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduce the tensors of all ranks; every rank gets the result as a new tensor.

    Differentiable for sum and average: the gradient of an input is that of all ranks' losses together.

    Args:
        tensor: same shape and dtype on every rank. float16 and bfloat16 accumulate in float32.
        op: Average, Sum, Min, Max or Product. The average of integers is refused: it would have to round.
        name: matches the operation across ranks.
        prescale_factor: factor on the input before the reduction (floating dtypes).
        postscale_factor: factor on the result (floating dtypes).

    Raises:
        DataError: a tensor that cannot be used.
        CommunicatorError: see the error tree.
    """
    if _needs_gradient(tensor):
        result: torch.Tensor = _AllReduce.apply(tensor, op, name, prescale_factor, postscale_factor)  # type: ignore[no-untyped-call]
        return result
    return synchronize(  # type: ignore[no-any-return]
        allreduce_async(
            tensor, op=op, name=name, prescale_factor=prescale_factor, postscale_factor=postscale_factor
        )
    )


def allreduce_async(
    tensor: torch.Tensor,
    *,
    op: ReduceOp | str = ReduceOp.Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Start :func:`allreduce`; :func:`synchronize` gives the new tensor. No gradient passes through."""
    return _reduce(
        [tensor], [None], op, name, prescale_factor, postscale_factor, finish=lambda outputs: outputs[0]
    )


def allreduce_(
    tensor: torch.Tensor,
    *,
    op: ReduceOp | str = ReduceOp.Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduce in place: ``tensor`` gets the result on every rank. Returns ``tensor``."""
    return synchronize(  # type: ignore[no-any-return]
        allreduce_async_(
            tensor, op=op, name=name, prescale_factor=prescale_factor, postscale_factor=postscale_factor
        )
    )


def allreduce_async_(
    tensor: torch.Tensor,
    *,
    op: ReduceOp | str = ReduceOp.Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Start :func:`allreduce_`. Leave the tensor alone until :func:`synchronize`."""
    return _reduce(
        [tensor], [tensor], op, name, prescale_factor, postscale_factor, finish=lambda outputs: outputs[0]
    )


def grouped_allreduce(
    tensors: Sequence[torch.Tensor], *, op: ReduceOp | str = ReduceOp.Average, name: str | None = None
) -> list[torch.Tensor]:
    """Reduce several tensors of one dtype as one operation, into new ones. No gradient passes through."""
    return synchronize(grouped_allreduce_async(tensors, op=op, name=name))  # type: ignore[no-any-return]


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor], *, op: ReduceOp | str = ReduceOp.Average, name: str | None = None
) -> Handle:
    """Start :func:`grouped_allreduce`."""
    return _reduce(tensors, [None] * len(tensors), op, name, 1.0, 1.0, finish=list)


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor], *, op: ReduceOp | str = ReduceOp.Average, name: str | None = None
) -> list[torch.Tensor]:
    """Reduce several tensors of one dtype as one operation, in place."""
    return synchronize(grouped_allreduce_async_(tensors, op=op, name=name))  # type: ignore[no-any-return]


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor], *, op: ReduceOp | str = ReduceOp.Average, name: str | None = None
) -> Handle:
    """Start :func:`grouped_allreduce_`."""
    return _reduce(tensors, tensors, op, name, 1.0, 1.0, finish=list)


def broadcast(tensor: torch.Tensor, root_rank: int, *, name: str | None = None) -> torch.Tensor:
    """Return the root's values on every rank as a new tensor. Differentiable: the root gets all gradients.

    Args:
        tensor: same shape and dtype on every rank.
        root_rank: the rank whose values count.
        name: matches the operation across ranks.
    """
    if _needs_gradient(tensor):
        result: torch.Tensor = _Broadcast.apply(tensor, root_rank, name)  # type: ignore[no-untyped-call]
        return result
    return synchronize(broadcast_async(tensor, root_rank, name=name))  # type: ignore[no-any-return]


def broadcast_async(tensor: torch.Tensor, root_rank: int, *, name: str | None = None) -> Handle:
    """Start :func:`broadcast`; :func:`synchronize` gives the new tensor. No gradient passes through."""
    operation = _called("broadcast", name)
    check_movable(tensor, operation)
    return _broadcast(tensor.detach().clone(memory_format=torch.contiguous_format), root_rank, name)


def broadcast_(tensor: torch.Tensor, root_rank: int, *, name: str | None = None) -> torch.Tensor:
    """Overwrite ``tensor`` on every rank with the root's values. Returns ``tensor``."""
    return synchronize(broadcast_async_(tensor, root_rank, name=name))  # type: ignore[no-any-return]


def broadcast_async_(tensor: torch.Tensor, root_rank: int, *, name: str | None = None) -> Handle:
    """Start :func:`broadcast_`. Leave the tensor alone until :func:`synchronize`."""
    check_movable(tensor, _called("broadcast", name))
    return _broadcast(tensor, root_rank, name)


def allgather(tensor: torch.Tensor, *, name: str | None = None) -> torch.Tensor:
    """Concatenate the tensors of all ranks along dimension 0; every rank gets the result.

    Differentiable: an input's gradient is the sum over ranks of the gradients of its part of the result.

    Args:
        tensor: dimension 0 may differ between ranks, also be 0; the rest may not. 0-d counts as one row.
        name: matches the operation across ranks.
    """
    if _needs_gradient(tensor):
        result: torch.Tensor = _AllGather.apply(tensor, name)  # type: ignore[no-untyped-call]
        return result
    return synchronize(allgather_async(tensor, name=name))  # type: ignore[no-any-return]


def allgather_async(tensor: torch.Tensor, *, name: str | None = None) -> Handle:
    """Start :func:`allgather`. No gradient passes through."""
    return _allgather(tensor, name, lambda result, rows: result)


def reducescatter(
    tensor: torch.Tensor, *, op: ReduceOp | str = ReduceOp.Average, name: str | None = None
) -> torch.Tensor:
    """Reduce the tensors of all ranks and keep this rank's rows of the result.

    Dimension 0 is split: the first ``shape[0] % size`` ranks get one row more. Differentiable for sum and
    average.

    Args:
        tensor: at least 1-d, same shape and dtype on every rank.
        op: as in :func:`allreduce`.
        name: matches the operation across ranks.
    """
    if _needs_gradient(tensor):
        result: torch.Tensor = _ReduceScatter.apply(tensor, op, name)  # type: ignore[no-untyped-call]
        return result
    return synchronize(reducescatter_async(tensor, op=op, name=name))  # type: ignore[no-any-return]


def reducescatter_async(
    tensor: torch.Tensor, *, op: ReduceOp | str = ReduceOp.Average, name: str | None = None
) -> Handle:
    """Start :func:`reducescatter`. No gradient passes through."""
    operation, text = _called("reducescatter", name), ReduceOp.of(op)
    check_reducible(tensor, operation, text)
    if tensor.dim() == 0:
        raise DataError(f"{operation}: a 0-d tensor has no rows to scatter; use allreduce, or reshape(1)")
    communicator = world.current()
    source = tensor.detach().contiguous()
    rows, extra = divmod(source.shape[0], communicator.size)
    output = source.new_empty((rows + (communicator.rank < extra), *source.shape[1:]))
    native = communicator.core.reducescatter(buffer_of(source), buffer_of(output), text, name or "")
    return Handle(native, lambda _: output)


def barrier(*, name: str | None = None) -> None:
    """Wait until every rank has come here."""
    world.barrier(name=name)


def poll(handle: Handle) -> bool:
    """Return True once the operation has finished, well or badly; :func:`synchronize` then does not wait."""
    return handle.poll()


def synchronize(handle: Handle) -> Any:
    """Wait for an operation and return its tensor (or list of tensors).

    Raises:
        CommunicatorError: what the operation failed with, naming the rank to blame.
    """
    return handle.wait()


def _reduce(
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor | None],
    op: ReduceOp | str,
    name: str | None,
    prescale: float,
    postscale: float,
    finish: Callable[[list[torch.Tensor]], Any],
) -> Handle:
    """Submit one allreduce of all inputs. An output is ``None`` for a new tensor, else the input itself."""
    operation, text = _called("allreduce", name), ReduceOp.of(op)
    for tensor in inputs:
        check_reducible(tensor, operation, text)
    sources = [tensor.detach().contiguous() for tensor in inputs]
    targets = [
        torch.empty_like(source) if output is None else source
        for source, output in zip(sources, outputs, strict=True)
    ]
    native = world.current().core.allreduce(
        [buffer_of(source) for source in sources],
        [buffer_of(target) for target in targets],
        text,
        name or "",
        prescale,
        postscale,
    )

    def done(_: _core.Handle) -> Any:
        return finish([_settle(target, output) for target, output in zip(targets, outputs, strict=True)])

    return Handle(native, done)


def _broadcast(tensor: torch.Tensor, root_rank: int, name: str | None) -> Handle:
    communicator = world.current()
    if not 0 <= root_rank < communicator.size:
        raise DataError(
            f"{_called('broadcast', name)}: root_rank is {root_rank}; it must be a rank from 0 to "
            f"{communicator.size - 1}"
        )
    target = tensor.detach().contiguous()
    native = communicator.core.broadcast(buffer_of(target), root_rank, name or "")
    return Handle(native, lambda _: _settle(target, tensor))


def _allgather(
    tensor: torch.Tensor, name: str | None, finish: Callable[[torch.Tensor, list[int]], Any]
) -> Handle:
    check_movable(tensor, _called("allgather", name))
    source = tensor.detach().contiguous()
    source = source.reshape(1) if source.dim() == 0 else source
    native = world.current().core.allgather(buffer_of(source), name or "")

    def done(handle: _core.Handle) -> Any:
        rows = [shape[0] for shape in handle.result_shapes()]
        shape = (sum(rows), *source.shape[1:])
        memory = handle.take_result()
        if memory is None or len(memoryview(memory)) == 0:
            return finish(source.new_empty(shape), rows)
        return finish(torch.frombuffer(memory, dtype=source.dtype).reshape(shape), rows)

    return Handle(native, done)


def _settle(target: torch.Tensor, output: torch.Tensor | None) -> torch.Tensor:
    """Bring a result home: into the user's tensor if that was not contiguous; tell autograd of the change."""
    if output is None:
        return target
    if target.data_ptr() != output.data_ptr():
        with torch.no_grad():
            output.copy_(target)
    else:
        torch.autograd.graph.increment_version(output)
    return output


def _needs_gradient(tensor: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and isinstance(tensor, torch.Tensor) and tensor.requires_grad


def _linear(op: ReduceOp | str, operation: str) -> str:
    text = ReduceOp.of(op)
    if text not in ("sum", "average"):
        raise DataError(
            f"{operation}: {text} has no gradient here; detach() the tensor, or use Sum or Average"
        )
    return text


def _called(verb: str, name: str | None) -> str:
    return f"{verb} {name!r}" if name else verb


def _backward_name(name: str | None) -> str | None:
    return f"{name}.gradient" if name else None


# Gradients. The loss that is differentiated is the sum of all ranks' losses: what one rank's result does to
# another rank's loss counts. Every rank must run backward, as every rank ran forward.


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        op: ReduceOp | str,
        name: str | None,
        prescale: float,
        postscale: float,
    ) -> torch.Tensor:
        _linear(op, _called("allreduce", name))
        ctx.options = {"op": op, "name": _backward_name(name)}
        ctx.options |= {"prescale_factor": prescale, "postscale_factor": postscale}
        return synchronize(  # type: ignore[no-any-return]
            allreduce_async(tensor, op=op, name=name, prescale_factor=prescale, postscale_factor=postscale)
        )

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        return synchronize(allreduce_async(gradient, **ctx.options)), None, None, None, None


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None) -> torch.Tensor:
        ctx.root_rank, ctx.name = root_rank, _backward_name(name)
        return synchronize(broadcast_async(tensor, root_rank, name=name))  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        total = synchronize(allreduce_async(gradient, op=ReduceOp.Sum, name=ctx.name))
        return total if world.rank() == ctx.root_rank else torch.zeros_like(total), None, None


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None) -> torch.Tensor:
        ctx.shape, ctx.name = tensor.shape, _backward_name(name)
        result, ctx.rows = synchronize(_allgather(tensor, name, lambda result, rows: (result, rows)))
        return result  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        total = synchronize(allreduce_async(gradient, op=ReduceOp.Sum, name=ctx.name))
        mine = total.split(ctx.rows)[world.rank()]
        return mine.reshape(ctx.shape), None


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, op: ReduceOp | str, name: str | None) -> torch.Tensor:
        average = _linear(op, _called("reducescatter", name)) == "average"
        ctx.factor, ctx.name = (1.0 / world.size() if average else 1.0), _backward_name(name)
        return synchronize(reducescatter_async(tensor, op=op, name=name))  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        whole = synchronize(allgather_async(gradient, name=ctx.name))
        return whole * ctx.factor, None, None
