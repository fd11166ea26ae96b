"""What a communicator tells of its own work."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from threads import together

from spark_ring.communicator import Communicator


@pytest.mark.parametrize(
    ("transport", "size", "algorithm"), [("shm", 2, "two ranks"), ("shm", 3, "slices"), ("tcp", 3, "direct")]
)
def test_the_table_says_what_moved_how(transport: str, size: int, algorithm: str) -> None:
    def work(comm: Communicator) -> dict[str, Any]:
        for _ in range(4):
            comm.allreduce(np.ones(100_000, np.float32))
        comm.allreduce(np.ones(2, np.float32))
        comm.barrier()
        return comm.statistics()

    for found in together(work, size, transport=transport):
        lines = {(line["operation"], line["algorithm"]): line for line in found["table"]}
        assert set(lines) == {
            ("allreduce", algorithm),
            ("allreduce", "with the agreement"),
            ("barrier", "with the agreement"),
        }
        big = lines["allreduce", algorithm]
        assert (big["transport"], big["calls"], big["tensors"], big["bytes"]) == (transport, 4, 4, 1_600_000)
        assert 0 < big["seconds"] < 60
        assert big["wait_seconds"] <= big["seconds"] + 1e-9
        assert big["move_seconds"] == pytest.approx(big["seconds"] - big["wait_seconds"])
        assert big["bytes_per_second"] == pytest.approx(big["bytes"] / big["seconds"])
        assert lines["allreduce", "with the agreement"]["bytes"] == 8


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_the_rank_that_is_late_is_the_slowest(transport: str) -> None:
    def work(comm: Communicator) -> dict[str, Any]:
        comm.barrier()
        comm.statistics(reset=True)
        for _ in range(3):
            if comm.rank == 1:
                time.sleep(0.1)  # this is what is measured
            comm.allreduce(np.ones(2))
        return comm.statistics()

    found = together(work, 3, transport=transport)
    for rank in (0, 2):
        assert found[rank]["slowest_rank"] == 1
        assert found[rank]["wait_seconds_by_rank"][1] > 0.2
        assert found[rank]["wait_seconds_by_rank"][rank] == 0
    assert found[1]["wait_seconds_by_rank"][0] < 0.2


def test_queueing_is_counted_apart_from_moving() -> None:
    submitted = threading.Event()

    def work(comm: Communicator) -> dict[str, Any]:
        if comm.rank == 1:
            submitted.wait(30)
            time.sleep(0.2)  # this is what is measured
        handle = comm.allreduce_async(np.ones(100_000), name="grad")
        submitted.set()
        handle.wait()
        return comm.statistics()

    lines = [together_line(found) for found in together(work, 2)]
    assert lines[0]["queue_seconds"] > 0.15
    assert lines[1]["queue_seconds"] < 0.15


def together_line(found: dict[str, Any]) -> dict[str, Any]:
    return next(line for line in found["table"] if line["operation"] == "allreduce")


def test_reset_counts_anew() -> None:
    def work(comm: Communicator) -> tuple[dict[str, Any], dict[str, Any]]:
        comm.allreduce(np.ones(100_000))
        return comm.statistics(reset=True), comm.statistics()

    for before, after in together(work, 2):
        assert before["operations"] == 1
        assert before["table"]
        assert after["operations"] == after["bytes"] == 0
        assert after["table"] == []
        assert after["slowest_rank"] is None
