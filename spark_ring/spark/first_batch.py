"""One batch through model and loss on the driver, before any worker starts.

First the first rows of the dataset. Then, where integers are used as indices (classes in a loss, rows of an
embedding), two rows made of the smallest and the largest values in the whole dataset: an index that is out
of range somewhere in the data is found here, with the column's name, and not by a worker in an epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from spark_ring.data.batch import Batch
from spark_ring.data.parquet import ParquetReader
from spark_ring.data.schema import TensorSpec
from spark_ring.data.store import Store
from spark_ring.errors import ColumnError, PreflightError
from spark_ring.spark.materialize import Dataset

__all__ = ["try_first_batch"]

_ROWS = 8

Probe = Callable[[dict[str, Any], Any, Batch], Any]


def try_first_batch(probe: Probe, payload: dict[str, Any], dataset: Dataset, store: Store) -> Any:
    """Run a framework's probe on real rows and on extreme ones.

    Args:
        probe: the framework's ``probe(payload, contract, batch)``.
        payload: the user's objects.
        dataset: what is going to be trained on.
        store: where it lies.

    Returns:
        What the probe found on the first rows.

    Raises:
        PreflightError: model, loss, optimizer or a metric does not take the data.
        ColumnError: a column holds integers that are no valid index for the model or the loss.
    """
    contract = dataset.contract
    batch = _first_rows(dataset, store)
    try:
        found = probe(payload, contract, batch)
    except PreflightError as error:
        _blame(probe, payload, dataset, batch, error)
        raise
    indices = _index_tensors(dataset, found.label_dtypes)
    if indices:
        extreme = _extreme(batch, indices, dataset.manifest.statistics)
        try:
            probe(payload, contract, extreme)
        except PreflightError as error:
            # An impossible row may fail in ways of its own; only an index out of range counts.
            _blame(probe, payload, dataset, extreme, error)
    return found


def _first_rows(dataset: Dataset, store: Store) -> Batch:
    reader = ParquetReader(
        store,
        dataset.path,
        dataset.manifest,
        dataset.contract,
        rank=0,
        size=1,
        batch_size=_ROWS,
        shuffle=False,
        seed=0,
    )
    try:
        return reader.preview(_ROWS)
    finally:
        reader.close()


def _index_tensors(dataset: Dataset, label_dtypes: Sequence[str]) -> list[TensorSpec]:
    """Return integer inputs, and labels that the loss takes as integers."""
    contract = dataset.contract
    labels = [s for s, kind in zip(contract.labels, label_dtypes, strict=True) if kind.startswith("int")]
    return [spec for spec in (*contract.inputs, *labels) if spec.dtype.startswith("int")]


def _blame(probe: Probe, payload: dict[str, Any], dataset: Dataset, batch: Batch, error: Exception) -> None:
    """Raise ColumnError if an index out of range is why a batch failed: the one without which it passes."""
    if not _is_index_error(error):
        return
    for spec in dataset.contract.tensors:
        if not spec.dtype.startswith("int"):
            continue
        try:
            probe(payload, dataset.contract, _zeroed(batch, spec.name))
        except PreflightError:
            continue
        found = dataset.manifest.statistics[spec.name]
        name = ", ".join(repr(column.name) for column in spec.columns)
        raise ColumnError(
            f"column {name} holds integers from {found['min']} to {found['max']}, and some are out of range; "
            "class and index numbers count from 0 to one less than the model's size. With such rows "
            f"{error}",
            column=spec.columns[0].name,
        ) from error


def _zeroed(batch: Batch, name: str) -> Batch:
    def zeroed(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {key: np.zeros_like(array) if key == name else array for key, array in arrays.items()}

    return replace(batch, inputs=zeroed(batch.inputs), labels=zeroed(batch.labels))


def _extreme(batch: Batch, indices: list[TensorSpec], statistics: Mapping[str, Any]) -> Batch:
    """Return two rows: the first row with the smallest values in some tensors, and with the largest."""

    def rows(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        twice = {name: np.repeat(array[:1], 2, axis=0) for name, array in arrays.items()}
        for spec in indices:
            if spec.name in twice:
                twice[spec.name][0] = statistics[spec.name]["min"]
                twice[spec.name][1] = statistics[spec.name]["max"]
        return twice

    return replace(
        batch,
        inputs=rows(batch.inputs),
        labels=rows(batch.labels),
        weight=None if batch.weight is None else np.ones(2, np.float32),
        rows=2,
        global_rows=2,
    )


def _is_index_error(error: Exception) -> bool:
    return "IndexError" in str(error)
