"""Datasets that one or several fits share while they run.

``fitMultiple`` (and so ``CrossValidator`` and ``TrainValidationSplit``) fits one DataFrame with many Param
maps. The data are then written once for all maps that ask for the same columns and the same split, also where
the DataFrame has no identity that lasts beyond this call.
"""

from __future__ import annotations

import threading
import weakref
from types import TracebackType

from pyspark.sql import DataFrame

from spark_ring.data.store import Store
from spark_ring.spark.materialize import Dataset, Request, materialize

__all__ = ["DatasetPool"]


class DatasetPool:
    """The datasets of one DataFrame, each written at most once. Thread-safe; a context manager.

    Leaving it deletes the temporary ones; so does the garbage collector, if nobody leaves it.

    Args:
        dataset: the user's DataFrame.
        fits: :meth:`leave` is called by so many fits; the last one closes the pool. 0 leaves that to the
            context manager.
    """

    def __init__(self, dataset: DataFrame, fits: int = 0) -> None:
        self.dataset = dataset
        self._fits = fits
        self._lock = threading.Lock()
        self._written: dict[str, tuple[Store, Dataset]] = {}
        self._discard = weakref.finalize(self, _discard_all, self._written)

    def get(self, store: Store, request: Request, run_id: str) -> Dataset:
        """Return the dataset for a request; written by the first who asks. Errors as in ``materialize``."""
        key = repr((store.url, request))
        with self._lock:
            if key in self._written:
                dataset = self._written[key][1]
                store.register_run(run_id, dataset.folder)
                return dataset.again()
            dataset = materialize(self.dataset, store, request, run_id)
            self._written[key] = (store, dataset)
            return dataset

    def leave(self) -> None:
        """Say that one of the fits is over."""
        with self._lock:
            self._fits -= 1
            last = self._fits == 0
        if last:
            self.close()

    def close(self) -> None:
        """Delete the temporary datasets."""
        self._discard()

    def __enter__(self) -> DatasetPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _discard_all(written: dict[str, tuple[Store, Dataset]]) -> None:
    for store, dataset in written.values():
        dataset.discard(store)
    written.clear()
