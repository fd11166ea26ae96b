"""Deleting what nobody needs any more, by age.

The age of a dataset, run or mark is the time since anything in it was written. A dataset that a younger run
reads is kept however old it is; a run says which one in its ``run.json`` (:meth:`Store.register_run`), before
it looks whether the dataset is there. A young run that does not say keeps every dataset: better a full disk
than a broken fit.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from pyarrow import fs

from spark_ring.data.location import MANIFEST_NAME
from spark_ring.errors import StoreError

if TYPE_CHECKING:
    from spark_ring.data.store import Store

__all__ = ["clean"]


def clean(store: Store, older_than: float) -> list[str]:
    """Delete runs, datasets and marks older than ``older_than`` seconds; see :meth:`Store.clean`."""
    limit = time.time() - older_than
    deleted = []
    for folder in ("runs", "marks"):
        for name in store.list(folder):
            if _newest(store, f"{folder}/{name}") < limit:
                deleted.append(f"{folder}/{name}")
                store.delete(deleted[-1])
    for name in store.list("datasets"):
        dataset = f"datasets/{name}"
        if _newest(store, dataset) < limit and not _in_use(store, dataset):
            _delete_dataset(store, dataset)
            deleted.append(dataset)
    return deleted


def _delete_dataset(store: Store, dataset: str) -> None:
    # Without its manifest a dataset does not exist: nobody starts to read what is half deleted.
    below = store.filesystem.get_file_info(fs.FileSelector(store.path(dataset), recursive=True))
    for entry in below:
        if entry.base_name == MANIFEST_NAME:
            store.filesystem.delete_file(entry.path)
    store.delete(dataset)


def _newest(store: Store, relative: str) -> float:
    """Seconds since 1970 of the last change in a file or folder; now, if it just vanished."""
    entries = [store.filesystem.get_file_info(store.path(relative))]
    if entries[0].type == fs.FileType.Directory:
        selector = fs.FileSelector(store.path(relative), recursive=True, allow_not_found=True)
        entries += store.filesystem.get_file_info(selector)
    times = [entry.mtime_ns for entry in entries if entry.mtime_ns]
    return max(times) / 1e9 if times else time.time()


def _in_use(store: Store, dataset: str) -> bool:
    """Whether a run that is left reads the dataset, or does not say what it reads."""
    for run in store.list("runs"):
        try:
            reads = json.loads(store.read_bytes(f"runs/{run}/run.json"))["dataset"]
        except (StoreError, ValueError, KeyError, TypeError):
            return True
        if reads == dataset:
            return True
    return False
