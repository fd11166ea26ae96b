"""What a materialized dataset holds: ``_manifest.json``, written last.

::

    {"version": 1, "key": "…", "contract": {…}, "statistics": {…},
     "splits": {"train": [["train/part-0.parquet", 0, 4096, 917504], …], "val": […]}}

A split is a list of row groups: file (relative to the dataset's folder), number of the row group in that
file, rows, and bytes before compression. A folder without the file is not a dataset yet: Spark was
interrupted, or is still writing. Any folder of Parquet files can be scanned, whoever wrote it.

No check here goes by the size of files: constant columns compress to less than a byte a row.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow.parquet as pq

from spark_ring.data.arrow import check_type, source_names
from spark_ring.data.location import MANIFEST_NAME
from spark_ring.data.schema import Contract
from spark_ring.data.store import Store
from spark_ring.errors import ColumnError, ManifestError, StoreError

__all__ = ["MANIFEST_NAME", "Manifest", "RowGroup"]

_VERSION = 1
_SCAN_THREADS = 8


@dataclass(frozen=True)
class RowGroup:
    """One row group.

    Attributes:
        file: path relative to the dataset's folder.
        index: its number in that file.
        rows: rows, at least 1.
        bytes: size of its columns before compression.
    """

    file: str
    index: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class Manifest:
    """The contents of one dataset.

    Attributes:
        dataset: folder, relative to the store's root.
        contract: the column contract the data were written for.
        splits: split name (``"train"``, ``"val"``) → row groups in written order.
        statistics: JSON values that the writer wants to keep, for example mean and deviation per tensor.
        key: the content address under which the data are cached; ``""`` when there is none.
    """

    dataset: str
    contract: Contract
    splits: Mapping[str, tuple[RowGroup, ...]]
    statistics: Mapping[str, Any] = field(default_factory=dict)
    key: str = ""

    def row_groups(self, split: str = "train") -> tuple[RowGroup, ...]:
        """Return the row groups of a split, in written order (possibly none).

        Raises:
            ManifestError: there is no such split.
        """
        if split not in self.splits:
            raise ManifestError(
                f"dataset {self.dataset!r} has no split {split!r}; it has {', '.join(self.splits) or 'none'}"
            )
        return self.splits[split]

    def rows(self, split: str = "train") -> int:
        """Return the number of rows of a split."""
        return sum(group.rows for group in self.row_groups(split))

    def bytes(self, split: str = "train") -> int:
        """Return the uncompressed bytes of a split."""
        return sum(group.bytes for group in self.row_groups(split))

    @classmethod
    def scan(
        cls,
        store: Store,
        dataset: str,
        contract: Contract,
        splits: Mapping[str, str | Sequence[str]] | Sequence[str] = ("train",),
        *,
        statistics: Mapping[str, Any] | None = None,
        key: str = "",
        wait: float = 30.0,
    ) -> Manifest:
        """Read the footers of all files, in parallel.

        Args:
            store: the store.
            dataset: folder relative to the store's root; ``""`` is the root.
            contract: tensors that every file must hold, in types that fit.
            splits: names of sub-folders; or name → sub-folder (``""``: the dataset's folder itself); or
                name → list of files relative to the dataset's folder.
            statistics: kept in the manifest.
            key: kept in the manifest.
            wait: seconds to allow for folders and listed files to become visible.

        Raises:
            StoreError: something is not visible after ``wait`` seconds.
            ManifestError: a file is not Parquet.
            ColumnError: a file lacks a tensor, or holds it in a type that does not fit.
        """
        named = splits if isinstance(splits, Mapping) else {name: name for name in splits}
        deadline = time.monotonic() + wait
        listed = {name: _files(store, dataset, value, deadline) for name, value in named.items()}
        every = [file for files in listed.values() for file in files]
        if every:
            with ThreadPoolExecutor(min(_SCAN_THREADS, len(every)), "spark_ring-scan") as pool:
                footers = dict(
                    zip(
                        every,
                        pool.map(lambda f: _footer(store, dataset, f, contract, deadline), every),
                        strict=True,
                    )
                )
        groups = {
            name: tuple(group for file in files for group in footers[file]) for name, files in listed.items()
        }
        return cls(dataset, contract, groups, dict(statistics or {}), key)

    def write(self, store: Store) -> None:
        """Write ``_manifest.json``; from then on the dataset exists."""
        value = {
            "version": _VERSION,
            "key": self.key,
            "contract": self.contract.to_dict(),
            "statistics": self.statistics,
            "splits": {
                name: [[group.file, group.index, group.rows, group.bytes] for group in groups]
                for name, groups in self.splits.items()
            },
        }
        text = json.dumps(value, ensure_ascii=False, allow_nan=True, separators=(",", ":"))
        store.write_bytes(_below(self.dataset, MANIFEST_NAME), text.encode())

    @classmethod
    def read(cls, store: Store, dataset: str, *, wait: float = 0.0) -> Manifest:
        """Read ``_manifest.json``.

        Args:
            store: the store.
            dataset: folder relative to the store's root.
            wait: seconds to allow for the file to become visible on this machine.

        Raises:
            ManifestError: there is none, it is damaged, or another version of the library wrote it.
        """
        relative = _below(dataset, MANIFEST_NAME)
        try:
            store.wait_for(relative, wait)
        except StoreError as error:
            raise ManifestError(
                f"there is no complete dataset at {store.path(dataset)!r}: {error}"
            ) from error
        try:
            value = json.loads(store.read_bytes(relative))
            version = value["version"]
        except (ValueError, KeyError, TypeError) as error:
            raise _damaged(store, relative, error) from error
        if version != _VERSION:
            raise ManifestError(
                f"{store.path(relative)!r} has format version {version!r} and this library reads {_VERSION}; "
                "delete the dataset and materialize it again"
            )
        try:
            return cls(
                dataset=dataset,
                contract=Contract.from_dict(value["contract"]),
                splits={
                    name: tuple(RowGroup(str(f), int(i), int(r), int(b)) for f, i, r, b in groups)
                    for name, groups in value["splits"].items()
                },
                statistics=value["statistics"],
                key=value["key"],
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _damaged(store, relative, error) from error

    @staticmethod
    def present(store: Store, dataset: str) -> bool:
        """Whether a dataset is complete here. A folder without a manifest is no error, only not a dataset."""
        return store.exists(_below(dataset, MANIFEST_NAME))


def _files(store: Store, dataset: str, value: str | Sequence[str], deadline: float) -> list[str]:
    if not isinstance(value, str):
        return list(value)
    folder = _below(dataset, value)
    store.wait_for(folder, max(0.0, deadline - time.monotonic()))
    return [_below(value, file) for file in store.files(folder, ".parquet")]


def _footer(store: Store, dataset: str, file: str, contract: Contract, deadline: float) -> list[RowGroup]:
    relative = _below(dataset, file)
    store.wait_for(relative, max(0.0, deadline - time.monotonic()))
    try:
        with store.open_input(relative) as source, pq.ParquetFile(source) as parquet:
            metadata, schema = parquet.metadata, parquet.schema_arrow
    except StoreError:
        raise
    except (OSError, ValueError) as error:  # pyarrow's ArrowInvalid is a ValueError
        raise ManifestError(f"{store.path(relative)!r} cannot be read as Parquet: {error}") from error
    for spec in contract.tensors:
        at = schema.get_field_index(spec.name)
        if at < 0:
            column = spec.columns[0].name if spec.columns else spec.name
            raise ColumnError(
                f"{store.path(relative)!r} has no column {spec.name!r}, the tensor made of "
                f"{source_names(spec)}; it has {', '.join(schema.names) or 'none'}",
                column=column,
            )
        check_type(schema.field(at).type, spec)
    return list(_groups(file, metadata))


def _groups(file: str, metadata: pq.FileMetaData) -> Iterator[RowGroup]:
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        if group.num_rows:
            yield RowGroup(file, index, group.num_rows, group.total_byte_size)


def _below(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder and name else folder or name


def _damaged(store: Store, relative: str, error: Exception) -> ManifestError:
    return ManifestError(
        f"{store.path(relative)!r} is damaged ({type(error).__name__}: {error}); delete the dataset and "
        "materialize it again"
    )
