"""Groups inside a communicator: members in any order, overlapping, nested, at once from several threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from spark_ring.communicator import Communicator
from spark_ring.errors import (
    AbortedError,
    ClosedError,
    CommunicatorError,
    DataError,
    MismatchError,
    RendezvousError,
)
from spark_ring.groups import _Asked
from tests.collectives.threads import together

TRANSPORTS = pytest.mark.parametrize("transport", ["shm", "tcp"])


def _sum(comm: Communicator, value: float = 1.0) -> list[float]:
    result: list[float] = comm.allreduce(np.full(3, value)).tolist()
    return result


@TRANSPORTS
def test_a_group_reduces_over_its_members_only_and_the_others_get_none(transport: str) -> None:
    def work(comm: Communicator) -> Any:
        group = comm.group([3, 1])
        if group is None:
            return None
        assert (group.rank, group.size, group.ranks) == ([3, 1].index(comm.rank), 2, (3, 1))
        gathered = group.allgather(np.array([comm.rank])).tolist()
        return gathered, _sum(group, comm.rank), group.transport

    expected = ([3, 1], [4.0] * 3, transport)
    assert together(work, 4, transport=transport) == [None, expected, None, expected]


def test_a_group_over_two_pretended_hosts_is_two_level() -> None:
    def work(comm: Communicator) -> Any:
        group = comm.group([4, 0, 2, 1])
        return None if group is None else (group.transport, _sum(group, 2.0**comm.rank))

    answers = together(work, 5, host_id=lambda rank: f"host {rank // 2 % 2}")
    assert [answer for answer in answers if answer] == [("shm+tcp", [23.0] * 3)] * 4


def test_overlapping_groups_the_world_and_groups_of_one_work_side_by_side() -> None:
    def work(comm: Communicator) -> list[float]:
        sums = []
        groups = [comm.group(ranks) for ranks in ([0, 1], [1, 2], [2, 0], [0], [1, 0, 2])]
        for _ in range(3):
            sums.append(_sum(comm, 10.0)[0])
            sums += [_sum(group, comm.rank + 1.0)[0] for group in groups if group is not None]
        return sums

    assert together(work, 3) == [
        [30.0, 3.0, 4.0, 1.0, 6.0] * 3,
        [30.0, 3.0, 5.0, 6.0] * 3,
        [30.0, 5.0, 4.0, 6.0] * 3,
    ]


def test_a_group_has_groups() -> None:
    def work(comm: Communicator) -> list[int] | None:
        outer = comm.group([3, 2, 1], "outer")
        inner = outer.group([2, 0], "inner") if outer is not None else None
        if inner is None:
            return None
        assert inner.ranks == (2, 0)
        return inner.allgather(np.array([comm.rank])).tolist()  # type: ignore[no-any-return]

    assert together(work, 4) == [None, [1, 3], None, [1, 3]]


def test_the_same_group_again_is_another_group() -> None:
    def work(comm: Communicator) -> list[Any]:
        first, second = comm.group([0, 1]), comm.group([0, 1])
        assert first is not None
        assert second is not None
        first.close()
        with pytest.raises(ClosedError):
            _sum(first)
        return [_sum(second)[0], _sum(comm)[0]]

    assert together(work, 2) == [[2.0, 2.0]] * 2


def test_secrets_differ_by_members_order_name_and_count() -> None:
    made = [
        _Asked((0, 1), "").secret(b"s", 0),
        _Asked((0, 1), "").secret(b"s", 1),
        _Asked((1, 0), "").secret(b"s", 0),
        _Asked((0, 1), "x").secret(b"s", 0),
        _Asked((0, 1), "").secret(b"t", 0),
    ]
    assert len(set(made)) == len(made)
    assert all(len(secret) == 32 for secret in made)


def test_split_orders_by_key_then_rank() -> None:
    def work(comm: Communicator) -> Any:
        color, key = [(0, 5), (1, 0), (0, 5), (None, 0), (0, -1)][comm.rank]
        group = comm.split(color, key)
        by_rank = comm.split(7)
        assert by_rank is not None
        assert by_rank.ranks == (0, 1, 2, 3, 4)
        return None if group is None else (group.name, group.ranks, _sum(group, comm.rank)[0])

    even = ("color 0", (4, 0, 2), 6.0)
    assert together(work, 5) == [even, ("color 1", (1,), 1.0), even, None, even]


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([], "ranks is empty"),
        ([0, 2], "2 is not a rank; the ranks here go from 0 to 1"),
        ([-1], "-1 is not a rank"),
        ([1, 1], "rank 1 is given twice"),
        ([0.5], "must be a sequence of integers"),
        (0, "must be a sequence of integers"),
    ],
)
def test_members_that_cannot_be_are_refused_on_every_rank(ranks: Any, words: str) -> None:
    def work(comm: Communicator) -> float:
        with pytest.raises(DataError, match=words):
            comm.group(ranks)
        return _sum(comm)[0]

    assert together(work, 2) == [2.0] * 2


def test_a_mistake_of_one_rank_is_told_to_all_and_the_parent_stays_usable() -> None:
    def work(comm: Communicator) -> list[Any]:
        mistaken = comm.rank == 1
        with pytest.raises(DataError if mistaken else RendezvousError, match=r"9 is not a rank") as caught:
            comm.group([0, 9] if mistaken else [0, 2])
        with pytest.raises(DataError if mistaken else RendezvousError, match=r"color must be an integer"):
            comm.split("red" if mistaken else 1)  # type: ignore[arg-type]
        group = comm.group([0, 2])
        return [getattr(caught.value, "rank", None), group and _sum(group)[0]]

    assert together(work, 3) == [[1, 2.0], [None, None], [1, 2.0]]


def test_ranks_that_want_different_groups_hear_both_sides() -> None:
    def work(comm: Communicator) -> float:
        with pytest.raises(MismatchError, match=r"rank 0 for ranks \[0, 1\], rank 2 for ranks \[1, 0\]"):
            comm.group([1, 0] if comm.rank == 2 else [0, 1])
        return _sum(comm)[0]

    assert together(work, 3) == [3.0] * 3


def test_closing_the_parent_closes_its_groups_and_theirs() -> None:
    def work(comm: Communicator) -> None:
        group = comm.group([0, 1])
        assert group is not None
        inner = group.group([1, 0])
        assert inner is not None
        comm.close()
        for closed in (group, inner):
            with pytest.raises(ClosedError):
                closed.barrier()

    together(work, 2)


def test_a_group_that_nobody_holds_any_more_is_gone() -> None:
    def work(comm: Communicator) -> int:
        for _ in range(5):
            group = comm.group([0, 1])
            assert group is not None
            group.barrier()
            del group
        return len(comm._open_groups())

    assert together(work, 2) == [0, 0]


def test_an_abort_of_the_parent_ends_the_groups_too() -> None:
    def work(comm: Communicator) -> str:
        group = comm.group([1, 0], "pair")
        assert group is not None
        if comm.rank == 0:
            comm.abort("out of data")
            return ""
        with pytest.raises(AbortedError) as caught:
            group.barrier()
        assert caught.value.rank == 1  # of the group
        return str(caught.value)

    assert "out of data [in group 'pair', its ranks from 0 being 1, 0]" in together(work, 2)[1]


def test_errors_name_the_group_and_its_ranks() -> None:
    def work(comm: Communicator) -> str:
        outer = comm.group([3, 2, 1], "outer")
        inner = outer.group([0, 2], "inner") if outer is not None else None
        if inner is None:
            return ""
        with pytest.raises(MismatchError) as caught:
            inner.allreduce(np.ones(3 + comm.rank), name="x")
        assert _sum(inner)[0] == 2.0
        return str(caught.value)

    for text in filter(None, together(work, 4)):
        assert "[in group 'inner', its ranks from 0 being 0, 2 of group 'outer']" in text


def test_the_name_of_a_large_group_is_cut_short() -> None:
    class Parent:
        name = ""

    title = _Asked(tuple(range(100)), "big").title(Parent())  # type: ignore[arg-type]
    assert title == "group 'big', its ranks from 0 being 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, … (100 in all)"


def test_several_communicators_at_once_from_several_threads() -> None:
    """Eight threads, each with its own group, on every rank, while the world reduces as well."""
    size, rounds = 3, 40
    members = [[0, 1, 2], [2, 1, 0], [0, 1], [1, 2], [2, 0], [1], [0, 2, 1], [2, 1]]

    def work(comm: Communicator) -> None:
        groups = [comm.group(ranks, f"group {index}") for index, ranks in enumerate(members)]

        def use(index: int) -> None:
            group = groups[index]
            if group is None:
                return
            rng = np.random.default_rng(index)
            for turn in range(rounds):
                data = rng.integers(0, 1000, int(rng.integers(1, 5000)))
                handle = group.allreduce_async(data * (comm.rank + 1), name=f"t{turn}")
                expected = data * sum(rank + 1 for rank in group.ranks)
                assert np.array_equal(handle.wait(), expected), (index, turn)
                assert group.allgather(np.array([comm.rank])).tolist() == list(group.ranks)

        with ThreadPoolExecutor(len(members)) as pool:
            futures = [pool.submit(use, index) for index in range(len(members))]
            for turn in range(rounds):
                assert comm.allreduce(float(turn)) == size * turn
            for future in futures:
                future.result()

    together(work, size)


def test_named_groups_may_be_made_by_several_threads_in_any_order() -> None:
    def work(comm: Communicator) -> list[float]:
        sums = [0.0] * 6
        order = np.random.default_rng(comm.rank).permutation(6).tolist()
        begin = threading.Barrier(6)

        def make(index: int) -> None:
            begin.wait()
            group = comm.group([1, 0], f"thread {index}")
            assert group is not None
            sums[index] = _sum(group, index)[0]

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(make, order))
        return sums

    assert together(work, 2) == [[0.0, 2.0, 4.0, 6.0, 8.0, 10.0]] * 2


def test_a_rank_that_cannot_listen_says_so_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_ring import peers

    whole = peers.announced_addresses
    broken = threading.local()

    def announced_addresses(*args: Any) -> list[str]:
        if getattr(broken, "now", False):
            raise RendezvousError("no descriptor left")
        return whole(*args)

    monkeypatch.setattr(peers, "announced_addresses", announced_addresses)

    def work(comm: Communicator) -> list[Any]:
        broken.now = comm.rank == 2
        with pytest.raises(CommunicatorError, match="no descriptor left") as caught:
            comm.group([0, 1, 2])
        broken.now = False
        return [caught.value.rank, _sum(comm)[0]]

    assert together(work, 3) == [[2, 3.0], [2, 3.0], [None, 3.0]]
