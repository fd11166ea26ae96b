"""``torch.distributed`` over the ring: a process group whose collectives are those of a communicator.

It is a Python subclass of ``torch.distributed.ProcessGroup``, so no header of torch is compiled against and
one build serves every torch. Python callers (``torch.distributed.all_gather`` and its like) reach its methods
directly; C++ callers (DistributedDataParallel, functional collectives, DTensor) reach the few that torch
forwards: allreduce, broadcast, allgather, reduce_scatter, the coalesced forms, all_to_all_single, barrier,
send, recv.

Every method checks its tensors, submits one operation to the native ring and returns a
:class:`~spark_ring.torch.work.RingWork`. What cannot be done where it lies (tensors that are not contiguous,
lists of outputs) goes through one flat tensor and is copied home when the operation ends. Moving does not
look at values, so it moves any dtype, as bytes. torch defines the order: every rank calls the same
collectives of a group in the same order, which is how the ring matches operations without names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from spark_ring.communicator import Communicator
from spark_ring.errors import DataError
from spark_ring.torch.buffers import buffer_of, check_reducible
from spark_ring.torch.flat import bring_home, fill, listed
from spark_ring.torch.moves import Moves, Tensors
from spark_ring.torch.work import RingWork

__all__ = ["RingProcessGroup"]

_REDUCTIONS = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "average",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.PRODUCT: "product",
}
_BITWISE: dict[Any, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    dist.ReduceOp.BAND: torch.bitwise_and,
    dist.ReduceOp.BOR: torch.bitwise_or,
    dist.ReduceOp.BXOR: torch.bitwise_xor,
}
_MOST_THREADS = 64  # completions that may wait for one another at a time


# torch's stubs describe the methods as C++ overloads, which no Python signature can match.
_Base: Any = dist.ProcessGroup


class RingProcessGroup(Moves, _Base):  # type: ignore[misc]
    """The collectives of ``torch.distributed`` over one communicator.

    Args:
        communicator: the ranks of this group, connected; closed by :meth:`shutdown`.
        store: what torch met through; torch hands it to those who ask the group for it.
    """

    def __init__(self, communicator: Communicator, store: Any = None) -> None:
        _Base.__init__(self, communicator.rank, communicator.size)
        self._communicator = communicator
        self._core = communicator.core
        self._threads = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="spark_ring.futures")
        self._store = store
        self._name = ""
        self._description = ""

    # What torch asks a group about itself.

    def getBackendName(self) -> str:
        """Return ``"spark_ring"``."""
        return "spark_ring"

    def getRank(self) -> int:
        """Return this process's rank in the group."""
        return self._communicator.rank

    def getSize(self) -> int:
        """Return the number of ranks in the group."""
        return self._communicator.size

    def getGroupName(self) -> str:
        """Return the name by which torch's registry finds the group."""
        return self._name

    def setGroupName(self, name: str) -> None:
        """Remember the name that torch gave the group."""
        self._name = name

    def getGroupDesc(self) -> str:
        """Return the description that torch gave the group."""
        return self._description

    def setGroupDesc(self, description: str) -> None:
        """Remember the description that torch gave the group."""
        self._description = description

    def rank(self) -> int:
        """Return this process's rank in the group."""
        return self._communicator.rank

    def size(self) -> int:
        """Return the number of ranks in the group."""
        return self._communicator.size

    @property
    def communicator(self) -> Communicator:
        """The communicator beneath: its transport, statistics and verbs on NumPy arrays."""
        return self._communicator

    def get_group_store(self) -> Any:
        """Return the store that torch met through."""
        return self._store

    def shutdown(self) -> None:
        """Finish what is pending, say goodbye to the peers, free everything."""
        self._communicator.close()
        self._threads.shutdown(wait=False)

    def abort(self) -> None:
        """Give up: pending and later operations of every other rank raise AbortedError."""
        self._communicator.abort(f"rank {self.rank()} called abort() of its process group")

    # Reductions.

    def allreduce(self, tensors: Tensors, opts: Any = None, timeout: timedelta | None = None) -> RingWork:
        """Reduce ``tensors`` in place over all ranks; several count as one operation."""
        del timeout
        return self._allreduce(listed(tensors), _op_of(opts))

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> RingWork:
        """Reduce several tensors in place, as one operation for each dtype."""
        return self._allreduce(listed(tensors), _op_of(opts))

    def reduce(self, tensors: Tensors, opts: Any = None) -> RingWork:
        """Reduce to one rank, in place; the tensors of the other ranks stay as they were."""
        (tensor,) = listed(tensors)
        root = self._root(opts)
        if self.rank() == root:
            return self._allreduce([tensor], _op_of(opts))
        scratch = tensor.detach().clone(memory_format=torch.contiguous_format)
        return self._then(self._allreduce([scratch], _op_of(opts)), lambda: [tensor])

    def _allreduce(self, tensors: list[torch.Tensor], op: Any) -> RingWork:
        if not tensors:
            return self._together([], [])
        if op in _BITWISE:
            return self._together([self._bitwise(tensor, _BITWISE[op]) for tensor in tensors], tensors)
        text = _text_of(op)
        by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
        for tensor in tensors:
            by_dtype.setdefault(tensor.dtype, []).append(tensor)
        works = [self._allreduce_alike(alike, text) for alike in by_dtype.values()]
        return works[0] if len(works) == 1 else self._together(works, tensors)

    def _allreduce_alike(self, tensors: list[torch.Tensor], text: str) -> RingWork:
        values = [_values(tensor, text) for tensor in tensors]
        for value in values:
            check_reducible(value, "all_reduce", text, whole_average=True)
        flat = [value.contiguous() for value in values]
        buffers = [buffer_of(value) for value in flat]
        handle = self._core.allreduce(buffers, buffers, text, "", 1.0, 1.0)

        def finish(_: Any) -> list[torch.Tensor]:
            for done, value in zip(flat, values, strict=True):
                bring_home(done, value)
            return tensors

        return self._work(handle, finish)

    def _bitwise(
        self, tensor: torch.Tensor, combine: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    ) -> RingWork:
        if tensor.is_floating_point() or tensor.is_complex():
            raise DataError(
                f"all_reduce: {tensor.dtype} has no bits to combine; use an integer dtype or bool"
            )

        def finish(everybody: torch.Tensor) -> list[torch.Tensor]:
            total = everybody[0]
            for one in everybody[1:]:
                total = combine(total, one)
            tensor.detach().copy_(total)
            return [tensor]

        return self._gather_all(tensor, finish)

    # Reduced, then divided.

    def reduce_scatter(
        self, output_tensors: Tensors, input_tensors: Sequence[Tensors], opts: Any = None
    ) -> RingWork:
        """Reduce lists over the ranks; this rank gets the entry of its number. Sizes may differ by entry."""
        (output,), (inputs,) = listed(output_tensors), [list(one) for one in input_tensors]
        self._expect(len(inputs), "reduce_scatter", "input tensors")
        if len({tensor.numel() for tensor in inputs}) == 1:
            return self.reduce_scatter_single(output, torch.stack([one.detach() for one in inputs]), opts)
        whole = torch.cat([one.detach().reshape(-1) for one in inputs])
        start = sum(tensor.numel() for tensor in inputs[: self.rank()])
        mine = whole[start : start + inputs[self.rank()].numel()]

        def finish() -> list[torch.Tensor]:
            fill(output, mine)
            return [output]

        return self._then(self._allreduce([whole], _op_of(opts)), finish)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> RingWork:
        """Reduce ``input`` over the ranks; this rank gets its equal part of it in ``output``."""
        if input.numel() != output.numel() * self.size() or output.dtype != input.dtype:
            raise DataError(
                f"reduce_scatter_tensor: the input has {input.numel()} elements of {input.dtype}; "
                f"{self.size()} ranks with an output of {output.numel()} of {output.dtype} each need "
                f"{output.numel() * self.size()}"
            )
        text = _text_of(_op_of(opts))
        values = _values(input, text)
        check_reducible(values, "reduce_scatter", text, whole_average=True)
        source = values.contiguous().reshape(self.size(), -1)
        target = source.new_empty((1, source.shape[1]))
        handle = self._core.reducescatter(buffer_of(source), buffer_of(target), text, "")

        def finish(_: Any) -> list[torch.Tensor]:
            fill(_values(output, text), target)
            return [output]

        return self._work(handle, finish)

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> RingWork:
        """Do :meth:`reduce_scatter_single` for several pairs."""
        pairs = zip(outputs, inputs, strict=True)
        works = [self.reduce_scatter_single(out, source, opts) for out, source in pairs]
        return self._together(works, list(outputs))

    def barrier(self, opts: Any = None) -> RingWork:
        """Wait until every rank has come here."""
        del opts
        return self._work(self._core.barrier(""), lambda _: [])

    # Older names of torch for the same (before 2.13), which its C++ side still looks for.
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced


def _op_of(opts: Any) -> Any:
    """Return the ReduceOp of an options object, of a ReduceOp, or SUM when nothing is given."""
    if opts is None:
        return dist.ReduceOp.SUM
    op = getattr(opts, "reduceOp", opts)
    return getattr(op, "op", op)


def _text_of(op: Any) -> str:
    text = _REDUCTIONS.get(op)
    if text is None:
        known = ", ".join(str(one).rpartition(".")[2] for one in (*_REDUCTIONS, *_BITWISE))
        raise DataError(f"the reduction {op} is not one of {known}")
    return text


def _values(tensor: torch.Tensor, text: str) -> torch.Tensor:
    """Return what is reduced: complex numbers as pairs, for the reductions that are linear."""
    tensor = tensor.detach()
    if tensor.is_complex() and text in ("sum", "average"):
        return torch.view_as_real(tensor)
    return tensor
