"""Joining and leaving again and again is cheap and leaves nothing behind."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import spark_ring
from spark_ring import world
from spark_ring.communicator import Communicator
from spark_ring.config import Settings
from tests.collectives.threads import SECRET, Meeting


def _held() -> dict[str, int]:
    """Count what a leak would add to: descriptors, threads of the kernel's count, mapped segments."""
    maps = Path("/proc/self/maps").read_text()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "mapped segments": maps.count("spark-ring-"),
    }


def _grown(first: dict[str, int]) -> list[str]:
    """Return what there is more of now; a thread that was joined may be listed for a moment longer."""
    deadline = time.monotonic() + 5
    while True:
        now = _held()
        grown = [f"{now[what]} {what}, {first[what]} before" for what in now if now[what] > first[what]]
        if not grown or time.monotonic() > deadline:
            return grown
        time.sleep(0.01)


@pytest.mark.parametrize(("size", "cycles"), [(2, 1000), (4, 200)])
def test_a_thousand_cycles_leave_nothing_behind(size: int, cycles: int) -> None:
    """At 4 ranks a cycle takes three times as long, and a fifth of them shows a leak as well."""
    meeting = Meeting(size)
    errors: list[Exception] = []
    first: dict[str, int] = {}
    grown: list[str] = []
    all_closed = threading.Barrier(size, timeout=60)

    def work(rank: int) -> None:
        try:
            for cycle in range(cycles):
                comm = Communicator.connect(
                    rank, size, meeting.of(rank), SECRET, Settings(), toward="127.0.0.1"
                )
                comm.barrier()
                comm.close()
                if cycle in (9, cycles - 1):
                    all_closed.wait()
                    if rank == 0 and cycle == 9:
                        first.update(_held())
                    elif rank == 0:
                        grown.extend(_grown(first))
                    all_closed.wait()
        except Exception as error:
            errors.append(error)
            all_closed.abort()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    assert not grown
    assert first["mapped segments"] == 0


def _cycles(count: int) -> list[str]:
    first: dict[str, int] = {}
    for cycle in range(count):
        world.shutdown()
        if cycle == 9:
            first = _held()
        world.init()
        assert world.allreduce(np.ones(2)).tolist() == [2.0, 2.0]
    world.shutdown()
    return _grown(first)


def test_two_hundred_cycles_of_init_and_shutdown() -> None:
    assert spark_ring.run(_cycles, args=(200,), np=2) == [[], []]
