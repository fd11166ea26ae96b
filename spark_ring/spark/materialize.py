"""Write a DataFrame's tensors as a Parquet dataset in the store, in one pass, and check them on the way.

::

    datasets/<key>/<attempt>/split=train/*.parquet    written by Spark, one column per tensor
    datasets/<key>/<attempt>/split=val/*.parquet
    datasets/<key>/<attempt>/_manifest.json           written last: before that the dataset does not exist

Each write has a folder of its own, so two drivers that write the same dataset never touch each other's files.
Spark counts nulls, lengths, smallest and largest values while it writes (:mod:`.statistics`); data that
cannot be trained on are deleted again and the error names the column.

``<key>`` is a digest of everything that decides the content: the identity of the DataFrame's data
(:mod:`.identity`), the contract asked for, the split, and the format. Where a dataset with this key is
complete it is used as it is. A DataFrame without a certain identity gets a random key, and its dataset is
deleted when the fit ends.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from spark_ring.data.manifest import Manifest
from spark_ring.data.schema import Contract
from spark_ring.data.store import Store
from spark_ring.errors import DataError, ManifestError
from spark_ring.spark import statistics
from spark_ring.spark.columns import resolve_contract, tensor_column
from spark_ring.spark.identity import identity
from spark_ring.spark.split import TRAIN, VALIDATION, Split

__all__ = ["Dataset", "Request", "materialize"]

_FORMAT = 1
# Bytes that a row group takes in memory: small enough to shuffle among many, large enough to read in one go.
_ROW_GROUP_BYTES = 8 * 1024 * 1024
_VISIBLE_SECONDS = 60.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """What a fit wants to read.

    Attributes:
        inputs: the input columns, as in :func:`~spark_ring.spark.columns.resolve_contract`.
        labels: the label columns.
        weight: the column of row weights, or ``None``.
        split: how rows are divided between training and validation.
    """

    inputs: str | list[str] | Mapping[str, str | list[str]]
    labels: list[str]
    weight: str | None = None
    split: Split = field(default_factory=Split)

    def contract(self, df: DataFrame) -> Contract:
        """Decide the contract from the DataFrame's schema; sizes of arrays are still unknown.

        Raises:
            ColumnError: a column is missing or cannot become a tensor.
        """
        schema = df.schema
        self.split.check(schema)
        return resolve_contract(schema, self.inputs, self.labels, self.weight)


@dataclass(frozen=True)
class Dataset:
    """A dataset that is ready to be read.

    Attributes:
        path: its folder, relative to the store's root.
        manifest: what it holds; ``manifest.contract`` has every size.
        reused: whether it was there already.
        temporary: what to delete after the fit; ``None`` for a dataset that stays, for the next fit.
    """

    path: str
    manifest: Manifest
    reused: bool
    temporary: str | None = None

    @property
    def contract(self) -> Contract:
        """The complete contract."""
        return self.manifest.contract

    @property
    def folder(self) -> str:
        """The folder of all datasets with this content, relative to the store's root."""
        return self.path.rsplit("/", 1)[0]

    def again(self) -> Dataset:
        """Return the same dataset as another fit sees it."""
        return replace(self, reused=True)

    @property
    def validates(self) -> bool:
        """Whether there are rows for validation."""
        return VALIDATION in self.manifest.splits

    def discard(self, store: Store) -> None:
        """Delete a temporary dataset. Never raises."""
        if self.temporary is not None:
            with contextlib.suppress(Exception):
                store.delete(self.temporary)


def materialize(df: DataFrame, store: Store, request: Request, run_id: str) -> Dataset:
    """Write the tensors of a DataFrame, or find them written.

    Args:
        df: the user's DataFrame.
        store: where to write.
        request: which columns, and how rows are divided.
        run_id: the run that is going to read the dataset; written down before looking for it.

    Raises:
        ColumnError: a column is missing, cannot become a tensor, or its data cannot be used.
        DataError: there are no rows to train on.
        StoreError: the store cannot be written, or what Spark wrote is not visible here.
    """
    contract = request.contract(df)
    source = identity(df)
    key = _key(source, contract, request) if source else uuid.uuid4().hex
    folder = f"datasets/{key}"
    store.register_run(run_id, folder)
    if source and (found := _find(store, folder, key)) is not None:
        return Dataset(found.dataset, found, reused=True)
    path = f"{folder}/{uuid.uuid4().hex}"
    own = path if source else folder
    try:
        manifest = _write(df, store, contract, request, path)
        # A source that changed while it was read gives data that no identity describes.
        lasting = source is not None and identity(df) == source
        manifest = replace(manifest, key=key if lasting else "")
        manifest.write(store)
    except BaseException:
        with contextlib.suppress(Exception):
            store.delete(own)
        raise
    return Dataset(path, manifest, reused=False, temporary=None if lasting else own)


def _write(df: DataFrame, store: Store, contract: Contract, request: Request, path: str) -> Manifest:
    """Write the dataset's files and check what was counted meanwhile; the manifest is not written yet."""
    split = request.split
    observation = Observation()
    tensors = [tensor_column(spec) for spec in contract.tensors]
    names = [F.col(spec.name) for spec in contract.tensors]
    helpers = statistics.source_helpers(contract, split)
    packed = df.select(*tensors, split.column().alias("split"), *helpers)
    chosen = statistics.with_helpers(packed, contract).observe(
        observation, *statistics.observed(contract, split)
    )
    (
        chosen.select(*names, "split")
        .write.partitionBy("split")
        .option("parquet.block.size", _ROW_GROUP_BYTES)
        .option("parquet.enable.dictionary", "false")
        .parquet(store.spark_path(path))
    )
    counts = observation.get
    statistics.check(counts, contract, split, df)
    complete = statistics.completed(contract, counts)
    manifest = Manifest.scan(
        store,
        path,
        complete,
        _split_folders(counts, request),
        statistics=statistics.summary(counts, contract),
        wait=_VISIBLE_SECONDS,
    )
    written = sum(manifest.rows(name) for name in manifest.splits)
    if written != counts["rows"]:
        raise DataError(
            f"Spark wrote {counts['rows']} rows to {store.path(path)!r} and {written} are visible there; "
            "is this storage shared by driver and executors?"
        )
    return manifest


def _split_folders(counts: Mapping[str, Any], request: Request) -> dict[str, str]:
    folders = {TRAIN: f"split={TRAIN}"}
    if not request.split.wanted:
        return folders
    if counts["val_rows"]:
        return {**folders, VALIDATION: f"split={VALIDATION}"}
    _log.warning(
        "no row of %d fell to validation (%s); training goes on without validation",
        counts["rows"],
        f"validationFraction={request.split.fraction:g}"
        if request.split.indicator is None
        else f"validationIndicatorCol={request.split.indicator!r}",
    )
    return folders


def _find(store: Store, folder: str, key: str) -> Manifest | None:
    """Return the manifest of a complete dataset with this key, all of whose files are there."""
    for attempt in store.list(folder):
        path = f"{folder}/{attempt}"
        try:
            manifest = Manifest.read(store, path)
        except ManifestError:
            continue
        files = {group.file for name in manifest.splits for group in manifest.row_groups(name)}
        if manifest.key == key and files <= set(store.files(path, ".parquet")):
            return manifest
    return None


def _key(source: str, contract: Contract, request: Request) -> str:
    parts = [_FORMAT, source, contract.to_dict(), request.split.key()]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
