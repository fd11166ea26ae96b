"""A rank that is alive and silent: deadlines name it."""

from __future__ import annotations

import os
import signal

import numpy as np
import phases
import pytest

from spark_ring import world
from spark_ring.errors import CollectiveTimeoutError
from spark_ring.launch.local import LocalJob


def _stop_one(victim: int) -> None:
    world.barrier()
    if world.rank() == victim:
        os.kill(os.getpid(), signal.SIGSTOP)
    with phases.timed():
        world.allreduce(np.ones(1000), name="grad")


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize(("size", "victim"), [(2, 0), (4, 2)])
def test_a_stopped_rank_is_named_when_the_deadline_passes(size: int, victim: int, transport: str) -> None:
    """Case 100."""
    with LocalJob(
        _stop_one, args=(victim,), np=size, transport=transport, collective_timeout=1.0, grace=1.5
    ) as job:
        outcomes = job.wait(60)
    assert outcomes[victim].failure is None
    assert not outcomes[victim].returned
    for outcome in outcomes:
        if outcome.rank == victim:
            continue
        assert outcome.failure is not None
        error = outcome.failure.original
        assert isinstance(error, CollectiveTimeoutError), outcome.failure.traceback
        assert error.rank == victim, str(error)
        assert "allreduce 'grad'" in str(error)
        assert "collective_timeout" in str(error)
        assert 0.9 < error.seconds < 5.0  # type: ignore[attr-defined]


def _wait_a_little() -> tuple[str, float]:
    if world.rank() == 1:
        world.broadcast_object("the other rank has given up once", root=0)
        return "", float(world.allreduce(1.0, name="grad"))
    handle = world.allreduce_async(1.0, name="grad")
    try:
        handle.wait(0.05)
    except CollectiveTimeoutError as error:
        early = str(error)
    world.broadcast_object("the other rank has given up once", root=0)
    return early, float(handle.wait())


def test_waiting_with_a_timeout_leaves_the_operation_pending() -> None:
    with LocalJob(_wait_a_little, np=2) as job:
        outcomes = job.wait(60)
    assert [outcome.failure for outcome in outcomes] == [None, None]
    assert "allreduce 'grad'" in outcomes[0].value[0]
    assert [outcome.value[1] for outcome in outcomes] == [2.0, 2.0]
