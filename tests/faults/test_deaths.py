"""``kill -9`` of one rank in every phase: every other rank raises within five seconds and names the dead."""

from __future__ import annotations

import phases
import pytest

from spark_ring.errors import CommunicatorError, LaunchError, PeerLostError, RendezvousError
from spark_ring.launch.answers import Outcome, first_failure
from spark_ring.launch.local import LocalJob

SECONDS = 5.0
CONNECT_TIMEOUT = 3.0  # a rank that is announced but silent costs this much


def _run(phase: str, size: int, victim: int, **settings: object) -> list[Outcome]:
    job = LocalJob(
        phases.run_phase,
        args=(phase, victim),
        np=size,
        initialise=False,
        grace=SECONDS + 2,
        connect_timeout=CONNECT_TIMEOUT,
        **settings,
    )
    with job:
        return job.wait(60)


def _check_killed(outcome: Outcome) -> None:
    assert outcome.failure is not None
    assert "signal 9 (SIGKILL)" in outcome.failure.message


OPERATIONS = {
    "before connect": (RendezvousError, ""),
    "before the first collective": (PeerLostError, "allreduce 'first'"),
    "idle": (PeerLostError, "allreduce 'after'"),
    "in a large allreduce": (PeerLostError, "allreduce 'large'"),
    "in a large allreduce without copies": (PeerLostError, "allreduce 'large'"),
    "in many asynchronous operations": (PeerLostError, ""),
    "in allgather": (PeerLostError, "allgather 'rows'"),
    "in broadcast": (PeerLostError, "broadcast 'weights'"),
    "in barrier": (PeerLostError, "barrier 'end'"),
}


# A rank in the middle has peers that connect to it and peers that it connects to. The commonest phases are
# tried at every place.
PLACES = [(phase, 3, 1) for phase in OPERATIONS] + [
    (phase, *place) for phase in ("idle", "in a large allreduce") for place in ((2, 0), (2, 1), (4, 3))
]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize(("phase", "size", "victim"), PLACES)
def test_every_survivor_raises_soon_and_names_the_dead_rank(
    phase: str, size: int, victim: int, transport: str
) -> None:
    """Cases 97, 98 and 100."""
    outcomes = _run(phase, size, victim, transport=transport)
    _check_killed(outcomes[victim])
    kind, operation = OPERATIONS[phase]
    for outcome in outcomes:
        if outcome.rank == victim:
            continue
        assert outcome.failure is not None, f"rank {outcome.rank} was not told"
        error = outcome.failure.original
        assert isinstance(error, kind), outcome.failure.traceback
        assert isinstance(error, CommunicatorError)
        assert error.rank == victim, str(error)
        assert f"rank {victim}" in str(error)
        assert operation in str(error)
        assert error.seconds < SECONDS  # type: ignore[attr-defined]

    reported = first_failure(outcomes)
    assert reported is not None
    error = reported.error(size)
    assert isinstance(error, LaunchError)
    assert f"rank {victim} of {size} was killed by signal 9" in str(error)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_rank_that_dies_before_its_hello_ends_the_meeting(transport: str) -> None:
    """Case 97: it had announced itself and connected. All name it, also who hears of it from another rank."""
    outcomes = _run("between connect and handshake", 3, 1, transport=transport)
    _check_killed(outcomes[1])
    errors = {outcome.rank: outcome.failure.original for outcome in outcomes if outcome.failure is not None}
    for rank in (0, 2):
        assert isinstance(errors[rank], CommunicatorError), outcomes[rank]
        assert errors[rank].seconds < SECONDS  # type: ignore[union-attr]
        assert errors[rank].rank == 1, str(errors[rank])  # type: ignore[union-attr]


@pytest.mark.parametrize(("size", "victim"), [(2, 0), (2, 1), (3, 1), (4, 0), (4, 3)])
def test_a_rank_that_dies_after_its_announcement_is_named_by_all(size: int, victim: int) -> None:
    """Case 97: ranks that it was to connect to have no connection to lose; connect_timeout is a minute."""
    job = LocalJob(
        phases.run_phase, args=("after announcing", victim), np=size, initialise=False, grace=SECONDS + 2
    )
    with job:
        outcomes = job.wait(60)
    _check_killed(outcomes[victim])
    for outcome in outcomes:
        if outcome.rank == victim:
            continue
        assert outcome.failure is not None, f"rank {outcome.rank} was not told"
        error = outcome.failure.original
        assert isinstance(error, PeerLostError), outcome.failure.traceback
        assert error.rank == victim, str(error)
        assert error.seconds < SECONDS  # type: ignore[attr-defined]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("size", [2, 4])
def test_closing_does_not_wait_for_a_dead_rank(size: int, transport: str) -> None:
    outcomes = _run("during close", size, size - 1, transport=transport)
    _check_killed(outcomes[-1])
    for outcome in outcomes[:-1]:
        assert outcome.failure is None, outcome.failure
        assert outcome.value < SECONDS


def test_a_rank_that_dies_in_the_middle_on_pretended_hosts_is_named() -> None:
    """Two hosts of two ranks: death must be noticed through shared memory and through TCP."""
    job = LocalJob(
        phases.run_phase,
        args=("in a large allreduce", 3),
        np=4,
        initialise=False,
        grace=SECONDS + 2,
        each=lambda rank: {"host_id": f"pretended-{rank // 2}"},
    )
    with job:
        outcomes = job.wait(60)
    _check_killed(outcomes[3])
    for outcome in outcomes[:3]:
        assert outcome.failure is not None
        assert isinstance(outcome.failure.original, PeerLostError), outcome.failure.traceback
        assert outcome.failure.original.rank == 3
        assert outcome.failure.original.seconds < SECONDS  # type: ignore[attr-defined]
