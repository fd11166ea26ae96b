"""What a collective of the process group gives back: torch's ``Work`` on top of a native handle.

torch wants two things of it. ``wait()`` is called by whoever needs the result next. ``get_future()`` is asked
for by code that goes on without waiting (DistributedDataParallel's buckets, communication hooks): that future
completes as soon as the bytes are there, whether or not anybody waits, so communication overlaps with
backward. What is chained to it may itself wait for another collective (torch's PowerSGD hook does), so it
runs on a thread of its own and not on the one that drives the ring.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["RingWork", "Together"]

_NO_TIMEOUT = timedelta(0)


class RingWork(dist.Work):  # type: ignore[misc]
    """One operation of a process group.

    Args:
        handle: has ``poll()``, ``wait(seconds)`` and ``add_done_callback(callback)``.
        finish: runs once, after success, before anybody sees the result: brings it into the user's tensors
            and returns them.
        threads: where futures are completed; must never make one completion wait for another.
    """

    def __init__(self, handle: Any, finish: Callable[[Any], list[torch.Tensor]], threads: Executor) -> None:
        super().__init__()
        self._threads = threads
        self._handle = handle
        self._finish: Callable[[Any], list[torch.Tensor]] | None = finish
        self._result: list[torch.Tensor] = []
        self._failure: Exception | None = None
        self._lock = threading.Lock()
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Wait for the end; zero means as long as the group's timeout allows.

        Raises:
            CommunicatorError: what the operation failed with, naming the rank to blame.
        """
        seconds = timeout.total_seconds()
        self._handle.wait(seconds if seconds > 0 else -1.0)
        self._settle()
        return True

    def is_completed(self) -> bool:
        """Return True once the operation has ended, well or badly."""
        return bool(self._handle.poll())

    def is_success(self) -> bool:
        """Return True once the operation has ended well."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        """Return what the operation failed with; ``None`` while it runs and after success."""
        if not self.is_completed():
            return None
        try:
            self.wait()
        except Exception as error:  # it is what was asked for
            return error
        return None

    def result(self) -> list[torch.Tensor]:
        """Return the tensors that hold the result, after :meth:`wait`."""
        self.wait()
        return self._result

    def synchronize(self) -> None:
        """Wait; on the CPU there is no stream to order instead."""
        self.wait()

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return the future of the result; the ring's thread completes it."""
        with self._lock:
            if self._future is not None:
                return self._future
            future = self._future = torch.futures.Future()
        self._handle.add_done_callback(lambda: self._threads.submit(self._complete, future))
        return future

    def _complete(self, future: torch.futures.Future[list[torch.Tensor]]) -> None:
        try:
            self.wait()
        except Exception as error:  # the future carries it to whoever waits
            future.set_exception(error)  # type: ignore[arg-type]
        else:
            future.set_result(self._result)

    def _settle(self) -> None:
        with self._lock:
            finish, self._finish = self._finish, None
            if finish is not None:
                try:
                    self._result = finish(self._handle)
                except Exception as error:  # whoever else waits must hear of it too
                    self._failure = error
        if self._failure is not None:
            raise self._failure


class Together:
    """Several works as one handle: done when all are; the first that failed is what is raised."""

    def __init__(self, works: Sequence[RingWork]) -> None:
        self._works = works

    def poll(self) -> bool:
        """Return True once all have ended."""
        return all(work.is_completed() for work in self._works)

    def wait(self, timeout: float = -1.0) -> None:
        """Wait for all; ``timeout`` in seconds for each, negative for the group's own."""
        limit = _NO_TIMEOUT if timeout < 0 else timedelta(seconds=timeout)
        for work in self._works:
            work.wait(limit)

    def add_done_callback(self, callback: Callable[[], Any]) -> None:
        """Call ``callback()`` once all have ended; at once if there are none."""
        if not self._works:
            callback()
            return
        futures = [work.get_future() for work in self._works]
        torch.futures.collect_all(futures).add_done_callback(lambda _: callback())
