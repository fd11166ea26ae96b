"""One asynchronous operation, as users see it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from spark_ring import _core

__all__ = ["Handle"]


class Handle:
    """One asynchronous operation: poll it, wait for it, or be called when it is done."""

    __slots__ = ("_finish", "_finished", "_lock", "_native", "_result")

    def __init__(self, native: _core.Handle, finish: Callable[[_core.Handle], Any]) -> None:
        self._native = native
        self._finish = finish
        self._finished = False
        self._result: Any = None
        self._lock = threading.Lock()

    def poll(self) -> bool:
        """Return True once the operation has finished, well or badly. Never raises."""
        return self._native.poll()

    def wait(self, timeout: float | None = None) -> Any:
        """Wait for the operation and return its result: an array, or a list of arrays for a group.

        Args:
            timeout: seconds; ``None`` waits as long as the setting ``collective_timeout`` allows.

        Raises:
            CollectiveTimeoutError: not finished in time; after ``timeout`` the operation is still pending.
            CommunicatorError: what the operation failed with, naming the rank to blame.
        """
        self._native.wait(-1.0 if timeout is None else timeout)
        with self._lock:
            if not self._finished:
                self._result = self._finish(self._native)
                self._finished = True
        return self._result

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call ``callback()`` once the operation has finished, from the ring's thread or at once."""
        self._native.add_done_callback(callback)
