"""The arithmetic of lanes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ring.data.shards import EpochPlan, Layout, permutation
from spark_ring.errors import ConfigError, DataError

SIZES = (1, 2, 3, 4, 8)


def plan(
    groups: list[int],
    batch: int,
    size: int,
    *,
    lanes: int = 16,
    window: int = 64,
    seed: int = 7,
    epoch: int = 1,
    shuffle: bool = True,
    contiguous: bool = False,
) -> EpochPlan:
    layout = Layout.plan(
        sum(groups), batch, size, lanes, shuffle=shuffle, contiguous=contiguous, window_rows=window
    )
    return EpochPlan(layout, groups, window_rows=window, seed=seed, epoch=epoch, shuffle=shuffle)


def steps(made: EpochPlan) -> list[list[np.ndarray]]:
    """Rows of each step and rank."""
    layout = made.layout
    return [[made.rows_of(rank, step) for rank in range(layout.size)] for step in range(layout.steps)]


groups_strategy = st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(lambda groups: sum(groups) > 0)
case_strategy = st.fixed_dictionaries(
    {
        "groups": groups_strategy,
        "batch": st.integers(1, 9),
        "size": st.sampled_from(SIZES),
        "lanes": st.integers(1, 20),
        "window": st.integers(1, 120),
        "seed": st.integers(-(2**63), 2**63 - 1),
        "shuffle": st.booleans(),
    }
)


@settings(max_examples=200, deadline=None)
@given(case_strategy)
def test_every_row_is_read_exactly_once(case: dict) -> None:
    """Cases 38, 58, 59: whatever the counts."""
    made = plan(**case)
    rows = np.concatenate([rank for step in steps(made) for rank in step])
    assert sorted(rows) == list(range(sum(case["groups"])))


@settings(max_examples=200, deadline=None)
@given(case_strategy)
def test_counts_are_those_of_the_layout(case: dict) -> None:
    """Case 58: every rank takes the same number of steps, and knows each step's rows over all ranks."""
    made = plan(**case)
    layout = made.layout
    taken = steps(made)
    assert len(taken) == layout.steps == -(-layout.rows // layout.global_batch)
    for step, ranks in enumerate(taken):
        assert sum(map(len, ranks)) == layout.step_rows(step) > 0
        if step < layout.full_steps:
            assert [len(rank) for rank in ranks] == [layout.batch_size] * layout.size
        else:
            assert max(map(len, ranks)) - min(map(len, ranks)) <= 1
    for rank in range(layout.size):
        assert sum(len(ranks[rank]) for ranks in taken) == layout.rank_rows(rank)


@settings(max_examples=60, deadline=None)
@given(groups_strategy, st.integers(1, 3), st.integers(1, 20), st.integers(1, 150), st.booleans())
def test_global_batches_do_not_depend_on_the_world_size(
    groups: list[int], unit: int, lanes: int, window: int, shuffle: bool
) -> None:
    global_batch = 24 * unit
    expected = None
    for size in SIZES:
        made = plan(groups, global_batch // size, size, lanes=lanes, window=window, shuffle=shuffle)
        batches = [sorted(np.concatenate(ranks)) for ranks in steps(made)]
        expected = expected or batches
        assert batches == expected


def test_same_seed_and_epoch_give_the_same_order_and_others_do_not() -> None:
    groups = [50] * 8

    def order(seed: int, epoch: int) -> list[int]:
        return list(
            np.concatenate(
                [rank for step in steps(plan(groups, 8, 2, seed=seed, epoch=epoch)) for rank in step]
            )
        )

    assert order(7, 1) == order(7, 1)
    assert order(7, 1) != order(7, 2)
    assert order(7, 1) != order(8, 1)
    assert order(-1, 1) != order(1, 1)


def test_the_random_order_is_pinned() -> None:
    """The same on every platform and NumPy version: a resumed run must find the rows it left."""
    assert list(permutation(10, 5, (1, 2, 3))) == PINNED
    assert sorted(permutation(1001, 5, (0, 1))) == list(range(1001))
    assert list(permutation(0, 5, (0,))) == []
    assert list(permutation(1, 5, (0,))) == [0]


PINNED = [6, 0, 2, 8, 7, 3, 9, 4, 1, 5]


def test_random_orders_are_uniform() -> None:
    """Each of 6 orders of 3 items about equally often: chi-square below the 0.1 % limit for 5 degrees."""
    counts: dict[tuple[int, ...], int] = {}
    for stream in range(3000):
        key = tuple(int(i) for i in permutation(3, 1, (stream,)))
        counts[key] = counts.get(key, 0) + 1
    assert sum((count - 500) ** 2 / 500 for count in counts.values()) < 20.5
    assert len(counts) == 6


def test_one_rank_without_shuffle_reads_in_written_order() -> None:
    """Case 41."""
    taken = steps(plan([5, 0, 7, 13], 4, 1, shuffle=False))
    assert [list(ranks[0]) for ranks in taken] == [list(range(s, min(s + 4, 25))) for s in range(0, 25, 4)]


def test_several_ranks_without_shuffle_share_each_written_batch() -> None:
    taken = steps(plan([5, 0, 7, 13], 4, 3, shuffle=False))
    assert [[list(rank) for rank in ranks] for ranks in taken] == [
        [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]],
        [[12, 13, 14, 15], [16, 17, 18, 19], [20, 21, 22, 23]],
        [[], [], [24]],
    ]


def test_contiguous_parts_overlap_no_more_than_a_row_group() -> None:
    made = plan([10] * 12, 5, 4, shuffle=False, contiguous=True)
    taken = steps(made)
    for rank in range(4):
        rows = np.concatenate([ranks[rank] for ranks in taken])
        assert list(rows) == list(range(rank * 30, rank * 30 + 30))


@pytest.mark.parametrize(
    ("groups", "batch", "size", "expected"),
    [
        ([25], 8, 2, [[8, 8], [4, 5]]),  # Case 32: 25 rows in one block, 2 workers
        ([1], 4, 4, [[0, 0, 0, 1]]),  # Case 32: fewer rows than workers
        ([3], 1, 8, [[0, 0, 1, 0, 0, 1, 0, 1]]),
        ([9], 1, 2, [[1, 1]] * 4 + [[0, 1]]),  # Case 58: 5 and 4 batches
        ([4, 4], 2, 2, [[2, 2], [2, 2]]),  # no tail
    ],
)
def test_awkward_counts(groups: list[int], batch: int, size: int, expected: list[list[int]]) -> None:
    """Cases 32 and 58: the short last step is split as evenly as possible; some ranks may get no row."""
    assert [[len(rank) for rank in ranks] for ranks in steps(plan(groups, batch, size))] == expected


def test_ranks_read_only_their_lanes() -> None:
    """With lanes a multiple of the ranks, no lane is read by two ranks."""
    layout = Layout(10_000, 32, 4, 16)
    lanes = [{part.lane for part in layout.parts(rank)} for rank in range(4)]
    assert set().union(*lanes) == set(range(16))
    assert sum(map(len, lanes)) == 16


def test_a_lane_cut_by_a_rank_border_is_read_by_both() -> None:
    layout = Layout(10_000, 10, 3, 4)
    covered = [(p.lane, i) for rank in range(3) for p in layout.parts(rank) for i in range(p.first, p.last)]
    assert sorted(covered) == [(lane, i) for lane in range(4) for i in range(layout.quota(lane))]
    assert sum(len(layout.parts(rank)) for rank in range(3)) == 6


def test_windows_are_whole_row_groups_or_even_parts_of_one() -> None:
    made = plan([100, 30, 30, 30, 250], 4, 1, lanes=1, window=100)
    # 440 rows do not fit one window, yet with one lane there is one sequence.
    groups = made.group_order
    edges = [made.window_span(0, number) for number in range(_window_count(made, 0))]
    assert edges[0][0] == 0
    assert edges[-1][1] == 440
    assert all(a[1] == b[0] for a, b in pairwise(edges))
    assert all(0 < last - first <= 100 for first, last in edges)
    for first, last in edges:
        pieces = made.pieces(first, last)
        if len(pieces) > 1:
            assert all((low, high) == (0, [100, 30, 30, 30, 250][group]) for group, low, high in pieces)
    assert sorted(groups) == list(range(5))


def _window_count(made: EpochPlan, lane: int) -> int:
    start, stop = made.layout.span(lane)
    return made.window_of(lane, stop - start - 1) + 1


def test_data_within_one_window_are_shuffled_as_a_whole() -> None:
    """A small dataset in one row group: any row can meet any other, and any can be in the short step."""
    tails = set()
    for epoch in range(40):
        made = plan([20], 4, 2, window=20, epoch=epoch)
        assert made.layout.effective_lanes == 1
        tails |= {int(row) for rank in range(2) for row in made.rows_of(rank, 2)}
    assert tails == set(range(20))


def test_batches_mix_row_groups() -> None:
    """With more data than the window, a batch has rows of as many row groups as there are lanes."""
    made = plan([64] * 64, 32, 2, window=1024, lanes=16)
    starts = np.arange(0, 64 * 64, 64)
    for ranks in steps(made)[:10]:
        groups = np.searchsorted(starts, np.concatenate(ranks), side="right")
        assert len(set(groups)) >= 15


def test_resuming_needs_nothing_of_the_steps_before() -> None:
    """The rows of a step are a function of the plan alone."""
    whole = steps(plan([17, 40, 3], 3, 2, window=8, lanes=5))
    again = plan([17, 40, 3], 3, 2, window=8, lanes=5)
    for step in (9, 4, 7):
        assert [list(again.rows_of(rank, step)) for rank in range(2)] == [list(rank) for rank in whole[step]]


def test_no_rows_is_an_error_that_says_so() -> None:
    with pytest.raises(DataError, match="no rows"):
        Layout(0, 4, 2, 16)


@pytest.mark.parametrize(("batch", "size", "lanes"), [(0, 1, 1), (1, 0, 1), (1, 1, 0), (-3, 1, 1)])
def test_numbers_below_one_are_refused_by_name(batch: int, size: int, lanes: int) -> None:
    with pytest.raises(ConfigError, match="must be at least 1"):
        Layout(10, batch, size, lanes)


def test_row_groups_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(DataError, match="hold 5 rows; the layout expects 6"):
        EpochPlan(Layout(6, 1, 1, 1), [5], window_rows=8, seed=0, epoch=0, shuffle=True)
