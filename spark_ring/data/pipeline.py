"""The reading threads of one epoch on one rank.

::

    decoding threads            one assembling thread                     consumer
    row group → arrays   →      windows of this rank's lanes → chunks  →  batches
    (a few ahead)               (shuffled rows, gathered)   (bounded)     (slices of a chunk)

A *chunk* is one batch, or several small ones that are gathered together, about a megabyte: handing over each
tiny batch would cost more than making it.

A decoded row group is shared by all windows of this rank that need rows of it and let go after the last. A
window inside one row group is a view of it; a window that spans several is a copy. So a rank holds at most::

    window_rows · (its share of the lanes)  +  (2 · its lanes + ahead) row groups  +  (prefetch + 2) chunks

where the 2 is one row group under the current window and one that the lane shares with its neighbour.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from spark_ring.data.channel import Channel
from spark_ring.data.decode import Arrays
from spark_ring.data.schema import TensorSpec
from spark_ring.data.shards import EpochPlan, Part

__all__ = ["Chunk", "Pipeline"]


@dataclass(frozen=True)
class Chunk:
    """Consecutive batches of one rank in one array per tensor.

    Attributes:
        step: the first batch's step.
        steps: how many batches.
        rows: rows of each.
        arrays: tensor name → ``(steps * rows, *shape)``.
    """

    step: int
    steps: int
    rows: int
    arrays: Arrays


@dataclass(frozen=True)
class _Window:
    first: int
    order: np.ndarray | None
    arrays: Arrays


class Pipeline:
    """Makes the chunks of one epoch in the background.

    Args:
        decode: number of a row group → its arrays; called from several threads.
        specs: the tensors.
        plan: the epoch's order.
        rank: whose batches to make.
        start_step: the first step wanted.
        chunk_steps: full steps made at a time.
        prefetch: chunks held ready.
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
        chunk_steps: int,
        prefetch: int,
        threads: int,
    ) -> None:
        self.channel: Channel[Chunk] = Channel(prefetch)
        self._specs, self._plan, self._rank = specs, plan, rank
        self._start_step, self._chunk_steps = start_step, chunk_steps
        self._parts = plan.layout.parts(rank)
        self._groups = _Groups(decode, _first_uses(plan, rank, start_step), threads)
        self._windows: dict[tuple[int, int], _Window] = {}
        self._thread = threading.Thread(target=self._run, name="spark_ring-read", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the threads and wait for them."""
        self.channel.close()
        self._groups.close()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            for chunk in self._chunks():
                if not self.channel.put(chunk):
                    return
            self.channel.end()
        except BaseException as error:  # whatever it is, the consumer must hear of it
            self.channel.end(error)
        finally:
            self._windows.clear()
            self._groups.close(wait=False)

    def _chunks(self) -> Iterator[Chunk]:
        layout = self._plan.layout
        step = self._start_step
        while step < layout.full_steps:
            stop = min(step + self._chunk_steps, layout.full_steps)
            yield self._full(step, stop)
            for part in self._parts:
                self._forget(part.lane, stop * layout.quota(part.lane))
            step = stop
        if step < layout.steps:
            start, end = layout.tail(self._rank)
            runs = self._runs(layout.effective_lanes - 1, np.arange(start, end))
            yield Chunk(step, 1, end - start, {s.name: self._gather(runs, s) for s in self._specs})

    def _full(self, step: int, stop: int) -> Chunk:
        steps, rows = stop - step, self._plan.layout.batch_size
        runs = [(part, self._runs(part.lane, self._positions(part, step, stop))) for part in self._parts]
        arrays = {}
        for spec in self._specs:
            if len(runs) == 1:
                arrays[spec.name] = self._gather(runs[0][1], spec)
                continue
            out = np.empty((steps, rows, *spec.shape), spec.dtype)
            for part, pieces in runs:
                width = part.last - part.first
                taken = self._gather(pieces, spec)
                out[:, part.at : part.at + width] = taken.reshape(steps, width, *spec.shape)
            arrays[spec.name] = out.reshape(steps * rows, *spec.shape)
        return Chunk(step, steps, rows, arrays)

    def _positions(self, part: Part, step: int, stop: int) -> np.ndarray:
        quota = self._plan.layout.quota(part.lane)
        if part.last - part.first == quota:
            return np.arange(step * quota, stop * quota)
        inside = np.arange(part.first, part.last)
        return (np.arange(step, stop)[:, None] * quota + inside).reshape(-1)

    def _runs(self, lane: int, positions: np.ndarray) -> list[tuple[_Window, np.ndarray]]:
        """Split ascending positions of a lane's order by window: ``(window, rows in it)``."""
        runs, done = [], 0
        while done < len(positions):
            number = self._plan.window_of(lane, int(positions[done]))
            window = self._window(lane, number)
            end = int(np.searchsorted(positions, self._plan.window_span(lane, number)[1]))
            inside = positions[done:end] - window.first
            runs.append((window, inside if window.order is None else window.order[inside]))
            done = end
        return runs

    def _gather(self, runs: list[tuple[_Window, np.ndarray]], spec: TensorSpec) -> np.ndarray:
        taken = [np.take(window.arrays[spec.name], rows, axis=0) for window, rows in runs]
        if len(taken) == 1:
            return taken[0]
        return np.concatenate(taken) if taken else np.empty((0, *spec.shape), spec.dtype)

    def _window(self, lane: int, number: int) -> _Window:
        window = self._windows.get((lane, number))
        if window is None:
            first, last = self._plan.window_span(lane, number)
            start = self._plan.layout.span(lane)[0]
            pieces = self._plan.pieces(start + first, start + last)
            decoded = [(self._groups.take(group), low, high) for group, low, high in pieces]
            arrays = {s.name: _join([a[s.name][low:high] for a, low, high in decoded]) for s in self._specs}
            window = _Window(first, self._plan.window_order(lane, number), arrays)
            self._windows[lane, number] = window
        return window

    def _forget(self, lane: int, position: int) -> None:
        """Let go of the lane's windows before a position."""
        current = self._plan.window_of(lane, position)
        for key in [key for key in self._windows if key[0] == lane and key[1] < current]:
            del self._windows[key]


class _Groups:
    """Decoded row groups: read ahead in the order of first use, each dropped after its last use.

    Only the assembling thread calls :meth:`take`.
    """

    def __init__(self, decode: Callable[[int], Arrays], uses: dict[int, int], threads: int) -> None:
        self._decode = decode
        self._order = list(uses)
        self._place = {group: place for place, group in enumerate(self._order)}
        self._left = dict(uses)
        self._ahead = 2 * threads
        self._submitted = 0
        self._futures: dict[int, Future[Arrays]] = {}
        self._pool = ThreadPoolExecutor(threads, "spark_ring-decode")

    def take(self, group: int) -> Arrays:
        """Return a row group, for one of its uses."""
        until = min(len(self._order), self._place[group] + 1 + self._ahead)
        while self._submitted < until:
            wanted = self._order[self._submitted]
            self._futures[wanted] = self._pool.submit(self._decode, wanted)
            self._submitted += 1
        arrays = self._futures[group].result()
        self._left[group] -= 1
        if not self._left[group]:
            del self._futures[group]
        return arrays

    def close(self, *, wait: bool = True) -> None:
        self._pool.shutdown(wait=wait, cancel_futures=True)


def _first_uses(plan: EpochPlan, rank: int, start_step: int) -> dict[int, int]:
    """Row group → number of windows of this rank that need it, in the order of their first use."""
    layout = plan.layout
    windows: dict[tuple[int, int], int] = {}  # (lane, window) → first step
    for part in layout.parts(rank) if start_step < layout.full_steps else ():
        quota = layout.quota(part.lane)
        first = plan.window_of(part.lane, start_step * quota + part.first)
        last = plan.window_of(part.lane, (layout.full_steps - 1) * quota + part.last - 1)
        for number in range(first, last + 1):
            windows[part.lane, number] = max(start_step, plan.window_span(part.lane, number)[0] // quota)
    start, stop = layout.tail(rank)
    if start < stop:
        lane = layout.effective_lanes - 1
        for number in range(plan.window_of(lane, start), plan.window_of(lane, stop - 1) + 1):
            windows.setdefault((lane, number), layout.full_steps)
    uses: dict[int, int] = {}
    for lane, number in sorted(windows, key=lambda key: (windows[key], key)):
        first, last = plan.window_span(lane, number)
        origin = layout.span(lane)[0]
        for group, _, _ in plan.pieces(origin + first, origin + last):
            uses[group] = uses.get(group, 0) + 1
    return uses


def _join(parts: list[np.ndarray]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
