"""The half of the process group that moves tensors without looking at their values, so of any dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from datetime import timedelta
from typing import Any

import torch

from spark_ring import _core
from spark_ring.errors import DataError
from spark_ring.torch.buffers import check_dense
from spark_ring.torch.flat import (
    apart,
    bring_home,
    bytes_of,
    check_alike,
    expect_bytes,
    fill,
    listed,
    received,
    stacked,
)
from spark_ring.torch.work import RingWork, Together

__all__ = ["Moves", "Tensors"]

Tensors = Sequence[torch.Tensor]


class Moves:
    """broadcast, gathers, scatter, all-to-all, send and recv, as methods of a process group."""

    _core: _core.Communicator
    _threads: Executor

    # To everybody.

    def broadcast(self, tensors: Tensors, opts: Any = None, timeout: timedelta | None = None) -> RingWork:
        """Overwrite ``tensors`` on every rank with the root's."""
        del timeout
        given = listed(tensors)
        root = self._root(opts)
        return self._together([self._broadcast(tensor, root) for tensor in given], given)

    def _broadcast(self, tensor: torch.Tensor, root: int) -> RingWork:
        check_dense(tensor, "broadcast")
        flat = tensor.detach().contiguous()
        handle = self._core.broadcast(bytes_of(flat), root, "")

        def finish(_: Any) -> list[torch.Tensor]:
            bring_home(flat, tensor)
            return [tensor]

        return self._work(handle, finish)

    def allgather(
        self, output_tensors: Sequence[Tensors], input_tensors: Tensors, opts: Any = None
    ) -> RingWork:
        """Give every rank's tensor to everybody: ``output_tensors[0][r]`` gets rank r's."""
        del opts
        (source,), (outputs,) = listed(input_tensors), [list(one) for one in output_tensors]
        self._expect(len(outputs), "all_gather", "output tensors")

        def finish(everybody: torch.Tensor) -> list[torch.Tensor]:
            for output, part in zip(outputs, everybody, strict=True):
                fill(output, part)
            return outputs

        check_alike(outputs, source, "all_gather")
        return self._gather_all(source, finish)

    def allgather_coalesced(
        self, output_lists: Sequence[Tensors], input_list: Tensors, opts: Any = None
    ) -> RingWork:
        """Gather several tensors at once: ``output_lists[r][i]`` gets rank r's i-th."""
        inputs = listed(input_list)
        works = [
            self.allgather([[one[i] for one in output_lists]], [source], opts)
            for i, source in enumerate(inputs)
        ]
        return self._together(works, [tensor for one in output_lists for tensor in one])

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> RingWork:
        """Concatenate (or stack) every rank's tensor into ``output``."""
        del opts
        if output.numel() != input.numel() * self._core.size or output.dtype != input.dtype:
            raise DataError(
                f"all_gather_into_tensor: the output has {output.numel()} elements of {output.dtype}; "
                f"{self._core.size} ranks with {input.numel()} of {input.dtype} each need "
                f"{input.numel() * self._core.size}"
            )

        check_dense(input, "all_gather_into_tensor")
        check_dense(output, "all_gather_into_tensor")
        whole = output.detach().contiguous()
        source = apart(input.detach().contiguous(), whole)
        handle = self._core.allgather(bytes_of(source), "", bytes_of(whole))

        def finish(_: Any) -> list[torch.Tensor]:
            bring_home(whole, output)
            return [output]

        return self._work(handle, finish)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> RingWork:
        """Do :meth:`all_gather_single` for several pairs."""
        pairs = zip(outputs, inputs, strict=True)
        return self._together(
            [self.all_gather_single(out, source, opts) for out, source in pairs], list(outputs)
        )

    def _gather_all(
        self, tensor: torch.Tensor, finish: Callable[[torch.Tensor], list[torch.Tensor]]
    ) -> RingWork:
        """Gather equal tensors; ``finish`` gets them stacked."""
        check_dense(tensor, "all_gather")
        source = tensor.detach().contiguous()
        handle = self._core.allgather(bytes_of(source), "")

        def done(native: Any) -> list[torch.Tensor]:
            return finish(stacked(native, source, self._core.size))

        return self._work(handle, done)

    # Rows for one rank each.

    def gather(self, output_tensors: Sequence[Tensors], input_tensors: Tensors, opts: Any = None) -> RingWork:
        """Give every rank's tensor to the root: ``output_tensors[0][r]`` gets rank r's there."""
        (source,) = listed(input_tensors)
        root = self._root(opts)
        outputs = list(output_tensors[0]) if self._core.rank == root else []
        if self._core.rank == root:
            self._expect(len(outputs), "gather", "output tensors")
            check_alike(outputs, source, "gather")
        check_dense(source, "gather")
        flat = source.detach().contiguous()
        handle = self._core.gather(bytes_of(flat), root, "")

        def finish(native: Any) -> list[torch.Tensor]:
            if outputs:
                for output, part in zip(outputs, stacked(native, flat, self._core.size), strict=True):
                    fill(output, part)
            return outputs

        return self._work(handle, finish)

    def scatter(
        self, output_tensors: Tensors, input_tensors: Sequence[Tensors], opts: Any = None
    ) -> RingWork:
        """Give each rank one tensor of the root's list."""
        (output,) = listed(output_tensors)
        root = self._root(opts)
        buffer, counts = None, []
        if self._core.rank == root:
            inputs = list(input_tensors[0])
            self._expect(len(inputs), "scatter", "input tensors")
            check_alike(inputs, output, "scatter")
            for one in inputs:
                check_dense(one, "scatter")
            flat = bytes_of(torch.stack([one.detach() for one in inputs]))
            buffer, counts = flat, [output.numel() * output.element_size()] * self._core.size
        handle = self._core.scatter(buffer, root, counts, "")

        def finish(native: Any) -> list[torch.Tensor]:
            fill(output, received(native, output.dtype, output.numel(), "scatter"))
            return [output]

        return self._work(handle, finish)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
    ) -> RingWork:
        """Send rows to every rank and receive some from each; without splits as many to each."""
        del opts
        check_dense(input, "all_to_all_single")
        rows = input.shape[0] if input.dim() else 0
        if not input_split_sizes and rows % self._core.size:
            raise DataError(
                f"all_to_all_single: {rows} rows cannot be divided over {self._core.size} ranks; give splits"
            )
        splits = list(input_split_sizes) or [rows // self._core.size] * self._core.size
        row_bytes = input.numel() * input.element_size() // rows if rows else 0
        check_dense(output, "all_to_all_single")
        whole = output.detach().contiguous()
        source = bytes_of(apart(input.detach().contiguous(), whole))
        handle = self._core.alltoall(source, [count * row_bytes for count in splits], "", bytes_of(whole))

        def finish(native: Any) -> list[torch.Tensor]:
            expect_bytes(native, output, "all_to_all_single")
            bring_home(whole, output)
            return [output]

        return self._work(handle, finish)

    def alltoall(self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None) -> RingWork:
        """Send one tensor to every rank and receive one from each; sizes may differ."""
        del opts
        outputs, inputs = listed(output_tensors), listed(input_tensors)
        self._expect(len(inputs), "all_to_all", "input tensors")
        self._expect(len(outputs), "all_to_all", "output tensors")
        for one in inputs:
            check_dense(one, "all_to_all")
        whole = torch.cat([one.detach().reshape(-1) for one in inputs])
        handle = self._core.alltoall(
            bytes_of(whole), [one.numel() * one.element_size() for one in inputs], ""
        )
        total = sum(output.numel() for output in outputs)

        def finish(native: Any) -> list[torch.Tensor]:
            whole = received(native, outputs[0].dtype, total, "all_to_all")
            parts = torch.split(whole, [output.numel() for output in outputs])
            for output, part in zip(outputs, parts, strict=True):
                fill(output, part)
            return outputs

        return self._work(handle, finish)

    # Between two ranks.

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> RingWork:
        """Send one tensor to a rank of the group."""
        (tensor,) = listed(tensors)
        check_dense(tensor, "send")
        handle = self._core.send(bytes_of(tensor.detach().contiguous()), dst, tag, -1.0)
        return self._work(handle, lambda _: [tensor])

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> RingWork:
        """Receive one tensor from a rank of the group, into ``tensors``."""
        (tensor,) = listed(tensors)
        check_dense(tensor, "recv")
        flat = tensor.detach().contiguous()
        handle = self._core.receive(bytes_of(flat), src, tag, -1.0)

        def finish(_: Any) -> list[torch.Tensor]:
            bring_home(flat, tensor)
            return [tensor]

        return self._work(handle, finish)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> RingWork:
        """Refuse: the ring matches messages by their source."""
        del tensors, tag
        raise NotImplementedError("spark_ring cannot receive from any source; give recv() its src")

    # Older names of torch for the same (before 2.13), which its C++ side still looks for.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    alltoall_base = all_to_all_single

    # What every method needs.

    def _root(self, opts: Any) -> int:
        root = 0 if opts is None else int(opts.rootRank)
        if not 0 <= root < self._core.size:
            raise DataError(
                f"the root is rank {root} of the group; it must be from 0 to {self._core.size - 1}"
            )
        return root

    def _expect(self, found: int, verb: str, what: str) -> None:
        if found != self._core.size:
            raise DataError(
                f"{verb}: {found} {what} for a group of {self._core.size} ranks; give one for each"
            )

    def _work(self, handle: Any, finish: Callable[[Any], list[torch.Tensor]]) -> RingWork:
        return RingWork(handle, finish, self._threads)

    def _together(self, works: list[RingWork], result: list[torch.Tensor]) -> RingWork:
        return works[0] if len(works) == 1 else self._work(Together(works), lambda _: result)

    def _then(self, work: RingWork, finish: Callable[[], list[torch.Tensor]]) -> RingWork:
        return self._work(Together([work]), lambda _: finish())
