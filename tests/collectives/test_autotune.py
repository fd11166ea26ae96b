"""Autotune: sums stay right, all ranks choose alike, the log tells, the search ends; off by default."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threads import together

from spark_ring.communicator import Communicator
from spark_ring.config import Settings
from spark_ring.errors import CommunicatorError, ConfigError, RendezvousError

MIB = 1 << 20
TRANSPORTS = {
    "shm": {"transport": "shm"},
    "tcp": {"transport": "tcp"},
    "mixed": {"host_id": lambda rank: f"pretended-{rank % 2}"},
}


def _tuned(**settings: Any) -> dict[str, Any]:
    return {"autotune": True, "fusion_bytes": 256 * 1024, "segment_bytes": 32 * 1024, **settings}


def _reduce_until_over(comm: Communicator, *, most: int = 4000) -> dict[str, Any]:
    """Reduce known values by every road, in orders that differ by rank, until the search is over."""
    big = np.empty(MIB, np.float32)
    for turn in range(most):
        big[:] = comm.rank + turn
        comm.allreduce(big, out=big)  # the short road on ranks that have nothing else
        expected = comm.size * turn + sum(range(comm.size))
        assert big[0] == big[-1] == expected
        indices = list(range(6))
        if comm.rank % 2:
            indices.reverse()
        handles = {
            i: comm.allreduce_async(np.full(60_000, comm.rank + i, np.float64), name=f"{i}") for i in indices
        }
        for i, handle in handles.items():
            assert handle.wait()[59_999] == comm.size * i + sum(range(comm.size))
        state: dict[str, Any] = comm.statistics()["autotune"]
        if comm.allreduce(np.array([state["over"]]), "min")[0]:
            return state
    raise AssertionError(f"the search is not over: {state}")


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", [2, 3])
def test_all_ranks_end_with_the_same_choice_and_sums_are_right(
    transport: str, size: int, tmp_path: Path
) -> None:
    log = tmp_path / "autotune.csv"
    states = together(_reduce_until_over, size, **_tuned(autotune_log=str(log), **TRANSPORTS[transport]))
    assert all(state == states[0] for state in states)
    with log.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == states[0]["windows"]
    assert [int(row["window"]) for row in rows] == list(range(1, len(rows) + 1))
    for row in rows:
        assert 64 * 1024 <= int(row["fusion_bytes"]) <= 256 * 1024
        assert 16 * 1024 <= int(row["segment_bytes"]) <= 32 * 1024
        assert int(row["bytes"]) >= 64 * MIB
        assert float(row["bytes_per_second"]) == pytest.approx(
            int(row["bytes"]) / float(row["seconds"]), rel=0.01
        )
    assert [row["over"] for row in rows] == ["0"] * (len(rows) - 1) + ["1"]
    assert int(rows[-1]["next_fusion_bytes"]) == states[0]["fusion_bytes"]
    assert int(rows[-1]["next_segment_bytes"]) == states[0]["segment_bytes"]


def test_results_keep_their_bits_while_sizes_change() -> None:
    """Sums of floats that depend on the order of their terms."""

    def work(comm: Communicator) -> set[bytes]:
        mine = np.random.default_rng(comm.rank).standard_normal(MIB, np.float32)
        seen = {comm.allreduce(mine).tobytes() for _ in range(60)}
        assert comm.statistics()["autotune"]["windows"] >= 3
        return seen

    tuned = together(work, 3, **_tuned(transport="tcp"))
    assert len(set.union(*tuned)) == 1


def test_off_by_default() -> None:
    assert Settings().autotune is False
    states = together(lambda comm: comm.statistics()["autotune"], 2, transport="shm")
    assert states == [None, None]
    assert together(lambda comm: comm.statistics()["autotune"], 1, autotune=True) == [None]


def test_groups_tune_themselves_and_leave_the_log_alone(tmp_path: Path) -> None:
    log = tmp_path / "autotune.csv"

    def work(comm: Communicator) -> tuple[int, int]:
        data = np.ones(4 * MIB, np.float32)
        with comm.group([1, 0]) as group:
            for _ in range(40):
                group.allreduce(data, "max", out=data)
            return group.statistics()["autotune"]["windows"], comm.statistics()["autotune"]["windows"]

    assert all(
        own > 0 and of_world == 0 for own, of_world in together(work, 2, **_tuned(autotune_log=str(log)))
    )
    assert len(log.read_text().splitlines()) == 1  # its head


def test_a_log_that_cannot_be_written_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises((ConfigError, RendezvousError, CommunicatorError)):
        together(lambda comm: comm.barrier(), 2, **_tuned(autotune_log=str(tmp_path / "nowhere" / "log")))


def test_ranks_must_agree_on_tuning() -> None:
    with pytest.raises(RendezvousError, match="different settings"):
        together(lambda comm: None, 2, autotune=lambda rank: rank == 0)


def test_a_rank_that_gives_up_while_tuning_is_told_to_all() -> None:
    def work(comm: Communicator) -> str:
        data = np.ones(4 * MIB, np.float32)

        def reduce_on_and_on() -> None:
            for turn in range(1000):
                if comm.rank == 1 and turn == 9:
                    comm.abort("rank 1 had enough")
                comm.allreduce(data, "max", out=data)

        with pytest.raises(CommunicatorError, match="rank 1 had enough") as caught:
            reduce_on_and_on()
        return str(caught.value)

    together(work, 3, **_tuned(transport="shm"))
