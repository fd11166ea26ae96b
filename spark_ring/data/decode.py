"""Row groups of a dataset to NumPy arrays: one column per tensor, nothing else is read."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import pyarrow.parquet as pq

from spark_ring.data.arrow import to_tensor
from spark_ring.data.manifest import RowGroup
from spark_ring.data.schema import Contract, TensorSpec
from spark_ring.data.store import Store
from spark_ring.errors import ColumnError, ManifestError, StoreError

__all__ = ["Arrays", "Decoder", "row_bytes"]

#: Tensor name → rows ``(n, *shape)``.
Arrays = dict[str, np.ndarray]


def row_bytes(specs: Sequence[TensorSpec]) -> int:
    """Return the bytes of one row in memory, over the given tensors."""
    return sum(int(np.prod(spec.shape, dtype=np.int64)) * np.dtype(spec.dtype).itemsize for spec in specs)


class Decoder:
    """Reads row groups; safe to call from several threads.

    Args:
        store: the store.
        dataset: the dataset's folder, relative to the store's root.
        groups: the row groups, by which they are numbered here.
        contract: the tensors to read.
    """

    def __init__(self, store: Store, dataset: str, groups: Sequence[RowGroup], contract: Contract) -> None:
        self._store, self._dataset, self._groups = store, dataset, groups
        self._specs = contract.tensors
        self._columns = [spec.name for spec in self._specs]
        self._footers: dict[str, pq.FileMetaData] = {}
        self._lock = threading.Lock()

    def __call__(self, number: int) -> Arrays:
        """Read one row group.

        Raises:
            ColumnError: its values do not fit the contract; names columns, file and row group.
            ManifestError: the file is not what the manifest says.
            StoreError: it cannot be read.
        """
        group = self._groups[number]
        where = f"{self._dataset}/{group.file}" if self._dataset else group.file
        try:
            with (
                self._store.open_input(where) as source,
                pq.ParquetFile(source, metadata=self._footers.get(group.file)) as parquet,
            ):
                with self._lock:
                    self._footers.setdefault(group.file, parquet.metadata)
                if group.index >= parquet.num_row_groups:
                    raise self._changed(where, f"has {parquet.num_row_groups} row groups")
                table = parquet.read_row_group(group.index, columns=self._columns, use_threads=False)
        except (StoreError, ManifestError):
            raise
        except (OSError, ValueError) as error:
            raise ManifestError(f"{self._store.path(where)!r} cannot be read as Parquet: {error}") from error
        if table.num_rows != group.rows:
            raise self._changed(where, f"row group {group.index} has {table.num_rows} rows")
        try:
            return {spec.name: to_tensor(table.column(spec.name), spec) for spec in self._specs}
        except KeyError as error:
            raise self._changed(where, f"there is no column {error}") from error
        except ColumnError as error:
            raise ColumnError(
                f"{error} (row group {group.index} of {where!r})", column=error.column
            ) from error

    def _changed(self, where: str, found: str) -> ManifestError:
        return ManifestError(
            f"{self._store.path(where)!r} is not the file that the manifest describes: {found}; "
            "delete the dataset and materialize it again"
        )
