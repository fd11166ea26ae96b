"""A group of ranks and its collectives on NumPy arrays: the public face of the native ring.

A call checks its arguments, wraps the memory of the arrays (no copy) and submits one operation to
:mod:`spark_ring._core`, which moves the bytes in its own progress thread. What comes back is a
:class:`Handle`; the plain verbs wait for it at once.

Ranks match their operations by ``name`` when one is given, else by the order of the calls of one verb. If
ranks disagree about shape, dtype or op, every rank raises :class:`~spark_ring.errors.MismatchError`.

All ranks get the same bits, and the same inputs give the same bits again in the next run of the same world
with the same settings, whatever tensors happen to travel together.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from spark_ring import _core, messages, objects, peers, stalls, timeline
from spark_ring.arrays import (
    Array,
    as_input,
    as_output,
    buffer_of,
    check_rows,
    output_for,
    rows_output,
)
from spark_ring.config import Settings
from spark_ring.errors import ConfigError, DataError
from spark_ring.exchanges import Exchanges
from spark_ring.groups import Lineage, make_group, split
from spark_ring.handle import Handle
from spark_ring.ops import ReduceOp
from spark_ring.stalls import Stall

__all__ = ["Communicator", "Handle", "ReduceOp"]


class Communicator(Exchanges):
    """One group of ranks. Thread-safe; a context manager that closes, or aborts when an exception passes.

    Attributes:
        rank: this process's rank, from 0.
        size: the world size.
        local_rank: rank among the ranks of this host.
        local_size: number of ranks on this host.
        cross_rank: rank among the ranks of this local rank, one on each host that has it.
        cross_size: number of hosts that have this local rank.
        transport: ``"self"``, ``"shm"``, ``"tcp"`` or ``"shm+tcp"``.
        name: the name of a group; empty for a world.
        ranks: of a group: its members' ranks in the communicator it was made from, in the group's order.
    """

    def __init__(self, core: _core.Communicator, lineage: Lineage) -> None:
        """Wrap a native communicator; :meth:`connect`, :meth:`group` and :meth:`split` make one."""
        self._core = core
        self._express = core.express  # the shortest road for plain arrays
        self.lineage = lineage
        self.name: str = lineage.name
        self.ranks: tuple[int, ...] = lineage.ranks or tuple(range(core.size))
        self._groups: weakref.WeakSet[Communicator] = weakref.WeakSet()
        self._groups_made: Counter[tuple[tuple[int, ...], str]] = Counter()
        self._lock = threading.Lock()  # guards the two above
        self._making = threading.Lock()  # held while a group without a name is made
        self.rank: int = core.rank
        self.size: int = core.size
        self.local_rank: int = core.local_rank
        self.local_size: int = core.local_size
        self.cross_rank: int = core.cross_rank
        self.cross_size: int = core.cross_size
        self.transport: str = core.transport
        warn = lineage.settings.stall_warning_seconds
        if self.size > 1 and warn > 0:
            stalls.follow(self, every=min(1.0, max(0.02, warn / 4)))

    @classmethod
    def connect(
        cls,
        rank: int,
        size: int,
        exchange: Callable[[str], list[str]],
        secret: bytes,
        settings: Settings,
        *,
        toward: str = "",
    ) -> Communicator:
        """Meet the other ranks and connect to them. Collective: every rank calls it.

        Args:
            rank: this process's rank.
            size: the world size.
            exchange: gathers one short text of every rank and returns them in rank order; called once.
            secret: the job's secret, the same on every rank.
            settings: transport, segments and deadlines.
            toward: host the ranks have in common (the driver). The address announced to the other ranks is
                the one by which this host reaches it; the setting ``address`` wins.

        Raises:
            RendezvousError: ranks could not find or reach each other.
            AuthenticationError: a peer does not know the secret.
        """
        if settings.timeline and size > 1 and "{rank}" not in settings.timeline:
            raise ConfigError(
                f"setting timeline is {settings.timeline!r}; with {size} ranks it needs {{rank}} in its "
                "name, so that each rank has a file of its own"
            )
        core = peers.connect(rank, size, exchange, secret, settings, toward=toward)
        made = cls(core, Lineage(secret, settings, toward))
        if settings.timeline:
            try:
                made.start_timeline(settings.timeline)
            except BaseException:
                made.close()
                raise
        return made

    @property
    def core(self) -> _core.Communicator:
        """The native communicator, for frameworks that pass their own memory as ``Buffer``."""
        return self._core

    # Reductions.

    def allreduce(
        self,
        array: Any,
        op: ReduceOp | str = ReduceOp.Sum,
        *,
        out: Array | None = None,
        name: str | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        timeout: float | None = None,
    ) -> Array:
        """Reduce the arrays of all ranks; every rank gets the result.

        Args:
            array: the input, of the same shape and dtype on every rank.
            op: sum, average, min, max, product or adasum. float16 and bfloat16 accumulate in float32. Sums
                and products of integers wrap; their average is the exact sum divided by the world size,
                rounded toward zero. bool has min (and), max (or) and product (and). Adasum (Maleki et al.,
                2020, arXiv 2006.02924) is for floating dtypes: it adds what differs, averages what agrees.
            out: where the result goes; ``array`` itself for in place. ``None`` makes a new array.
            name: matches the operation across ranks; ``None`` matches by order.
            prescale: factor applied to the input before the reduction (floating dtypes).
            postscale: factor applied to the result (floating dtypes).
            timeout: seconds; ``None`` means the setting ``collective_timeout``.

        Returns:
            ``out``, or a new array of the input's shape and dtype.

        Raises:
            DataError: an array that cannot be used.
            ConfigError: no such op, or not for this dtype.
            MismatchError: ranks disagree about name, shape, dtype or op.
            PeerLostError: a rank died. CollectiveTimeoutError: one did not come. AbortedError: one gave up.
            ClosedError: the communicator is closed.
        """
        done: Array | None = self._express(array, out, op, name, prescale, postscale, timeout)
        if done is not None:
            return done
        source, target, text = _reduction("allreduce", array, op, out, name)
        self._core.allreduce_now(
            buffer_of(source, writable=False),
            buffer_of(target, writable=True),
            text,
            name or "",
            prescale,
            postscale,
            -1.0 if timeout is None else timeout,
        )
        return target

    def allreduce_async(
        self,
        array: Any,
        op: ReduceOp | str = ReduceOp.Sum,
        *,
        out: Array | None = None,
        name: str | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
    ) -> Handle:
        """Start :meth:`allreduce`; ``wait()`` returns the result. Leave the arrays alone until then."""
        source, target, text = _reduction("allreduce", array, op, out, name)
        native = self._core.allreduce(
            [buffer_of(source, writable=False)],
            [buffer_of(target, writable=True)],
            text,
            name or "",
            prescale,
            postscale,
        )
        return Handle(native, lambda _: target)

    def grouped_allreduce(
        self,
        arrays: Sequence[Any],
        op: ReduceOp | str = ReduceOp.Sum,
        *,
        out: Sequence[Array] | None = None,
        name: str | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        timeout: float | None = None,
    ) -> list[Array]:
        """Reduce several arrays as one operation: all succeed, or none. Arguments as in :meth:`allreduce`."""
        handle = self.grouped_allreduce_async(
            arrays, op, out=out, name=name, prescale=prescale, postscale=postscale
        )
        result: list[Array] = handle.wait(timeout)
        return result

    def grouped_allreduce_async(
        self,
        arrays: Sequence[Any],
        op: ReduceOp | str = ReduceOp.Sum,
        *,
        out: Sequence[Array] | None = None,
        name: str | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
    ) -> Handle:
        """Start :meth:`grouped_allreduce`; ``wait()`` returns the list of results."""
        if out is not None and len(out) != len(arrays):
            raise DataError(
                f"grouped_allreduce: {len(arrays)} inputs and {len(out)} outputs; give one output each"
            )
        outs: Sequence[Array | None] = [None] * len(arrays) if out is None else out
        pairs = [
            _reduction(f"grouped_allreduce[{i}]", a, op, o, name)
            for i, (a, o) in enumerate(zip(arrays, outs, strict=True))
        ]
        native = self._core.allreduce(
            [buffer_of(source, writable=False) for source, _, _ in pairs],
            [buffer_of(target, writable=True) for _, target, _ in pairs],
            ReduceOp.of(op),
            name or "",
            prescale,
            postscale,
        )
        targets = [target for _, target, _ in pairs]
        return Handle(native, lambda _: targets)

    def reducescatter(
        self,
        array: Any,
        op: ReduceOp | str = ReduceOp.Sum,
        *,
        name: str | None = None,
        timeout: float | None = None,
    ) -> Array:
        """Reduce the arrays of all ranks and keep this rank's rows of the result.

        Dimension 0 is split: the first ``shape[0] % size`` ranks get one row more than the others.

        Args:
            array: the input, at least 1-d, of the same shape and dtype on every rank.
            op: as in :meth:`allreduce`.
            name: matches the operation across ranks.
            timeout: seconds; ``None`` means the setting ``collective_timeout``.

        Returns:
            A new array ``(rows of this rank, *shape[1:])``.
        """
        result: Array = self.reducescatter_async(array, op, name=name).wait(timeout)
        return result

    def reducescatter_async(
        self, array: Any, op: ReduceOp | str = ReduceOp.Sum, *, name: str | None = None
    ) -> Handle:
        """Start :meth:`reducescatter`; ``wait()`` returns this rank's rows."""
        operation = _called("reducescatter", name)
        source = as_input(array, operation)
        text = ReduceOp.of(op)
        if source.ndim == 0:
            raise DataError(f"{operation}: a 0-d array has no rows to scatter; use allreduce, or reshape(1)")
        rows, extra = divmod(source.shape[0], self.size)
        target = np.empty((rows + (self.rank < extra), *source.shape[1:]), source.dtype)
        native = self._core.reducescatter(
            buffer_of(source, writable=False), buffer_of(target, writable=True), text, name or ""
        )
        return Handle(native, lambda _: target)

    def empty(self, shape: int | tuple[int, ...], dtype: Any = "float32") -> Array:
        """Make an array in memory that the ranks of this host share, so that collectives copy nothing.

        When the input and the output of an :meth:`allreduce` (best: the same array) lie in such memory on
        every rank of the host, each rank reduces its share straight from and into everybody's arrays. The
        other collectives read inputs where they lie. The values are those of ordinary arrays, bit for bit,
        and ranks may mix both kinds. Local: other ranks need not call it.

        Use it for what is reduced again and again, a buffer for gradients for example. Every array takes
        whole pages and a call into the kernel: make one large array and views of it for many small tensors.
        An array stays valid when the communicator is closed; its memory is freed with the last view of it.

        Args:
            shape: of the array.
            dtype: any dtype that the ring reduces.

        Returns:
            A C-contiguous, writable array of zeros. Where ranks share no memory (one rank on this host,
            ``transport="tcp"``, ``arena_bytes=0``, no room for the addresses) it is an ordinary one.

        Raises:
            ConfigError: more than the setting ``arena_bytes`` in all.
            RendezvousError: /dev/shm is full.
            ClosedError: the communicator is closed. Also what made it unusable, if something did.

        After a failed collective a peer that is late may still write into the array.
        """
        wanted = np.dtype(dtype)
        extents = (shape,) if isinstance(shape, int) else tuple(shape)
        count = math.prod(extents)
        memory = self._core.shared_memory(count * wanted.itemsize)
        if memory is None:
            return np.zeros(extents, wanted)
        return np.frombuffer(memory, dtype=wanted, count=count).reshape(extents)

    # Moving.

    def broadcast(
        self, array: Any, root: int = 0, *, name: str | None = None, timeout: float | None = None
    ) -> Array:
        """Overwrite ``array`` on every rank with the root's values, in place.

        Args:
            array: of the same shape and dtype on every rank; writable and contiguous except on the root.
            root: the rank whose values count.
            name: matches the operation across ranks.
            timeout: seconds; ``None`` means the setting ``collective_timeout``.

        Returns:
            ``array``.
        """
        result: Array = self.broadcast_async(array, root, name=name).wait(timeout)
        return result

    def broadcast_async(self, array: Any, root: int = 0, *, name: str | None = None) -> Handle:
        """Start :meth:`broadcast`; ``wait()`` returns ``array``."""
        operation = _called("broadcast", name)
        if not 0 <= root < self.size:
            raise DataError(f"{operation}: root is {root}; it must be a rank from 0 to {self.size - 1}")
        source: Array = as_input(array, operation)
        if self.rank != root:
            as_output(array, source.shape, source.dtype, operation)
        native = self._core.broadcast(buffer_of(source, writable=self.rank != root), root, name or "")
        result = array if isinstance(array, np.ndarray) else source
        return Handle(native, lambda _: result)

    def allgather(
        self,
        array: Any,
        *,
        out: Array | None = None,
        name: str | None = None,
        timeout: float | None = None,
    ) -> Array:
        """Concatenate the arrays of all ranks along dimension 0; every rank gets the result.

        Args:
            array: the input. Dimension 0 may differ between ranks, also be 0; the other dimensions and the
                dtype may not. A 0-d array counts as one row.
            out: where the result goes, ``(rows of all ranks, *shape[1:])``: worth it when the same gather is
                done again and again, for new memory costs more than the gather. ``None`` makes a new array.
            name: matches the operation across ranks.
            timeout: seconds; ``None`` means the setting ``collective_timeout``.

        Returns:
            ``out``, or a new array ``(rows of all ranks, *shape[1:])``.

        Raises:
            DataError: an array that cannot be used; ``out`` with another number of rows than came, on this
            rank alone and after the operation.
        """
        result: Array = self.allgather_async(array, out=out, name=name).wait(timeout)
        return result

    def allgather_async(self, array: Any, *, out: Array | None = None, name: str | None = None) -> Handle:
        """Start :meth:`allgather`; ``wait()`` returns the concatenation."""
        operation = _called("allgather", name)
        source = as_input(array, operation)
        if source.ndim == 0:
            source = source.reshape(1)
        target = None
        if out is not None:
            source, target = rows_output(out, source, operation)
        place = None if target is None else buffer_of(target, writable=True)
        native = self._core.allgather(buffer_of(source, writable=False), name or "", place)

        def finish(native: _core.Handle) -> Array:
            rows = sum(shape[0] for shape in native.result_shapes())
            if target is not None:
                return check_rows(target, rows, operation)
            flat = np.frombuffer(native.take_result(), dtype=np.uint8)
            return flat.view(source.dtype).reshape((rows, *source.shape[1:]))

        return Handle(native, finish)

    def barrier(self, *, name: str | None = None, timeout: float | None = None) -> None:
        """Wait until every rank has come here."""
        self._core.barrier(name or "").wait(-1.0 if timeout is None else timeout)

    def broadcast_object(self, value: Any, root: int = 0, *, name: str | None = None) -> Any:
        """Return the root's value on every rank. JSON values and bytes only: nothing is ever unpickled.

        Args:
            value: on the root: ``None``, bool, number, text, list, dict with text keys, or bytes; a tuple
                arrives as a list. Ignored on the other ranks.
            root: the rank whose value counts.
            name: matches the operation across ranks.

        Raises:
            DataError: on the root: the value is of another kind. The other ranks raise CommunicatorError.
        """
        return objects.broadcast_object(self, value, root, name)

    def allgather_object(self, value: Any, *, name: str | None = None) -> list[Any]:
        """Return the values of all ranks, in rank order. Values as in :meth:`broadcast_object`."""
        return objects.allgather_object(self, value, name)

    # From one rank to another.

    def send(self, array: Any, dest: int, *, tag: int = 0, timeout: float | None = None) -> None:
        """Send an array to one rank, which receives it with :meth:`recv`.

        Messages of one pair of ranks with one tag are received in the order in which they were sent. They
        have nothing to do with collectives: both may be under way at once.

        Returns when ``array`` may be changed again. A short message (at most 64 KiB) need not have been
        received by then; a long one waits for its receive, and so does a short one once 4 MiB of them wait at
        the receiver. So two ranks that both send first and receive then should use :meth:`isend`.

        Args:
            array: any shape, also empty, and any dtype that the ring has.
            dest: the receiving rank; may be this one.
            tag: an integer from 0 that the receiver names too.
            timeout: seconds; ``None`` means the setting ``collective_timeout``.

        Raises:
            DataError: an array, rank or tag that cannot be used.
            CollectiveTimeoutError: not received in time; the message is withdrawn.
            PeerLostError: ``dest`` died or closed. AbortedError: a rank gave up. ClosedError: closed.
        """
        messages.send(self, array, dest, tag, timeout).wait()

    def isend(self, array: Any, dest: int, *, tag: int = 0, timeout: float | None = None) -> Handle:
        """Start :meth:`send`; ``wait()`` returns ``None``. Leave the array alone until then."""
        return messages.send(self, array, dest, tag, timeout)

    def recv(self, out: Array | None, source: int, *, tag: int = 0, timeout: float | None = None) -> Array:
        """Receive an array that one rank sends with :meth:`send`.

        Args:
            out: where it goes, of the shape and dtype that are sent; ``None`` makes an array of these.
            source: the sending rank; may be this one.
            tag: as the sender named it.
            timeout: seconds; ``None`` means the setting ``collective_timeout``.

        Returns:
            ``out``, or a new array.

        Raises:
            DataError: an output, rank or tag that cannot be used.
            MismatchError: another shape or dtype was sent than ``out`` has; the message is kept for the next
                receive.
            CollectiveTimeoutError: nothing came in time. Otherwise as :meth:`send`.
        """
        result: Array = messages.receive(self, out, source, tag, timeout).wait()
        return result

    def irecv(self, out: Array | None, source: int, *, tag: int = 0, timeout: float | None = None) -> Handle:
        """Start :meth:`recv`; ``wait()`` returns the array. Leave ``out`` alone until then."""
        return messages.receive(self, out, source, tag, timeout)

    # Groups.

    def group(self, ranks: Sequence[int], name: str | None = None) -> Communicator | None:
        """Make a communicator of some of these ranks. Collective: every rank of this one calls it.

        The group has connections, shared memory and progress of its own, so it may be used at the same time
        as this communicator and as other groups, also from other threads. It is closed by its own
        :meth:`close`, or together with this communicator.

        Args:
            ranks: the members, as ranks of this communicator, in the order that they get in the group; the
                same on every rank. One member is enough; groups may overlap, and a group has groups.
            name: shown in errors; needed when several threads make groups at once.

        Returns:
            The group, or ``None`` on a rank that is not a member.

        Raises:
            DataError: ``ranks`` is empty, or has something twice or that is no rank. The other ranks raise
                RendezvousError, unless they made the same mistake.
            MismatchError: ranks ask for different groups; this communicator stays usable.
            RendezvousError: the members could not reach each other. CommunicatorError as in any collective.
        """
        if name:
            return self._adopt(make_group(self, ranks, name))
        with self._making:
            return self._adopt(make_group(self, ranks, name))

    def split(self, color: int | None, key: int | None = None) -> Communicator | None:
        """Divide the ranks into groups: one for each color. Collective: every rank of this one calls it.

        Args:
            color: ranks that give the same integer form a group, named ``"color …"``; ``None`` joins none.
            key: ranks of a group are ordered by it, and by their rank here where it is equal. Default: the
                rank.

        Returns:
            This rank's group, or ``None`` if it gave no color. Groups as in :meth:`group`.

        Raises:
            DataError: ``color`` or ``key`` is no integer. Otherwise as :meth:`group`.
        """
        with self._making:
            return self._adopt(split(self, color, key))

    def count_group(self, ranks: tuple[int, ...], name: str) -> int:
        """Count that a group is being made; return how often the same one was made before."""
        with self._lock:
            self._groups_made[ranks, name] += 1
            return self._groups_made[ranks, name] - 1

    def _adopt(self, made: tuple[_core.Communicator, Lineage] | None) -> Communicator | None:
        if made is None:
            return None
        group = type(self)(*made)
        with self._lock:
            self._groups.add(group)
        return group

    def _open_groups(self) -> list[Communicator]:
        with self._lock:
            return list(self._groups)

    # Life.

    def statistics(self, *, reset: bool = False) -> dict[str, Any]:
        """Return what this rank did since the start, or since the last reset.

        Args:
            reset: begin to count anew. What another thread does meanwhile may count on either side.

        Returns:
            Counts: ``operations``, their ``bytes`` (of this rank's inputs), ``buckets``, ``fused_tensors``,
            ``carried`` (complete with the agreement itself), ``rounds``, ``wakeups``, ``seconds`` spent on
            agreed operations, ``strangers`` refused while connecting. And:

            ``table``: a list with one dict for each operation and algorithm: ``operation``, ``algorithm``,
            ``transport``, ``calls`` (buckets), ``tensors`` in them, ``bytes``, ``seconds``,
            ``bytes_per_second``; ``wait_seconds``, the part of ``seconds`` spent waiting for other ranks
            (waits of a few microseconds do not count), ``move_seconds``, the rest; ``queue_seconds``, summed
            over tensors, from submission to agreement. What came "with the agreement" has the agreement in
            its seconds.
            ``wait_seconds_by_rank``: how long this rank waited for each other one, agreement included.
            ``slowest_rank``: the rank waited for longest; ``None`` if none was.
        """
        return self._core.statistics(reset)

    def start_timeline(self, path: str | os.PathLike[str]) -> None:
        """Record what this rank does from now on as Chrome trace events; see :mod:`spark_ring.timeline`.

        Each rank that calls this records itself. May be started and stopped any number of times; a group
        records apart from the communicator it was made from.

        Args:
            path: the file, overwritten. ``{rank}`` in it becomes this rank.

        Raises:
            ConfigError: the file cannot be written, or a recording is under way.
        """
        self._core.start_timeline(timeline.path_for(path, self.rank))

    def stop_timeline(self) -> None:
        """End the recording, if there is one, and complete its file. :meth:`close` does it too."""
        self._core.stop_timeline()

    def stalled(self) -> list[Stall]:
        """Return what keeps this rank waiting now, beyond the setting ``stall_warning_seconds``.

        Empty when nothing does. Every entry was, or soon is, a warning of the logger ``spark_ring``.
        """
        return stalls.stalls_of(self._core.stalled())

    def take_stall_reports(self) -> list[Stall]:
        """Return what is to be logged of stalls since the last call; for the thread that logs."""
        return stalls.stalls_of(self._core.take_stall_reports())

    def abort(self, reason: str) -> None:
        """Give up: pending and later operations of every other rank raise AbortedError with this reason.

        Groups made from this communicator give up too.
        """
        for group in self._open_groups():
            group.abort(reason)
        self._core.abort(reason)

    def close(self) -> None:
        """Finish what is pending, say goodbye to the peers, free everything. May be called again.

        Groups made from this communicator are closed first.
        """
        for group in self._open_groups():
            group.close()
        self._core.close()
        stalls.forget(self)

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.abort(f"rank {self.rank} raised {type(error).__name__}: {error}")
        self.close()

    def __repr__(self) -> str:
        named = f" {self.name!r}" if self.name else ""
        return f"<Communicator{named} rank {self.rank} of {self.size}, {self.transport}>"


def _reduction(
    verb: str, array: Any, op: ReduceOp | str, out: Array | None, name: str | None
) -> tuple[Array, Array, str]:
    """Check the arguments of a reduction; return input, output and the op's text."""
    operation = _called(verb, name)
    given = as_input(array, operation)
    source, target = output_for(given, out, operation)
    return source, target, ReduceOp.of(op)


def _called(verb: str, name: str | None) -> str:
    return f"{verb} {name!r}" if name else verb
