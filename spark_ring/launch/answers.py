"""What a worker answers to its launcher, through a pipe of its own: one frame, a value or a failure.

A frame is one line of JSON (what it is, and how many bytes follow) and those bytes. The pipe joins a process
to the child it started itself, so pickled values may travel in it; nothing from a network does.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from spark_ring.errors import (
    AbortedError,
    ClosedError,
    CollectiveTimeoutError,
    LaunchError,
    PeerLostError,
    RendezvousError,
    SparkRingError,
    WorkerError,
)

__all__ = [
    "AnswerReader",
    "Failure",
    "Outcome",
    "failure_frame",
    "first_failure",
    "is_consequence",
    "tells_of_consequence",
    "value_frame",
]

# What a rank raises because another one failed. Never what the user should see first.
_CONSEQUENCES = (PeerLostError, AbortedError, CollectiveTimeoutError, ClosedError, RendezvousError)


@dataclass
class Failure:
    """How one rank failed.

    Attributes:
        rank: which.
        type: the exception's class name; empty when the process ended without a word.
        message: the exception's text, or how the process ended.
        traceback: the worker's formatted traceback, or its last lines on stderr.
        consequence: whether it only followed from another rank's failure.
        original: the exception itself, when it could be brought over.
        status: exit status of a process that ended without a word; negative for a signal.
        when: monotonic seconds at which the launcher learned of it.
    """

    rank: int
    type: str
    message: str
    traceback: str = ""
    consequence: bool = False
    original: BaseException | None = None
    status: int = 0
    when: float = field(default_factory=time.monotonic)

    def error(self, size: int) -> SparkRingError:
        """Return the error to raise, its cause set to the original exception if there is one."""
        if not self.type:
            tail = f"\nIts last lines on stderr:\n{self.traceback}" if self.traceback else ""
            return LaunchError(f"rank {self.rank} of {size} {self.message} before it returned a result{tail}")
        error = WorkerError(
            f"rank {self.rank} of {size} raised {self.type}: {self.message}\n\n"
            f"Traceback of rank {self.rank}:\n{self.traceback}",
            rank=self.rank,
            error_type=self.type,
            error_message=self.message,
            traceback=self.traceback,
        )
        error.__cause__ = self.original
        return error


@dataclass
class Outcome:
    """How one rank ended: with ``value``, with ``failure``, or ended by the launcher (neither)."""

    rank: int
    value: Any = None
    failure: Failure | None = None
    returned: bool = False


def first_failure(outcomes: list[Outcome]) -> Failure | None:
    """Return the failure to report: the earliest that is not a mere consequence, else the earliest."""
    failures = [outcome.failure for outcome in outcomes if outcome.failure is not None]
    return min(failures, key=lambda failure: (failure.consequence, failure.when), default=None)


def is_consequence(error: BaseException | None) -> bool:
    """Return whether an exception, or one it was raised from, only tells of another rank's failure."""
    while error is not None:
        if isinstance(error, _CONSEQUENCES):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def tells_of_consequence(lines: Iterable[str]) -> bool:
    """Return whether a script's last lines on stderr show that it ended because another rank had failed.

    A script has no pipe for its answer, and ranks that end in the same instant have no order: without this,
    the one to blame would be a matter of luck.
    """
    marks = tuple(f"{kind.__module__}.{kind.__name__}:" for kind in _CONSEQUENCES)
    return any(line.lstrip().startswith(marks) for line in lines)


def value_frame(value: Any, rank: int) -> bytes:
    """Return the frame of a returned value; of a failure when it cannot be pickled."""
    import cloudpickle

    try:
        return _frame({"kind": "value"}, cloudpickle.dumps(value))
    except Exception as error:
        problem = TypeError(
            f"rank {rank} returned a {type(value).__name__}, which cannot be pickled ({error}); "
            "return plain values or arrays"
        )
        return failure_frame(problem)


def failure_frame(error: BaseException) -> bytes:
    """Return the frame of an exception."""
    header = {
        "kind": "failure",
        "type": type(error).__name__,
        "message": str(error),
        "traceback": "".join(traceback.format_exception(type(error), error, error.__traceback__)),
        "consequence": is_consequence(error),
    }
    return _frame(header, _pickled(error))


class AnswerReader:
    """Puts the frame of one rank together from the pieces that a pipe delivers."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._received = bytearray()
        self._header: dict[str, Any] | None = None

    def feed(self, data: bytes) -> Outcome | None:
        """Take some bytes; return the outcome once the frame is complete.

        Raises:
            LaunchError: a returned value cannot be rebuilt here.
        """
        self._received += data
        if self._header is None:
            line, newline, rest = bytes(self._received).partition(b"\n")
            if not newline:
                return None
            self._header = json.loads(line)
            self._received = bytearray(rest)
        if len(self._received) < self._header["bytes"]:
            return None
        return _outcome(self._rank, self._header, bytes(self._received))


def _outcome(rank: int, header: dict[str, Any], payload: bytes) -> Outcome:
    if header["kind"] == "value":
        try:
            return Outcome(rank, value=pickle.loads(payload), returned=True)
        except Exception as error:
            raise LaunchError(
                f"the value that rank {rank} returned cannot be rebuilt here: {error}"
            ) from error
    original: BaseException | None = None
    with contextlib.suppress(Exception):  # only a courtesy: its text and traceback are in the header
        original = pickle.loads(payload) if payload else None
    failure = Failure(
        rank,
        header["type"],
        header["message"],
        header["traceback"],
        header["consequence"],
        original if isinstance(original, BaseException) else None,
    )
    return Outcome(rank, failure=failure)


def _frame(header: dict[str, Any], payload: bytes) -> bytes:
    return json.dumps({**header, "bytes": len(payload)}).encode() + b"\n" + payload


def _pickled(error: BaseException) -> bytes:
    """Return the exception pickled, or nothing when it does not survive the journey."""
    import cloudpickle

    try:
        payload: bytes = cloudpickle.dumps(error)
        pickle.loads(payload)
    except Exception:
        return b""
    return payload
