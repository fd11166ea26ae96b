"""Windows: order, sharing of row groups, memory."""

from __future__ import annotations

import threading
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numbered_rows import tensor

from spark_ring.data.decode import Arrays
from spark_ring.data.shards import EpochPlan, Layout
from spark_ring.data.windows import Windows, schedule

SPECS = (tensor("x0", "int64", (2,)),)


class Source:
    """Row groups in memory that count how often they are decoded and how many are alive."""

    def __init__(self, groups: list[int]) -> None:
        self.starts = np.concatenate(([0], np.cumsum(groups)))
        self.decoded: list[int] = []
        self.alive = self.peak = 0
        self._lock = threading.Lock()

    def __call__(self, group: int) -> Arrays:
        rows = np.arange(self.starts[group], self.starts[group + 1])
        array = np.stack([rows, -rows], axis=1)
        with self._lock:
            self.decoded.append(group)
            self.alive += 1
            self.peak = max(self.peak, self.alive)
        weakref.finalize(array, self._gone)
        return {"x0": array}

    def _gone(self) -> None:
        with self._lock:
            self.alive -= 1


def make_plan(
    groups: list[int], batch: int, size: int, lanes: int, window: int, *, shuffle: bool = True
) -> EpochPlan:
    layout = Layout.plan(sum(groups), batch, size, lanes, shuffle=shuffle, window_rows=window)
    return EpochPlan(layout, groups, window_rows=window, seed=3, epoch=1, shuffle=shuffle)


def read_all(windows: Windows, plan: EpochPlan, rank: int, start_step: int = 0) -> list[list[int]]:
    """Read step by step as the pipeline does, letting go of each lane's windows behind."""
    layout, steps = plan.layout, []
    for step in range(start_step, layout.steps):
        rows: list[int] = []
        wanted = [(p.lane, step * layout.quota(p.lane) + p.first, step * layout.quota(p.lane) + p.last)
                  for p in layout.parts(rank)]  # fmt: skip
        if step == layout.full_steps:
            wanted = [(layout.effective_lanes - 1, *layout.tail(rank))]
        for lane, first, last in wanted:
            for position in range(first, last):
                number = plan.window_of(lane, position)
                array = windows.get(lane, number)["x0"]
                row = array[position - plan.window_span(lane, number)[0]]
                assert row[0] == -row[1]
                rows.append(int(row[0]))
            for number in range(plan.window_of(lane, last)):
                windows.release(lane, number)
        steps.append(rows)
    return steps


@settings(max_examples=60, deadline=None)
@given(
    groups=st.lists(st.integers(0, 30), min_size=1, max_size=10).filter(lambda groups: sum(groups) > 0),
    batch=st.integers(1, 7),
    size=st.integers(1, 4),
    lanes=st.integers(1, 9),
    window=st.integers(1, 100),
    threads=st.integers(1, 3),
    data=st.data(),
)
def test_rows_are_those_of_the_plan(
    groups: list[int], batch: int, size: int, lanes: int, window: int, threads: int, data: st.DataObject
) -> None:
    """From any step on, on any rank; and each row group is decoded at most once."""
    plan = make_plan(groups, batch, size, lanes, window)
    rank = data.draw(st.integers(0, size - 1))
    start = data.draw(st.integers(0, plan.layout.steps))
    source = Source(groups)
    windows = Windows(source, SPECS, plan, rank=rank, start_step=start, threads=threads)
    try:
        found = read_all(windows, plan, rank, start)
    finally:
        windows.close()
    assert found == [list(plan.rows_of(rank, step)) for step in range(start, plan.layout.steps)]
    assert len(source.decoded) == len(set(source.decoded))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=10),
    st.integers(1, 7),
    st.integers(1, 4),
    st.integers(1, 9),
    st.integers(1, 100),
    st.data(),
)
def test_exactly_the_windows_that_a_rank_needs_are_scheduled(
    groups: list[int], batch: int, size: int, lanes: int, window: int, data: st.DataObject
) -> None:
    plan = make_plan(groups, batch, size, lanes, window)
    layout = plan.layout
    rank = data.draw(st.integers(0, size - 1))
    start = data.draw(st.integers(0, layout.steps))
    first_step: dict[tuple[int, int], int] = {}
    for step in range(start, layout.steps):
        if step < layout.full_steps:
            for p in layout.parts(rank):
                for i in range(p.first, p.last):
                    key = p.lane, plan.window_of(p.lane, step * layout.quota(p.lane) + i)
                    first_step.setdefault(key, step)
        else:
            for position in range(*layout.tail(rank)):
                lane = layout.effective_lanes - 1
                first_step.setdefault((lane, plan.window_of(lane, position)), step)
    expected = sorted(first_step, key=lambda key: (first_step[key], key))
    assert schedule(plan, rank, start) == expected


@pytest.mark.parametrize(("size", "lanes"), [(1, 4), (2, 8), (4, 8)])
def test_memory_is_bounded(size: int, lanes: int) -> None:
    """Decoded row groups and window buffers alive at a time, whatever the number of rows."""
    groups, threads = [50] * 200, 2
    plan = make_plan(groups, 8, size, lanes, window=100 * lanes)
    own_lanes = lanes // size
    source = Source(groups)
    windows = Windows(source, SPECS, plan, rank=size - 1, start_step=0, threads=threads)
    buffers: set[int] = set()
    original = windows._buffer

    def counted() -> Arrays:
        made = original()
        buffers.add(made["x0"].ctypes.data)
        return made

    windows._buffer = counted  # type: ignore[method-assign]
    try:
        read_all(windows, plan, size - 1)
    finally:
        windows.close()
    # A window here is two row groups; each of the threads holds those it is joining.
    assert source.peak <= own_lanes + 2 * threads + 1
    assert len(buffers) <= own_lanes + 2 * threads + 1 + threads
    assert len(source.decoded) >= 200 // size


def test_ranks_decode_little_twice() -> None:
    """All ranks together decode each row group once, but for those that a border between lanes cuts."""
    groups = [40] * 64
    total = 0
    for rank in range(4):
        plan = make_plan(groups, 16, 4, 16, window=640)
        source = Source(groups)
        windows = Windows(source, SPECS, plan, rank=rank, start_step=0, threads=1)
        try:
            read_all(windows, plan, rank)
        finally:
            windows.close()
        total += len(source.decoded)
    assert 64 <= total <= 64 + 4


def test_without_shuffle_windows_are_views() -> None:
    plan = make_plan([5, 7], 3, 1, 1, window=4, shuffle=False)
    source = Source([5, 7])
    windows = Windows(source, SPECS, plan, rank=0, start_step=0, threads=1)
    try:
        assert windows.get(0, 0)["x0"].base is not None
        assert len(windows.get(0, 1)["x0"]) == 7
        windows.release(0, 0)
        assert source.alive == 1
    finally:
        windows.close()


def test_an_error_of_a_row_group_reaches_every_window_that_needs_it() -> None:
    plan = make_plan([100], 5, 1, 4, window=40)

    def fail(group: int) -> Arrays:
        raise ZeroDivisionError(f"row group {group}")

    windows = Windows(fail, SPECS, plan, rank=0, start_step=0, threads=2)
    try:
        for lane in range(4):
            with pytest.raises(ZeroDivisionError, match="row group 0"):
                windows.get(lane, 0)
    finally:
        windows.close()
