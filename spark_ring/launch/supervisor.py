"""Watch the ranks of one job until all have ended: pass their output on, collect answers, stop at a failure.

When a rank fails, the others get ``grace`` seconds to notice by themselves (the ring tells them at once) and
to say so; then they are ended. What is reported is the failure that came first and did not merely follow from
another one: a PeerLostError never hides the exception that caused it.
"""

from __future__ import annotations

import logging
import os
import selectors
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TextIO

from spark_ring.errors import LaunchError
from spark_ring.launch.answers import AnswerReader, Failure, Outcome, tells_of_consequence
from spark_ring.launch.child import Child, end_all, exit_text
from spark_ring.launch.output import LinePrefixer

__all__ = ["GRACE", "Supervisor"]

GRACE = 3.0
_log = logging.getLogger("spark_ring.launch")
_LOOK = 0.02  # seconds between looks at processes that ended without closing a pipe
_DRAIN = 0.5  # seconds to read what ended processes left in their pipes
_LINGER = (
    10.0  # seconds to exit after the last rank has answered, for threads the user's function left behind
)


class Supervisor:
    """Supervises started children; used once."""

    def __init__(
        self,
        children: Sequence[Child],
        *,
        answers: bool,
        grace: float = GRACE,
        on_failure: Callable[[Failure], None] = lambda failure: None,
    ) -> None:
        """Prepare.

        Args:
            children: the ranks, in rank order.
            answers: whether each must answer through its result pipe; else exit status 0 is success.
            grace: seconds the others get after a failure.
            on_failure: called once, with the first failure.
        """
        self._children = children
        self._answers = answers
        self._grace = grace
        self._on_failure = on_failure
        self._outcomes: dict[int, Outcome] = {}
        self._readers = {child.rank: AnswerReader(child.rank) for child in children}
        self._prefixers: list[LinePrefixer] = []
        self._selector = selectors.DefaultSelector()
        self._failed_at: float | None = None
        self._answered_at: float | None = None

    def watch(self, timeout: float | None = None) -> list[Outcome]:
        """Wait for all ranks; return one outcome per rank, in rank order.

        Ends every child in any case, also when interrupted.

        Raises:
            LaunchError: not all ended within ``timeout`` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            self._register()
            while self._running() and not self._grace_is_over() and not self._lingers():
                if deadline is not None and time.monotonic() > deadline:
                    raise LaunchError(self._late(timeout))
                self._read(_LOOK)
                self._look()
            return [self._outcomes.get(child.rank) or Outcome(child.rank) for child in self._children]
        finally:
            end_all(self._children)
            self._drain()
            for prefixer in self._prefixers:
                prefixer.finish()
            self._selector.close()
            for child in self._children:
                child.close()

    def _register(self) -> None:
        for child in self._children:
            out = LinePrefixer(child.rank, _stdout)
            err = LinePrefixer(child.rank, _stderr, child.tail.append)
            self._prefixers += [out, err]
            self._add(child.stdout.fileno(), out.feed)
            self._add(child.stderr.fileno(), err.feed)
            if child.results >= 0:
                self._add(child.results, partial(self._take, child.rank))

    def _add(self, descriptor: int, feed: Callable[[bytes], None]) -> None:
        os.set_blocking(descriptor, False)
        self._selector.register(descriptor, selectors.EVENT_READ, feed)

    def _read(self, timeout: float) -> bool:
        """Read what is there; return whether there was anything."""
        ready = self._selector.select(timeout) if self._selector.get_map() else []
        for key, _ in ready:
            try:
                data = os.read(key.fd, 1 << 20)
            except BlockingIOError:  # somebody else, who has the pipe too, was faster
                continue
            if not data:
                self._selector.unregister(key.fd)
            else:
                key.data(data)
        return bool(ready)

    def _take(self, rank: int, data: bytes) -> None:
        outcome = self._readers[rank].feed(data)
        if outcome is not None:
            self._settle(outcome)

    def _look(self) -> None:
        """Settle ranks whose process has ended without an answer."""
        for child in self._children:
            if child.rank in self._outcomes:
                continue
            status = child.status()
            if status is None:
                continue
            self._drain()  # its answer and last words may still be in the pipes
            if child.rank in self._outcomes:
                continue
            if status == 0 and not self._answers:
                self._settle(Outcome(child.rank, returned=True))
            else:
                self._settle(Outcome(child.rank, failure=_wordless(child, status)))

    def _settle(self, outcome: Outcome) -> None:
        self._outcomes[outcome.rank] = outcome
        if outcome.failure is not None and self._failed_at is None:
            self._failed_at = time.monotonic()
            self._on_failure(outcome.failure)

    def _running(self) -> list[int]:
        return [
            child.rank
            for child in self._children
            if child.rank not in self._outcomes or child.status() is None
        ]

    def _grace_is_over(self) -> bool:
        return self._failed_at is not None and time.monotonic() > self._failed_at + self._grace

    def _lingers(self) -> bool:
        """Return whether all have answered long ago and some process still does not exit."""
        if len(self._outcomes) < len(self._children) or not self._answers:
            return False
        if self._answered_at is None:
            self._answered_at = time.monotonic()
        if time.monotonic() < self._answered_at + _LINGER:
            return False
        _log.warning(
            "ranks %s answered but did not exit within %g s and were ended; do they leave threads running?",
            self._running(),
            _LINGER,
        )
        return True

    def _late(self, timeout: float | None) -> str:
        running = ", ".join(map(str, self._running()))
        return (
            f"not all of {len(self._children)} ranks ended within timeout={timeout:g} s; still running: "
            f"{running}. They were ended. Raise timeout, or look at what these ranks wait for"
        )

    def _drain(self) -> None:
        """Read what is in the pipes now; not for ever, since others may go on writing."""
        deadline = time.monotonic() + _DRAIN
        while self._read(0.0) and time.monotonic() < deadline:
            pass


def _wordless(child: Child, status: int) -> Failure:
    """Return the failure of a process that ended without an answer."""
    return Failure(
        child.rank,
        "",
        exit_text(status),
        "\n".join(child.tail),
        consequence=status > 0 and tells_of_consequence(child.tail),
        status=status,
    )


def _stdout() -> TextIO:
    return sys.stdout


def _stderr() -> TextIO:
    return sys.stderr
