"""The reading threads of one epoch on one rank.

::

    decoding threads                    one assembling thread          consumer
    row groups → shuffled windows   →   chunks                     →   batches
    (a few ahead)                       (bounded)                      (slices of a chunk)

A *chunk* is one batch, or several small ones that are made together, a few megabytes: handing over each tiny
batch would cost more than making it. :mod:`spark_ring.data.windows` says what is held in memory besides
``prefetch + 2`` chunks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from spark_ring.data.channel import Channel
from spark_ring.data.decode import Arrays
from spark_ring.data.schema import TensorSpec
from spark_ring.data.shards import EpochPlan, Part
from spark_ring.data.windows import THREADS, Windows

__all__ = ["Chunk", "Pipeline"]

#: Rows to copy, in order: ``(arrays, first, last)``.
_Runs = list[tuple[Arrays, int, int]]


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
        self._windows = Windows(decode, specs, plan, rank=rank, start_step=start_step, threads=threads)
        self._oldest: dict[int, int] = {}  # lane → its oldest window still held
        self._thread = threading.Thread(target=self._run, name=f"{THREADS}-assemble", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the threads and wait for them, unless garbage collection brought one of them here."""
        wait = not threading.current_thread().name.startswith(THREADS)
        self.channel.close()
        self._windows.close(wait=wait)
        if wait:
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
            self._windows.close(wait=False)

    def _chunks(self) -> Iterator[Chunk]:
        layout = self._plan.layout
        step = self._start_step
        while step < layout.full_steps:
            stop = min(step + self._chunk_steps, layout.full_steps)
            yield self._full(step, stop)
            step = stop
        if step < layout.steps:
            yield self._tail(step)

    def _full(self, step: int, stop: int) -> Chunk:
        steps, rows = stop - step, self._plan.layout.batch_size
        arrays = self._empty(steps, rows)
        for part in self._parts:
            runs = self._part_runs(part, step, stop)
            for name, out in arrays.items():
                _fill(out[:, part.at : part.at + part.last - part.first], runs, name)
            self._release_before(part.lane, stop * self._plan.layout.quota(part.lane))
        return _chunk(step, arrays)

    def _tail(self, step: int) -> Chunk:
        start, stop = self._plan.layout.tail(self._rank)
        runs = self._runs(self._plan.layout.effective_lanes - 1, start, stop)
        arrays = self._empty(1, stop - start)
        for name, out in arrays.items():
            _fill(out, runs, name)
        return _chunk(step, arrays)

    def _empty(self, steps: int, rows: int) -> Arrays:
        return {spec.name: np.empty((steps, rows, *spec.shape), spec.dtype) for spec in self._specs}

    def _part_runs(self, part: Part, step: int, stop: int) -> _Runs:
        """Where the rows of some full steps lie that this rank takes from one lane."""
        quota = self._plan.layout.quota(part.lane)
        if part.last - part.first == quota:
            return self._runs(part.lane, step * quota, stop * quota)
        runs: _Runs = []
        for number in range(step, stop):
            runs += self._runs(part.lane, number * quota + part.first, number * quota + part.last)
        return runs

    def _runs(self, lane: int, position: int, stop: int) -> _Runs:
        """Split positions of a lane's order by window."""
        runs: _Runs = []
        while position < stop:
            number = self._plan.window_of(lane, position)
            first, last = self._plan.window_span(lane, number)
            end = min(stop, last)
            self._oldest.setdefault(lane, number)
            runs.append((self._windows.get(lane, number), position - first, end - first))
            position = end
        return runs

    def _release_before(self, lane: int, position: int) -> None:
        """Let go of the lane's windows that end before a position."""
        current = self._plan.window_of(lane, position)
        for number in range(self._oldest[lane], current):
            self._windows.release(lane, number)
        self._oldest[lane] = current


def _chunk(step: int, arrays: Arrays) -> Chunk:
    steps, rows = next(iter(arrays.values())).shape[:2]
    flat = {name: array.reshape(steps * rows, *array.shape[2:]) for name, array in arrays.items()}
    return Chunk(step, steps, rows, flat)


def _fill(out: np.ndarray, runs: _Runs, name: str) -> None:
    """Copy rows into ``out`` of shape ``(steps, rows, …)``, whose steps need not lie side by side."""
    if len(runs) == 1:
        arrays, first, last = runs[0]
        out[...] = arrays[name][first:last].reshape(out.shape)
        return
    step, at = 0, 0
    for arrays, first, last in runs:
        while first < last:
            width = min(last - first, out.shape[1] - at)
            out[step, at : at + width] = arrays[name][first : first + width]
            first, at = first + width, at + width
            if at == out.shape[1]:
                step, at = step + 1, 0
