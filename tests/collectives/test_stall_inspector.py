"""A rank that waits long says for whom, and goes on."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from threads import together

from spark_ring.communicator import Communicator, Stall
from spark_ring.errors import CollectiveTimeoutError

WARN = 0.1  # seconds


def _until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait until something is true and return it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.005)
    raise AssertionError("it did not come true")


def _stalls(
    size: int, absent: set[int], transport: str, before: Callable[[Communicator], Any] | None = None
) -> dict[int, Stall]:
    """Let some ranks come to an allreduce only after all others have seen a stall; return what they saw."""
    seen: dict[int, Stall] = {}
    noticed = threading.Barrier(size, timeout=60)

    def work(comm: Communicator) -> None:
        if before is not None:
            before(comm)
        if comm.rank not in absent:
            handle = comm.allreduce_async(np.ones((3, 4), np.float32), name="grad")
            seen[comm.rank] = _until(comm.stalled)[0]
        noticed.wait()
        if comm.rank in absent:
            handle = comm.allreduce_async(np.ones((3, 4), np.float32), name="grad")
        assert (handle.wait() == size).all()
        comm.barrier()
        _until(lambda: not comm.stalled())

    together(work, size, transport=transport, stall_warning_seconds=WARN)
    return seen


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("absent", [{1}, {0, 2}])
def test_all_missing_ranks_are_named(
    transport: str, absent: set[int], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "spark_ring"):
        seen = _stalls(3, absent, transport)
    assert set(seen) == {0, 1, 2} - absent
    for rank, stall in seen.items():
        assert stall.state == "absent"
        assert set(stall.ranks) == absent
        assert stall.hosts == ("127.0.0.1",) * len(absent)
        assert stall.operations == ("allreduce 'grad' of float32 [3, 4], op sum",)
        assert stall.count == 1
        assert stall.seconds >= WARN
        lines = [r for r in caplog.records if r.getMessage().startswith(f"rank {rank} ")]
        assert lines[0].levelno == logging.WARNING
        for part in ("allreduce 'grad'", "did not come", *(f"{r} (127.0.0.1)" for r in absent)):
            assert part in lines[0].getMessage()
        assert [r.levelno for r in lines].count(logging.INFO) == 1
        assert "goes on after" in lines[-1].getMessage()
        assert all("\n" not in r.getMessage() for r in lines)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_ranks_that_wait_for_different_things_are_told_who_has_what(transport: str) -> None:
    seen: dict[int, Stall] = {}
    noticed = threading.Barrier(2, timeout=60)

    def work(comm: Communicator) -> None:
        own, other = ("left", "right") if comm.rank == 0 else ("right", "left")
        first = comm.allreduce_async(np.ones(5, np.float32), name=own)
        seen[comm.rank] = _until(lambda: [stall for stall in comm.stalled() if stall.state == "different"])[0]
        noticed.wait()
        second = comm.allreduce_async(np.ones(5, np.float32), name=other)
        first.wait()
        second.wait()

    together(work, 2, transport=transport, stall_warning_seconds=WARN)
    for rank, own in enumerate(["left", "right"]):
        assert seen[rank].ranks == (1 - rank,)
        assert own in seen[rank].operations[0]
        assert "rank 0 has allreduce 'left'" in seen[rank].story
        assert "rank 1 has allreduce 'right'" in seen[rank].story


def test_an_operation_that_one_rank_lacks_is_reported_while_others_go_on() -> None:
    found: list[Stall] = []
    enough = threading.Event()

    def work(comm: Communicator) -> None:
        lonely = comm.allreduce_async(np.ones(2), name="lonely") if comm.rank == 0 else None
        go_on = np.ones(1)
        while go_on[0]:
            comm.allreduce(np.ones(1000), name="busy")
            if comm.rank == 0 and not found:
                found.extend(stall for stall in comm.stalled() if stall.state == "different")
                if found:
                    enough.set()
            go_on[0] = 0.0 if enough.is_set() else 1.0
            comm.broadcast(go_on, 0, name="go on")
        if lonely is None:
            lonely = comm.allreduce_async(np.ones(2), name="lonely")
        lonely.wait()

    together(work, 2, stall_warning_seconds=WARN)
    assert found[0].ranks == (1,)
    assert "lonely" in found[0].operations[0]


def test_reports_come_at_growing_intervals(caplog: pytest.LogCaptureFixture) -> None:
    def work(comm: Communicator) -> None:
        handle = comm.allreduce_async(np.ones(1), name="late") if comm.rank == 0 else None
        if handle is None:
            _until(lambda: len([r for r in caplog.records if r.levelno == logging.WARNING]) >= 3)
            handle = comm.allreduce_async(np.ones(1), name="late")
        handle.wait()

    with caplog.at_level(logging.INFO, "spark_ring"):
        together(work, 2, stall_warning_seconds=WARN)
    ages = [
        float(r.getMessage().split("stalled for ")[1].split(" s")[0])
        for r in caplog.records
        if r.levelno == logging.WARNING
    ]
    assert len(ages) >= 3
    # Twice the age before, with the three digits that are shown.
    assert all(later >= 1.98 * earlier for earlier, later in itertools.pairwise(ages)), ages


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_zero_is_silent(transport: str, caplog: pytest.LogCaptureFixture) -> None:
    def work(comm: Communicator) -> list[Stall]:
        if comm.rank == 0:
            time.sleep(0.3)
        comm.allreduce(np.ones(1))
        return comm.stalled()

    assert together(work, 2, transport=transport, stall_warning_seconds=0.0) == [[], []]
    assert caplog.records == []


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_stall_can_be_made_to_fail_early(transport: str) -> None:
    waiting = threading.Event()

    def work(comm: Communicator) -> str:
        if comm.rank == 1:
            waiting.wait(60)
            return ""
        try:
            comm.allreduce(np.ones(3), name="grad")
        except CollectiveTimeoutError as error:
            return f"{error.rank} {error}"
        finally:
            waiting.set()
        return "no error"

    told = together(work, 2, transport=transport, stall_abort_seconds=0.3)[0]
    assert told.startswith("1 ")
    assert "stall_abort_seconds" in told
    assert "allreduce 'grad'" in told


def test_the_thread_that_logs_ends_with_the_last_communicator() -> None:
    def work(comm: Communicator) -> bool:
        comm.barrier()
        return any(thread.name == "spark_ring stalls" for thread in threading.enumerate())

    assert together(work, 2) == [True, True]
    assert not any(thread.name == "spark_ring stalls" for thread in threading.enumerate())
