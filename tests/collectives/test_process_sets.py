"""Process sets: Horovod's rules, on worlds of several processes and on one alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import spark_ring
from spark_ring import ProcessSet, global_process_set, world
from spark_ring.communicator import Communicator
from spark_ring.config import Settings
from spark_ring.errors import ClosedError, ConfigError, DataError


@pytest.fixture(autouse=True)
def _no_world() -> Iterator[None]:
    yield
    world.shutdown()


def _every_verb() -> dict[str, Any]:
    world.shutdown()
    sets = [ProcessSet([2, 0]), ProcessSet((3, 1))]
    spark_ring.init(process_sets=sets)
    spark_ring.init(process_sets=[[0, 2]])  # there already
    rank = spark_ring.rank()
    mine, other = sets if sets[0].included() else sets[::-1]
    row, root = np.array([rank]), mine.ranks[1]
    with pytest.raises(ConfigError, match=rf"allreduce: rank {rank} is not in the process set of ranks"):
        spark_ring.allreduce(1.0, process_set=other)
    with pytest.raises(DataError, match=r"broadcast: root is rank .* which is not in the process set"):
        spark_ring.broadcast(row, other.ranks[0], process_set=mine)
    whole = spark_ring.allreduce_async(np.ones(1), process_set=global_process_set)
    results = {
        "facts": (mine.ranks, mine.rank(), mine.size(), mine.process_set_id, other.included(), other.rank()),
        "allreduce": float(spark_ring.allreduce(float(rank), process_set=mine)),
        "allreduce_async": spark_ring.allreduce_async(row, process_set=mine).wait().tolist(),
        "grouped_allreduce": spark_ring.grouped_allreduce([row, row], process_set=mine)[1].tolist(),
        "grouped_allreduce_async": spark_ring.grouped_allreduce_async([row], process_set=mine)
        .wait()[0]
        .tolist(),
        "reducescatter": spark_ring.reducescatter(np.array([rank, 0]), process_set=mine).tolist(),
        "reducescatter_async": spark_ring.reducescatter_async(np.ones(2), process_set=mine).wait().tolist(),
        "allgather": spark_ring.allgather(row, process_set=mine).tolist(),
        "allgather_async": spark_ring.allgather_async(row, process_set=mine).wait().tolist(),
        "allgather_object": spark_ring.allgather_object(rank, process_set=mine),
        "broadcast": spark_ring.broadcast(row.copy(), root, process_set=mine).tolist(),
        "broadcast_async": spark_ring.broadcast_async(row.copy(), root, process_set=mine).wait().tolist(),
        "broadcast_object": spark_ring.broadcast_object(f"by {rank}", root, process_set=mine),
        "barrier": spark_ring.barrier(process_set=mine),
    }
    return {**results, "world": whole.wait().tolist()}


def test_every_verb_works_on_the_members_and_roots_are_ranks_of_the_world() -> None:
    for rank, results in enumerate(spark_ring.run(_every_verb, np=4)):
        members = [rank % 2, rank % 2 + 2]
        total, root = sum(members), members[1]
        assert results == {
            "facts": (members, rank // 2, 2, rank % 2 + 1, False, None),
            "allreduce": total,
            "allreduce_async": [total],
            "grouped_allreduce": [total],
            "grouped_allreduce_async": [total],
            "reducescatter": [total] if rank < 2 else [0],
            "reducescatter_async": [2.0],
            "allgather": members,
            "allgather_async": members,
            "allgather_object": members,
            "broadcast": [root],
            "broadcast_async": [root],
            "broadcast_object": f"by {root}",
            "barrier": None,
            "world": [4.0],
        }


def _come_and_go() -> list[Any]:
    pair = spark_ring.add_process_set([1, 0])
    assert spark_ring.allreduce(1.0, process_set=pair) == 2.0 if pair.included() else True
    with pytest.raises(ConfigError, match=r"ranks \[0, 1\] is in the world already"):
        spark_ring.add_process_set([0, 1])
    with pytest.raises(ConfigError, match=r"is in the world already"):
        spark_ring.add_process_set(pair)
    with pytest.raises(ConfigError, match=r"ranks \[0, 1, 2\] is in the world already, as.*id=0"):
        spark_ring.add_process_set([2, 1, 0])
    removed = [spark_ring.remove_process_set(pair), spark_ring.remove_process_set(pair)]
    removed.append(spark_ring.remove_process_set(global_process_set))
    with pytest.raises(ConfigError, match="not in this world"):
        spark_ring.barrier(process_set=pair)
    again = spark_ring.add_process_set(pair)
    world.shutdown()
    spark_ring.init(process_sets="dynamic")
    after_restart = (again.process_set_id, again.included(), global_process_set.ranks)
    spark_ring.add_process_set(again)
    return [removed, after_restart, again.included(), spark_ring.allgather_object(again.process_set_id)]


def test_sets_come_and_go_and_end_with_their_world() -> None:
    results = spark_ring.run(_come_and_go, np=3)
    expected: list[Any] = [[True, False, False], (None, None, [0, 1, 2])]
    assert results == [[*expected, rank < 2, [1, 1, 1]] for rank in range(3)]


def test_a_world_of_one_has_its_global_set() -> None:
    assert (global_process_set.ranks, global_process_set.included(), global_process_set.size()) == (
        [],
        None,
        None,
    )
    world.init(process_sets=[])
    assert (global_process_set.ranks, global_process_set.included(), global_process_set.size()) == (
        [0],
        True,
        1,
    )
    assert (global_process_set.rank(), global_process_set.process_set_id) == (0, 0)
    world.shutdown()
    assert (global_process_set.ranks, global_process_set.rank()) == ([], None)


@pytest.mark.parametrize("ranks", [[], [1, 1], [-1], ["a"], 5, [0.5]])
def test_what_is_no_set_of_ranks_is_refused(ranks: Any) -> None:
    with pytest.raises(DataError, match="ProcessSet: ranks must be"):
        ProcessSet(ranks)


def test_a_set_has_to_fit_the_world() -> None:
    with pytest.raises(ClosedError, match="not initialised"):
        spark_ring.add_process_set([0])
    with pytest.raises(DataError, match="1 is not a rank"):
        world.init(process_sets=[[1]])
    assert not world.is_initialized()
    with pytest.raises(ConfigError, match="process_sets is 'static'"):
        world.init(process_sets="static")
    world.init()
    with pytest.raises(ConfigError, match=r"initialised already, without a process set of ranks \[3\]"):
        world.init(process_sets=[[3]])


def test_sets_of_a_lent_communicator_end_with_the_block() -> None:
    world.init()
    own = world.current()
    with Communicator.connect(0, 1, lambda text: [text], b"", Settings()) as lent:
        with world.use(lent):
            assert global_process_set._communicator is lent
            with pytest.raises(ConfigError, match="in the world already"):
                spark_ring.add_process_set([0])
        assert global_process_set._communicator is own
    assert repr(ProcessSet([4, 2])) == "ProcessSet(process_set_id=None, ranks=[2, 4])"
