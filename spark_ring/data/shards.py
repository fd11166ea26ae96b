"""Which rank reads which row in which step: pure arithmetic, no file is touched.

Goals. Every row once per epoch over all ranks. Every rank takes the same number of steps. The *set of rows in
step t does not depend on the world size*, only on the global batch G = batch size × ranks, so that N workers
train like one. And each rank reads, almost, only its own part of the data.

How. The row groups, permuted by (seed, epoch), make one virtual sequence of n rows. There are T = n // G full
steps and one short step for the remaining n − T·G rows. The G positions of a step are divided among V
*lanes*; a lane is a contiguous span of the virtual sequence and fills the same positions of every step::

    G = 8, V = 4                 step 0              step 1              …
    positions                  0 1│2 3│4 5│6 7     0 1│2 3│4 5│6 7
    lane                        0 │ 1 │ 2 │ 3       0 │ 1 │ 2 │ 3
    2 ranks                    rank 0 │ rank 1     rank 0 │ rank 1       (each reads two lanes)

    virtual sequence   |--- lane 0 ---|--- lane 1 ---|--- lane 2 ---|--- lane 3 ---|tail|
                        T·q₀ rows      T·q₁ rows      T·q₂ rows      T·q₃ rows      n−T·G

Lane l owns positions ceil(l·G/V) to ceil((l+1)·G/V) and takes q_l = their number of rows per step. Rank r
owns positions r·B to (r+1)·B; a lane that a rank border cuts is read by both ranks. The last lane continues
into the tail: what it has left after T steps is the short step, split over the ranks as evenly as possible
(a rank may get no row, yet it takes the step).

Inside a lane rows are shuffled in *windows* of at most ``window_rows // V`` rows: the second level of the
shuffle, and what bounds memory. A window holds as many whole row groups as fit, or an even part of one that
is larger, so that a row group need not be kept for two windows. Data that fit one window are simply shuffled
as a whole (V = 1). Without shuffle every row group is a window.

Without shuffle the order is the written one: step t is rows t·G to (t+1)·G, at every world size (V = 1).
Each rank then has to read every row group; a caller that does not care which rows make a step (validation)
asks for ``contiguous`` parts instead (V = ranks).

Randomness is Philox keyed by (seed, epoch, lane, window): the same on every platform and NumPy.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from spark_ring.errors import ConfigError, DataError

__all__ = ["EpochPlan", "Layout", "Part", "permutation"]

_GROUPS, _ROWS = 0, 1  # what a random stream is for


@dataclass(frozen=True)
class Part:
    """The part of one lane that one rank reads.

    Attributes:
        lane: the lane.
        first, last: the rank's share of the lane's positions in a step, counted within the lane.
        at: where that share begins in the rank's batch.
    """

    lane: int
    first: int
    last: int
    at: int


@dataclass(frozen=True)
class Layout:
    """How the rows of one split are dealt out; the same in every epoch.

    Attributes:
        rows: rows of the split.
        batch_size: rows per rank and full step.
        size: world size.
        lanes: lanes asked for; :attr:`effective_lanes` is what the batch allows.
    """

    rows: int
    batch_size: int
    size: int
    lanes: int

    def __post_init__(self) -> None:
        for name in ("batch_size", "size", "lanes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.rows < 1:
            raise DataError("the split has no rows; training needs at least one")

    @classmethod
    def plan(
        cls,
        rows: int,
        batch_size: int,
        size: int,
        lanes: int,
        *,
        shuffle: bool,
        contiguous: bool = False,
        window_rows: int,
    ) -> Layout:
        """Choose the number of lanes (see the top of this file) and return the layout."""
        if contiguous:
            chosen = size
        elif not shuffle or rows <= window_rows:
            chosen = 1
        else:
            chosen = lanes
        return cls(rows, batch_size, size, chosen)

    @property
    def global_batch(self) -> int:
        """G: rows of a full step over all ranks."""
        return self.batch_size * self.size

    @property
    def effective_lanes(self) -> int:
        """V: at most one lane per position, so that no lane is without one."""
        return min(self.lanes, self.global_batch)

    @property
    def full_steps(self) -> int:
        """T: steps in which every rank has ``batch_size`` rows."""
        return self.rows // self.global_batch

    @property
    def tail_rows(self) -> int:
        """Rows of the short last step over all ranks; 0 when there is none."""
        return self.rows % self.global_batch

    @property
    def steps(self) -> int:
        """Steps of an epoch, the same on every rank."""
        return self.full_steps + (self.tail_rows > 0)

    def first_position(self, lane: int) -> int:
        """First of the lane's positions in a step: ceil(l·G/V)."""
        return -(-lane * self.global_batch // self.effective_lanes)

    def quota(self, lane: int) -> int:
        """q_l: rows the lane gives to a full step."""
        return self.first_position(lane + 1) - self.first_position(lane)

    def span(self, lane: int) -> tuple[int, int]:
        """The lane's rows in the virtual sequence; the last lane includes the tail."""
        stop = self.full_steps * self.first_position(lane + 1)
        return self.full_steps * self.first_position(lane), self.rows if self.is_last(lane) else stop

    def is_last(self, lane: int) -> bool:
        """Whether the tail belongs to this lane."""
        return lane == self.effective_lanes - 1

    def parts(self, rank: int) -> list[Part]:
        """The lanes a rank reads in full steps, in the order of its batch."""
        low, high = rank * self.batch_size, (rank + 1) * self.batch_size
        parts = []
        for lane in range(self.effective_lanes):
            start, stop = self.first_position(lane), self.first_position(lane + 1)
            first, last = max(start, low), min(stop, high)
            if first < last:
                parts.append(Part(lane, first - start, last - start, first - low))
        return parts

    def tail(self, rank: int) -> tuple[int, int]:
        """The rank's share of the short step, as positions in the last lane's order."""
        lane = self.effective_lanes - 1
        start = self.full_steps * self.quota(lane)
        share = [start + edge * self.tail_rows // self.size for edge in (rank, rank + 1)]
        return share[0], share[1]

    def rank_rows(self, rank: int) -> int:
        """Rows of a rank in one epoch."""
        start, stop = self.tail(rank)
        return self.full_steps * self.batch_size + stop - start

    def step_rows(self, step: int) -> int:
        """Rows of one step over all ranks."""
        return self.global_batch if step < self.full_steps else self.tail_rows


class EpochPlan:
    """The order of all rows in one epoch: the virtual sequence and the windows of each lane.

    Args:
        layout: how rows are dealt out.
        group_rows: rows of each row group, in written order; groups may be empty.
        window_rows: rows that all lanes together shuffle at a time.
        seed: any integer.
        epoch: any integer; a new order for each.
        shuffle: ``False`` keeps the written order.
    """

    def __init__(
        self,
        layout: Layout,
        group_rows: Sequence[int],
        *,
        window_rows: int,
        seed: int,
        epoch: int,
        shuffle: bool,
    ) -> None:
        if window_rows < 1:
            raise ConfigError(f"window_rows is {window_rows}; it must be at least 1")
        self.layout = layout
        self.seed, self.epoch, self.shuffle = seed, epoch, shuffle
        self.window = max(1, window_rows // layout.effective_lanes)
        self._edges: dict[int, list[int]] = {}
        groups = len(group_rows)
        #: Row group at each place of the virtual sequence.
        self.group_order = self._random(groups, _GROUPS) if shuffle else np.arange(groups)
        #: First virtual row of each place, and the end.
        self.group_starts = np.concatenate(
            ([0], np.cumsum(np.asarray(group_rows, np.int64)[self.group_order]))
        )
        if int(self.group_starts[-1]) != layout.rows:
            raise DataError(
                f"row groups hold {int(self.group_starts[-1])} rows; the layout expects {layout.rows}"
            )

    def window_of(self, lane: int, position: int) -> int:
        """The window in which a position of the lane's order lies."""
        return bisect_right(self._lane_edges(lane), position) - 1

    def window_span(self, lane: int, window: int) -> tuple[int, int]:
        """The positions of a window in the lane's order, and its rows counted from the lane's start."""
        edges = self._lane_edges(lane)
        return edges[window], edges[window + 1]

    def window_order(self, lane: int, window: int) -> np.ndarray | None:
        """The permutation inside a window, counted from its first row; ``None`` for the written order."""
        if not self.shuffle:
            return None
        first, last = self.window_span(lane, window)
        return self._random(last - first, _ROWS, lane, window)

    def pieces(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Row groups that make virtual rows ``start`` to ``stop``: ``(row group, first row, last row)``."""
        place = int(np.searchsorted(self.group_starts, start, side="right")) - 1
        found = []
        while start < stop:
            origin, end = int(self.group_starts[place]), int(self.group_starts[place + 1])
            if end > start:
                found.append((int(self.group_order[place]), start - origin, min(stop, end) - origin))
                start = min(stop, end)
            place += 1
        return found

    @cached_property
    def _written_starts(self) -> np.ndarray:
        sizes = np.empty(len(self.group_order), np.int64)
        sizes[self.group_order] = np.diff(self.group_starts)
        return np.concatenate(([0], np.cumsum(sizes)))

    def rows_of(self, rank: int, step: int) -> np.ndarray:
        """The rows of one rank's batch, as numbers in written order.

        This is the definition in the plainest form; the reader does the same window by window.
        """
        layout = self.layout
        if step < layout.full_steps:
            wanted = [
                (
                    part.lane,
                    step * layout.quota(part.lane) + part.first,
                    step * layout.quota(part.lane) + part.last,
                )
                for part in layout.parts(rank)
            ]
        else:
            wanted = [(layout.effective_lanes - 1, *layout.tail(rank))]
        rows = [self._row(lane, position) for lane, first, last in wanted for position in range(first, last)]
        return np.asarray(rows, np.int64)

    def _row(self, lane: int, position: int) -> int:
        window = self.window_of(lane, position)
        first, _ = self.window_span(lane, window)
        order = self.window_order(lane, window)
        inside = position - first if order is None else int(order[position - first])
        virtual = self.layout.span(lane)[0] + first + inside
        ((group, row, _),) = self.pieces(virtual, virtual + 1)
        return int(self._written_starts[group]) + row

    def _lane_edges(self, lane: int) -> list[int]:
        """First position of each window of a lane, and the end."""
        if lane not in self._edges:
            edges, end = [0], 0
            for _, low, high in self.pieces(*self.layout.span(lane)):
                rows = high - low
                if end > edges[-1] and (not self.shuffle or end + rows - edges[-1] > self.window):
                    edges.append(end)
                if self.shuffle and rows > self.window:  # even parts of one row group
                    parts = -(-rows // self.window)
                    edges += [end + part * rows // parts for part in range(1, parts + 1)]
                end += rows
            if end > edges[-1]:
                edges.append(end)
            self._edges[lane] = edges
        return self._edges[lane]

    def _random(self, count: int, *purpose: int) -> np.ndarray:
        return permutation(count, self.seed, (purpose[0], self.epoch, *purpose[1:]))


def permutation(count: int, seed: int, stream: tuple[int, ...]) -> np.ndarray:
    """Return a random order of ``count`` things, int64, the same on every platform and NumPy version.

    NumPy promises a stable Philox but not a stable ``Generator.permutation``. So each item gets 32 random
    bits and items are sorted by them: by the low half, then stably by the high half (radix sorts).
    """
    sequence = np.random.SeedSequence(seed % 2**64, spawn_key=tuple(part % 2**32 for part in stream))
    words = np.asarray(np.random.Philox(sequence).random_raw((count + 1) // 2), "<u8")
    halves = words.view("<u2")
    low, high = halves[0::2][:count], halves[1::2][:count]
    order = np.argsort(low, kind="stable")
    return np.asarray(order[np.argsort(high[order], kind="stable")], np.int64)
