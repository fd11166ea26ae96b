"""The collectives in which ranks give each other different rows: alltoall, gather, scatter; and join.

Only rows that are meant for a rank travel to it. Row counts may differ between ranks and be 0; dtype and the
other dimensions may not. The native ring exchanges the counts first, then the rows go straight into an array
of the right size (csrc/engine/uneven.h).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from spark_ring import _core
from spark_ring.arrays import Array, as_input, buffer_of, check_rows, dtype_named, rows_output
from spark_ring.errors import DataError
from spark_ring.handle import Handle

__all__ = ["Exchanges"]


class Exchanges:
    """These collectives, as methods of a communicator."""

    _core: _core.Communicator
    rank: int
    size: int

    @overload
    def alltoall(
        self,
        array: Any,
        splits: None = None,
        *,
        out: Array | None = None,
        name: str | None = None,
        timeout: float | None = None,
    ) -> Array: ...

    @overload
    def alltoall(
        self,
        array: Any,
        splits: Sequence[int],
        *,
        out: Array | None = None,
        name: str | None = None,
        timeout: float | None = None,
    ) -> tuple[Array, Array]: ...

    def alltoall(
        self,
        array: Any,
        splits: Sequence[int] | None = None,
        *,
        out: Array | None = None,
        name: str | None = None,
        timeout: float | None = None,
    ) -> Array | tuple[Array, Array]:
        """Send rows to every rank and receive some from each.

        Args:
            array: at least 1-d; its rows are dealt to the ranks in order. The dimensions but the first and
                the dtype are the same on every rank; without ``splits`` the first too.
            splits: how many rows go to each rank, ``size`` integers that make up ``array.shape[0]``; given on
                every rank or on none. ``None``: equal parts.
            out: where the rows go, as many as come; separate from ``array``. ``None`` makes a new array.
            name: matches the operation across ranks.
            timeout: seconds; ``None`` means the setting ``collective_timeout``.

        Returns:
            The rows that were received, ordered by the rank that sent them. With ``splits`` also how many
            came from each rank, int64 of shape ``(size,)``.

        Raises:
            DataError: an array without rows to deal. ConfigError: splits, or rows without splits, that do not
            add up. MismatchError: ranks disagree. CommunicatorError as in any collective.
        """
        handle = self.alltoall_async(array, splits, out=out, name=name)
        result: Array | tuple[Array, Array] = handle.wait(timeout)
        return result

    def alltoall_async(
        self,
        array: Any,
        splits: Sequence[int] | None = None,
        *,
        out: Array | None = None,
        name: str | None = None,
    ) -> Handle:
        """Start :meth:`alltoall`; ``wait()`` returns its result."""
        source = self._rows(array, "alltoall", name)
        counts = [] if splits is None else _whole_numbers(splits, "alltoall")
        if splits is not None and not counts:
            raise DataError(f"alltoall: splits is empty; give {self.size} numbers of rows, one for each rank")
        operation = _called("alltoall", name)
        target = None
        if out is not None:
            source, target = rows_output(out, source, operation)
        place = None if target is None else buffer_of(target, writable=True)
        native = self._core.alltoall(buffer_of(source, writable=False), counts, name or "", place)

        def finish(native: _core.Handle) -> Array | tuple[Array, Array]:
            if target is None:
                received = _taken(native, source)
            else:
                received = check_rows(target, sum(shape[0] for shape in native.result_shapes()), operation)
            if splits is None:
                return received
            return received, np.array([shape[0] for shape in native.result_shapes()], dtype=np.int64)

        return Handle(native, finish)

    def gather(
        self, array: Any, root: int = 0, *, name: str | None = None, timeout: float | None = None
    ) -> Array | None:
        """Concatenate the arrays of all ranks along dimension 0, on one rank.

        Args:
            array: the input. Dimension 0 may differ between ranks, also be 0. A 0-d array counts as one row.
            root: the rank that gets the result.
            name: matches the operation across ranks.
            timeout: seconds; ``None`` means the setting ``collective_timeout``.

        Returns:
            On the root an array ``(rows of all ranks, *shape[1:])``; ``None`` on the others.
        """
        result: Array | None = self.gather_async(array, root, name=name).wait(timeout)
        return result

    def gather_async(self, array: Any, root: int = 0, *, name: str | None = None) -> Handle:
        """Start :meth:`gather`; ``wait()`` returns its result."""
        source = as_input(array, _called("gather", name))
        source = source.reshape(1) if source.ndim == 0 else source
        native = self._core.gather(buffer_of(source, writable=False), root, name or "")
        return Handle(native, lambda done: _taken(done, source) if self.rank == root else None)

    def scatter(
        self,
        array: Any = None,
        root: int = 0,
        splits: Sequence[int] | None = None,
        *,
        name: str | None = None,
        timeout: float | None = None,
    ) -> Array:
        """Divide the root's rows over the ranks.

        Args:
            array: on the root: at least 1-d. Ignored on the other ranks, which learn dtype and shape from it.
            root: the rank whose rows are divided.
            splits: on the root: how many rows each rank gets. ``None``: as :meth:`reducescatter` divides, the
                first ``shape[0] % size`` ranks get one row more. Ignored on the other ranks.
            name: matches the operation across ranks.
            timeout: seconds; ``None`` means the setting ``collective_timeout``.

        Returns:
            This rank's rows, a new array.
        """
        result: Array = self.scatter_async(array, root, splits, name=name).wait(timeout)
        return result

    def scatter_async(
        self,
        array: Any = None,
        root: int = 0,
        splits: Sequence[int] | None = None,
        *,
        name: str | None = None,
    ) -> Handle:
        """Start :meth:`scatter`; ``wait()`` returns this rank's rows."""
        buffer = None
        counts: list[int] = []
        if self.rank == root:
            source = self._rows(array, "scatter", name)
            each, extra = divmod(source.shape[0], self.size)
            counts = (
                [each + (r < extra) for r in range(self.size)]
                if splits is None
                else _whole_numbers(splits, "scatter")
            )
            buffer = buffer_of(source, writable=False)
        native = self._core.scatter(buffer, root, counts, name or "")

        def finish(native: _core.Handle) -> Array:
            dtype, shape = native.received()
            return _as_array(native, dtype_named(dtype, "scatter"), tuple(shape))

        return Handle(native, finish)

    def join(self, *, timeout: float | None = None) -> int:
        """Say that this rank has no more data; wait until every rank has said so.

        Until then this rank goes on taking part in the operations of the others: it adds zeros to sums and
        averages (which still divide by the world size), nothing to minima, maxima and products, and no rows
        to gathers. What it would have to send as the root raises MismatchError on every rank.

        Args:
            timeout: seconds; ``None`` waits while the others go on, each of whose operations may take as long
                as the setting ``collective_timeout`` allows.

        Returns:
            The last rank to join, the same on every rank: of those that joined at the same time, the highest.
        """
        result: int = self.join_async().wait(timeout)
        return result

    def join_async(self) -> Handle:
        """Start :meth:`join`; ``wait()`` returns the last rank to join."""
        return Handle(self._core.join(), lambda native: int(native.result_shapes()[0][0]))

    def _rows(self, array: Any, verb: str, name: str | None) -> Array:
        source = as_input(array, _called(verb, name))
        if source.ndim == 0:
            raise DataError(f"{_called(verb, name)}: a 0-d array has no rows to deal; reshape it to (1,)")
        return source


def _taken(native: _core.Handle, like: Array) -> Array:
    rows = sum(shape[0] for shape in native.result_shapes())
    return _as_array(native, like.dtype, (rows, *like.shape[1:]))


def _as_array(native: _core.Handle, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    flat = np.frombuffer(native.take_result(), dtype=np.uint8)
    return flat.view(dtype).reshape(shape)


def _whole_numbers(splits: Sequence[int], verb: str) -> list[int]:
    try:
        return [operator.index(rows) for rows in np.asarray(splits).tolist()]
    except TypeError:
        raise DataError(f"{verb}: splits must be whole numbers of rows, found {splits!r}") from None


def _called(verb: str, name: str | None) -> str:
    return f"{verb} {name!r}" if name else verb
