"""A thread on the driver that follows a run's progress in the store while the barrier stage runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from spark_ring.data.store import Store
from spark_ring.spark.display import Display
from spark_ring.tracking import Tracker
from spark_ring.train.progress import ProgressReader

__all__ = ["Watch"]

_POLL_SECONDS = 0.25

_log = logging.getLogger(__name__)


class Watch:
    """Shows progress and hands each epoch's record to the tracker, once. A context manager.

    Args:
        store: where the run's folder is.
        run_id: the run.
        epochs: how many epochs there will be at most.
        display: where to show.
        tracker: what keeps the records.
    """

    def __init__(self, store: Store, run_id: str, epochs: int, display: Display, tracker: Tracker) -> None:
        self._reader = ProgressReader(store, run_id)
        self._epochs = epochs
        self._display = display
        self._tracker = tracker
        self._seen = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="spark_ring watch", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._poll()
        self._display.close()

    def catch_up(self, history: Sequence[Mapping[str, Any]]) -> None:
        """Report the epochs not seen in the store; call it after the block, with the whole history."""
        for record in history[self._seen :]:
            self._report(record)

    def _follow(self) -> None:
        while not self._stop.wait(_POLL_SECONDS):
            self._poll()

    def _poll(self) -> None:
        try:
            progress = self._reader.poll()
            for record in progress.records:
                self._report(record)
            if progress.live is not None:
                self._display.live(progress.live)
        except Exception:  # showing progress never fails a fit
            _log.debug("progress could not be shown", exc_info=True)

    def _report(self, record: Mapping[str, Any]) -> None:
        self._seen += 1
        self._display.epoch(record, self._epochs)
        self._tracker.log_epoch(record)
