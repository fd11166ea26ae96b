"""Telling people who keeps a rank waiting.

The native ring notices stalls in the thread that waits (``csrc/engine/stall.h``) and leaves reports in an
outbox. That thread must never wait for Python, so one daemon thread of this process fetches the reports of
every open communicator and logs them to ``spark_ring``. It calls nothing that lets go of the GIL, so it
cannot be caught half-way when the interpreter ends, and it ends itself when no communicator is left.
"""

from __future__ import annotations

import logging
import threading
import weakref
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["Stall", "follow"]

_SHOWN = 8  # ranks that a line names
_logger = logging.getLogger("spark_ring")


@dataclass(frozen=True)
class Stall:
    """Operations of this rank that have waited longer than ``stall_warning_seconds``.

    Attributes:
        state: ``"absent"``: other ranks have not come to the next agreement. ``"different"``: other ranks
            came without these operations. ``"moving"``: all agreed and the data move slowly, or not at all.
        operations: what waits, with shape and dtype; at most three.
        count: how many operations wait.
        seconds: age of the oldest, since it was submitted.
        fails_in: seconds until the first of them passes its deadline and fails.
        ranks: the ranks that are missing, or that are waited for.
        hosts: their addresses.
        story: with ``"different"``: what each rank had when they were compared last.
        over: in a log report: the stall has ended.
    """

    state: str
    operations: tuple[str, ...]
    count: int
    seconds: float
    fails_in: float
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    story: str
    over: bool

    def text(self, rank: int, name: str = "") -> str:
        """Return the line for the log of ``rank`` in the communicator ``name``."""
        who = f"rank {rank}" + (f" of group {name!r}" if name else "")
        if self.over:
            return f"{who} goes on after {self.seconds:.3g} s: {self._operations()}"
        told = {
            "absent": f"waits for {self._ranks()}, which did not come to it yet",
            "different": f"waits for {self._ranks()}, which did not start it: {self.story}",
            "moving": f"was agreed on and waits for data of {self._ranks()}",
        }[self.state]
        return (
            f"{who} is stalled for {self.seconds:.3g} s: {self._operations()} {told}. "
            f"This is a warning; it fails in {max(0.0, self.fails_in):.3g} s"
        )

    def _operations(self) -> str:
        more = self.count - len(self.operations)
        return ", ".join(self.operations) + (f" and {more} more" if more else "")

    def _ranks(self) -> str:
        if not self.ranks:
            return "other ranks"
        shown = [f"{r} ({h})" for r, h in zip(self.ranks[:_SHOWN], self.hosts[:_SHOWN], strict=True)]
        more = f" and {len(self.ranks) - _SHOWN} more" if len(self.ranks) > _SHOWN else ""
        return ("rank " if len(self.ranks) == 1 else "ranks ") + ", ".join(shown) + more


class Source(Protocol):
    """What the reporter needs of a communicator."""

    rank: int
    name: str

    def take_stall_reports(self) -> list[Stall]:
        """Return what is to be told since the last call."""


class _Reporter:
    """The thread that logs; it lives while there is something to follow."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._sources: dict[int, tuple[weakref.ref[Source], float]] = {}
        self._thread: threading.Thread | None = None
        self._changed = threading.Event()

    def follow(self, source: Source, every: float) -> None:
        """Log what a communicator has to tell, looking every so many seconds."""
        with self._lock:
            self._sources[id(source)] = (weakref.ref(source), every)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="spark_ring stalls", daemon=True)
                self._thread.start()
            self._changed.set()

    def forget(self, source: Source) -> None:
        """Log what is left of a communicator that closes; end the thread with the last one."""
        ending: threading.Thread | None = None
        with self._lock:
            self._sources.pop(id(source), None)
            if not self._sources:  # who follows next gets a thread of its own
                ending, self._thread = self._thread, None
            self._changed.set()
        _tell(source)
        if ending is not None and ending is not threading.current_thread():
            ending.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                gone = [key for key, (ref, _) in self._sources.items() if ref() is None]
                for key in gone:
                    del self._sources[key]
                if self._thread is not threading.current_thread():
                    self._changed.set()  # it may have been meant for the other one
                    return
                if not self._sources:
                    self._thread = None
                    return
                present = [ref for ref, _ in self._sources.values()]
                pause = min(every for _, every in self._sources.values())
                self._changed.clear()
            for ref in present:
                source = ref()
                if source is not None:
                    _tell(source)
                del source
            self._changed.wait(pause)


def _tell(source: Source) -> None:
    for stall in source.take_stall_reports():
        level = logging.INFO if stall.over else logging.WARNING
        _logger.log(level, "%s", stall.text(source.rank, source.name))


def stalls_of(found: list[dict[str, Any]]) -> list[Stall]:
    """Return the native records as values."""
    return [Stall(**one) for one in found]


_reporter = _Reporter()
follow = _reporter.follow
forget = _reporter.forget
