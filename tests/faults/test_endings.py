"""The end or the silence of ranks, phase by phase: every other rank raises in time, names a rank that ended
and not a neighbour, says so again later, and has nothing left when it has closed.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import endings
import pytest

SECONDS = 5.0  # for a death; a silence takes as long as its deadline
TIMEOUT = 1.0  # collective_timeout where a rank is silent
HOSTS = {"shm": (), "tcp": (), "two-level": ("a", "a", "b", "b")}

Play = Callable[..., list[Any]]


@pytest.fixture(scope="module")
def play() -> Iterator[Play]:
    numbers = itertools.count()
    program = [sys.executable, str(Path(endings.__file__))]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def run(phase: str, how: str, victims: tuple[int, ...], transport: str, **settings: Any) -> list[Any]:
            case = {
                "phase": phase,
                "how": how,
                "victims": victims,
                "size": 4,
                "hosts": HOSTS[transport],
                "group": f"case {next(numbers)}",
                "settings": {
                    "transport": "auto" if transport == "two-level" else transport,
                    "segment_bytes": 65536,
                    "connect_timeout": 20.0,
                    **settings,
                },
            }
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(case) + "\n")
            process.stdin.flush()
            answers: list[Any] = json.loads(process.stdout.readline())
            return answers

        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield run
        process.stdin.close()  # type: ignore[union-attr]


def _check(answers: list[Any], victims: tuple[int, ...], kinds: tuple[str, ...], seconds: float) -> None:
    for rank, seen in enumerate(answers):
        if rank in victims:
            continue
        assert seen is not None, f"rank {rank} did not end"
        assert "crash" not in seen, seen
        assert seen["error"] in kinds, (rank, seen)
        assert seen["rank"] in victims, (rank, seen)
        assert f"rank {seen['rank']}" in seen["text"], (rank, seen)
        assert seen["seconds"] < seconds, (rank, seen)
        assert f"rank {seen['rank']}" in seen["later"], (rank, seen)
        assert seen["left"] == [0, 0], (rank, seen)


TRANSPORTS = pytest.mark.parametrize("transport", list(HOSTS))
WITH_ERRORS = [phase for phase in endings.PHASES if phase != "closing"]


@TRANSPORTS
@pytest.mark.parametrize("phase", WITH_ERRORS)
def test_a_killed_rank_is_named_in_every_phase(play: Play, phase: str, transport: str) -> None:
    """Cases 97 and 100; rank 0 has no part that another could not have."""
    for victim in (0, 2):
        _check(play(phase, "kill", (victim,), transport), (victim,), ("PeerLostError",), SECONDS)


@TRANSPORTS
@pytest.mark.parametrize("phase", ["mid-segment", "before a collective"])
def test_two_ranks_that_are_killed_at_once(play: Play, phase: str, transport: str) -> None:
    for victims in ((0, 1), (1, 3)):
        _check(play(phase, "kill", victims, transport), victims, ("PeerLostError",), SECONDS)


@TRANSPORTS
@pytest.mark.parametrize("how", ["exit", "raise"])
def test_a_rank_that_leaves_otherwise_is_named(play: Play, how: str, transport: str) -> None:
    """An exception closes the communicator on its way out, with or without operations under way."""
    for phase in ("before a collective", "many pending", "making a group"):
        answers = play(phase, how, (1,), transport, close_timeout=0.5)
        _check(answers, (1,), ("PeerLostError", "AbortedError"), SECONDS)


@TRANSPORTS
@pytest.mark.parametrize("phase", ["before a collective", "mid-segment", "sizes"])
def test_a_rank_that_is_silent_beyond_the_deadline_is_named(play: Play, phase: str, transport: str) -> None:
    answers = play(phase, "stop", (1,), transport, collective_timeout=TIMEOUT)
    _check(answers, (1,), ("CollectiveTimeoutError",), TIMEOUT + SECONDS)
    for rank in (0, 2, 3):
        assert "collective_timeout" in answers[rank]["text"]


@TRANSPORTS
@pytest.mark.parametrize("phase", list(endings.PHASES))
def test_a_pause_below_the_deadline_is_only_a_pause(play: Play, phase: str, transport: str) -> None:
    for seen in play(phase, "pause", (1,), transport):
        assert seen is not None
        assert "crash" not in seen, seen
        assert (seen["error"], seen["value"], seen["left"]) == (None, 4, [0, 0]), seen


@TRANSPORTS
@pytest.mark.parametrize("how", ["kill", "exit"])
def test_closing_does_not_wait_for_the_dead(play: Play, how: str, transport: str) -> None:
    answers = play("closing", how, (0, 3), transport)
    for rank in (1, 2):
        assert (answers[rank]["error"], answers[rank]["left"]) == (None, [0, 0])
        assert answers[rank]["seconds"] < SECONDS
