"""Windows of rows, read and shuffled in the background, in the order in which a rank needs them.

A task of the thread pool makes one window: it decodes the row groups of the window and, while they are in the
cache, copies their rows in shuffled order into a buffer. What remains for a batch is to copy slices.

Memory. Window buffers are as long as the longest window, and used again: touching new pages for each window
would cost as much as decoding it. A row group that several windows of this rank need (one that two lanes
share, or one that is longer than a window) is decoded once and kept until its last use. So a rank holds at
most::

    (its lanes + ahead + 1) windows  +  (its lanes + threads) row groups         ahead = 2 · threads

Without shuffle a window is a view of one row group, and there is no buffer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from spark_ring.data.decode import Arrays
from spark_ring.data.schema import TensorSpec
from spark_ring.data.shards import EpochPlan

__all__ = ["THREADS", "Windows", "schedule"]

#: How the names of all reading threads begin.
THREADS = "spark_ring-read"

_Key = tuple[int, int]  # lane, number of the window in the lane


class Windows:
    """The windows of one rank and epoch. Only one thread may call it.

    Args:
        decode: number of a row group → its arrays; called from several threads.
        specs: the tensors.
        plan: the epoch's order.
        rank: whose windows.
        start_step: the first step wanted.
        threads: decoding threads.
    """

    def __init__(
        self,
        decode: Callable[[int], Arrays],
        specs: tuple[TensorSpec, ...],
        plan: EpochPlan,
        *,
        rank: int,
        start_step: int,
        threads: int,
    ) -> None:
        self._specs, self._plan = specs, plan
        self._order = schedule(plan, rank, start_step)
        self._place = {key: place for place, key in enumerate(self._order)}
        self._pieces = {key: _pieces(plan, key) for key in self._order}
        uses: dict[int, int] = {}
        for pieces in self._pieces.values():
            for group, _, _ in pieces:
                uses[group] = uses.get(group, 0) + 1
        self._groups = {group: _Group(decode, group, count) for group, count in uses.items()}
        self._spare: list[Arrays] = []  # buffers free for the next window; list operations are atomic
        self._ahead = 2 * threads
        self._submitted = 0
        self._made: dict[_Key, Future[Arrays]] = {}
        self._pool = ThreadPoolExecutor(threads, f"{THREADS}-decode")

    def get(self, lane: int, number: int) -> Arrays:
        """Return a window's rows in the epoch's order, waiting for them; valid until its release."""
        key = lane, number
        until = min(len(self._order), self._place[key] + 1 + self._ahead)
        while self._submitted < until:
            wanted = self._order[self._submitted]
            self._made[wanted] = self._pool.submit(self._make, wanted)
            self._submitted += 1
        return self._made[key].result()

    def release(self, lane: int, number: int) -> None:
        """Let go of a window; nothing happens if it is not held."""
        future = self._made.pop((lane, number), None)
        if future is not None and self._plan.shuffle:
            self._spare.append(future.result())

    def close(self, *, wait: bool = True) -> None:
        """End the threads; ``wait`` until they are gone."""
        self._pool.shutdown(wait=wait, cancel_futures=True)

    def _make(self, key: _Key) -> Arrays:
        pieces = self._pieces[key]
        decoded = [(self._groups[group].take(), low, high) for group, low, high in pieces]
        order = self._plan.window_order(*key)
        if order is None:
            ((arrays, low, high),) = decoded
            return {name: array[low:high] for name, array in arrays.items()}
        window = self._buffer()
        joined = self._buffer() if len(decoded) > 1 else None
        for spec in self._specs:
            parts = [arrays[spec.name][low:high] for arrays, low, high in decoded]
            rows = parts[0] if joined is None else np.concatenate(parts, out=joined[spec.name][: len(order)])
            # "clip" lets NumPy write straight into the target; the rows are in range by construction.
            rows.take(order, axis=0, out=window[spec.name][: len(order)], mode="clip")
        if joined is not None:
            self._spare.append(joined)
        return window

    def _buffer(self) -> Arrays:
        try:
            return self._spare.pop()
        except IndexError:
            rows = min(self._plan.window, self._plan.layout.rows)
            return {spec.name: np.empty((rows, *spec.shape), spec.dtype) for spec in self._specs}


class _Group:
    """One row group: decoded by the first window that needs it, dropped after the last."""

    def __init__(self, decode: Callable[[int], Arrays], group: int, uses: int) -> None:
        self._decode, self._group = decode, group
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._left = uses
        self._arrays: Arrays | None = None

    def take(self) -> Arrays:
        with self._lock:  # a second window waits here while the first decodes
            arrays = self._arrays if self._arrays is not None else self._decode(self._group)
            self._left -= 1
            self._arrays = arrays if self._left else None
            return arrays


def schedule(plan: EpochPlan, rank: int, start_step: int) -> list[_Key]:
    """Return the windows a rank needs from a step on, in the order of their first use."""
    layout = plan.layout
    first_step: dict[_Key, int] = {}
    for part in layout.parts(rank) if start_step < layout.full_steps else ():
        quota = layout.quota(part.lane)
        first = plan.window_of(part.lane, start_step * quota + part.first)
        last = plan.window_of(part.lane, (layout.full_steps - 1) * quota + part.last - 1)
        for number in range(first, last + 1):
            begin, end = plan.window_span(part.lane, number)
            # The first step whose share of the lane reaches into the window; a cut lane may miss a small one.
            step = max(start_step, (begin - part.last) // quota + 1)
            if step < layout.full_steps and step * quota + part.first < end:
                first_step[part.lane, number] = step
    start, stop = layout.tail(rank)
    if start < stop and start_step < layout.steps:
        lane = layout.effective_lanes - 1
        for number in range(plan.window_of(lane, start), plan.window_of(lane, stop - 1) + 1):
            first_step.setdefault((lane, number), layout.full_steps)
    return sorted(first_step, key=lambda key: (first_step[key], key))


def _pieces(plan: EpochPlan, key: _Key) -> list[tuple[int, int, int]]:
    lane, number = key
    origin = plan.layout.span(lane)[0]
    first, last = plan.window_span(lane, number)
    return plan.pieces(origin + first, origin + last)
