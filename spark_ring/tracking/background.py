"""Calls to a tracking server, one after the other in a thread of their own.

A fit must not wait for MLflow, and MLflow may take seconds (its first import, a new database), minutes (a
server that does not answer, retried with growing pauses) or fail. So each tracker owns one daemon thread and
a queue. The fit only puts calls into the queue. Where it waits at all (:meth:`Background.finish`), it waits
for the queue to run dry, and no longer than the running call's own limit allows.

A call that fails costs one warning; the calls after it are still tried. A call that passes its limit
breaks the queue: what is left is dropped, with one warning, and the thread is left to end by itself.

MLflow's notion of an active run belongs to a thread. In a thread of its own a tracker can use it without
disturbing anybody else's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

__all__ = ["Background"]

logger = logging.getLogger("spark_ring")


class Background:
    """Runs calls in order in a daemon thread.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._changed = threading.Condition()
        self._queue: deque[tuple[str, Callable[[], object], float]] = deque()
        self._current: tuple[str, float] | None = None  # what runs, and the time at which its limit passes
        self._closing = False
        self._broken = False
        self._warned: set[str] = set()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def broken(self) -> bool:
        """Whether calls are dropped because one of them passed its limit."""
        return self._broken

    def submit(self, what: str, call: Callable[[], object], *, limit: float) -> None:
        """Queue a call.

        Args:
            what: for a warning, for example ``"metrics"``.
            call: run in the thread; what it raises becomes one warning for each ``what``.
            limit: seconds it may take once it runs.
        """
        with self._changed:
            if not (self._broken or self._closing):
                self._queue.append((what, call, limit))
                self._changed.notify_all()

    def finish(self) -> bool:
        """Wait until the queue is empty and end the thread.

        Returns:
            Whether every call was run; ``False`` when one passed its limit.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            while (self._queue or self._current) and not self._broken:
                self._wait_for_progress()
        if not self._broken:
            self._thread.join()
        return not self._broken

    def _wait_for_progress(self) -> None:
        """Wait for the running call to end; give up once its limit has passed. The lock is held."""
        if self._current is None:
            self._changed.wait()
            return
        what, deadline = self._current
        left = deadline - time.monotonic()
        if left > 0:
            self._changed.wait(left)
            return
        self._broken = True
        self._queue.clear()
        logger.warning(
            "MLflow did not answer in time while logging %s; the rest of this run is not logged", what
        )

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closing:
                    self._changed.wait()
                if not self._queue:
                    return
                what, call, limit = self._queue.popleft()
                self._current = (what, time.monotonic() + limit)
                self._changed.notify_all()  # whoever waits must know the new deadline
            try:
                call()
            except Exception as error:
                self._warn(what, error)
            finally:
                with self._changed:
                    self._current = None
                    self._changed.notify_all()

    def _warn(self, what: str, error: Exception) -> None:
        level = logging.DEBUG if what in self._warned else logging.WARNING
        self._warned.add(what)
        message = str(error).strip().split("\n")[0][:500]
        logger.log(
            level, "MLflow could not log %s (the fit goes on): %s: %s", what, type(error).__name__, message
        )
