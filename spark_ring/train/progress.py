"""How the driver sees training while it runs: small JSON files in the store.

Rank 0 writes, into ``runs/<run>/progress``:

* ``live.json``: where training is now, written again at most every ``progress_seconds``;
* ``epoch-00003.json``: the record of a finished epoch; its content never changes.

A thread of its own writes them, so that a slow store never holds up a training step; if the store is slower
than the reports, the older report is dropped. Trouble with these files is logged and never fails training.

The driver polls: :class:`ProgressReader` gives each epoch's record once, in order, and the newest live state.
A file that is missing, partial or being replaced is simply not news yet.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from dataclasses import dataclass
from typing import Any

from spark_ring.data.store import Store

__all__ = ["Progress", "ProgressReader", "ProgressWriter"]

log = logging.getLogger(__name__)


class ProgressWriter:
    """Rank 0's side. Close it, or use it as a context manager.

    Args:
        store: where the run's folder is.
        run_id: the run.
        interval: at most one live report in this many seconds.
        active: ``False`` makes a writer that does nothing (the other ranks).
    """

    def __init__(self, store: Store, run_id: str, interval: float, active: bool = True) -> None:
        self._store = store
        self._folder = f"runs/{run_id}/progress"
        self._interval = interval
        self._due = 0.0
        self._wake = threading.Condition()
        self._pending: dict[str, bytes] = {}
        self._closing = False
        self._thread: threading.Thread | None = None
        if active:
            self._thread = threading.Thread(target=self._write_all, name="spark_ring progress", daemon=True)
            self._thread.start()

    def __enter__(self) -> ProgressWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def due(self) -> bool:
        """Whether a live report would be taken now."""
        return self._thread is not None and time.monotonic() >= self._due

    def live(self, state: dict[str, Any]) -> None:
        """Report where training is. Ignored when the last report is younger than the interval."""
        if self.due:
            self._due = time.monotonic() + self._interval
            self._put("live.json", state)

    def epoch(self, record: dict[str, Any]) -> None:
        """Report a finished epoch."""
        self._put(f"epoch-{record['epoch']:05d}.json", record)

    def clear(self, after: int) -> None:
        """Delete what an earlier use of the run left: live state, and records of epochs beyond ``after``."""
        if self._thread is None:
            return
        for name in self._store.list(self._folder):
            number = name.removeprefix("epoch-").removesuffix(".json")
            if not number.isdigit() or int(number) > after:
                self._store.delete(f"{self._folder}/{name}")

    def close(self) -> None:
        """Write what is pending and end the thread. Idempotent."""
        if self._thread is None:
            return
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()
        self._thread = None

    def _put(self, name: str, content: dict[str, Any]) -> None:
        if self._thread is None:
            return
        with self._wake:
            self._pending[name] = json.dumps(content).encode()
            self._wake.notify()

    def _write_all(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._pending or self._closing)
                batch, self._pending = self._pending, {}
            if not batch:
                return
            for name, data in batch.items():
                try:
                    self._store.write_bytes(f"{self._folder}/{name}", data)
                except Exception as problem:
                    log.warning("progress file %s could not be written: %s", name, problem)


@dataclass(frozen=True)
class Progress:
    """What a poll found.

    Attributes:
        live: where training is (``epoch``, ``epochs``, ``step``, ``steps``, ``loss``, ``rows_per_second``),
            or ``None`` before the first report. ``loss`` is rank 0's own mean so far in the epoch.
        records: records of epochs that finished since the last poll, in order.
    """

    live: dict[str, Any] | None
    records: list[dict[str, Any]]


class ProgressReader:
    """The driver's side.

    Args:
        store: where the run's folder is.
        run_id: the run.
    """

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._folder = f"runs/{run_id}/progress"
        self._live: dict[str, Any] | None = None
        self._next = 1

    def poll(self) -> Progress:
        """Look once. Never raises for a file that is not there or not whole; never gives a record twice."""
        records = []
        while (record := self._read(f"epoch-{self._next:05d}.json")) is not None:
            records.append(record)
            self._next += 1
        self._live = self._read("live.json") or self._live
        return Progress(self._live, records)

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            content = json.loads(self._store.read_bytes(f"{self._folder}/{name}"))
        except (OSError, ValueError):
            return None
        return content if isinstance(content, dict) else None
