"""One batch on the driver: real rows, then the extremes of what is used as an index."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_ring.data.manifest import Manifest
from spark_ring.data.schema import Contract, SourceColumn, TensorSpec
from spark_ring.data.store import Store
from spark_ring.errors import ColumnError, PreflightError
from spark_ring.spark.first_batch import try_first_batch
from spark_ring.spark.materialize import Dataset


def dataset_of(store, kinds, labels):
    contract = Contract(
        inputs=(TensorSpec("x0", (SourceColumn("kind", "int"),), "int64"),),
        labels=(TensorSpec("y0", (SourceColumn("label", "bigint"),), "int64"),),
    )
    store.makedirs("d/train")
    pq.write_table(pa.table({"x0": kinds, "y0": labels}), store.path("d/train/a.parquet"))
    statistics = {
        name: {"min": min(values), "max": max(values)} for name, values in (("x0", kinds), ("y0", labels))
    }
    return Dataset("d", Manifest.scan(store, "d", contract, statistics=statistics), reused=False)


def indexing(kinds, classes, seen, label_dtype="int64"):
    """A probe of a model with so many kinds and classes; it keeps what it was given."""

    def probe(payload, contract, batch):
        seen.append((batch.inputs["x0"].tolist(), batch.labels["y0"].tolist()))
        label = batch.labels["y0"] if label_dtype == "int64" else np.zeros(1)
        for what, values, size in (("index", batch.inputs["x0"], kinds), ("Target", label, classes)):
            if values.min() < 0 or values.max() >= size:
                raise PreflightError(f"IndexError: {what} is out of range.")
        return SimpleNamespace(label_dtypes=(label_dtype,))

    return probe


def test_real_rows_come_first_then_the_extremes(tmp_path):
    store, seen = Store(tmp_path), []
    dataset = dataset_of(store, [*range(10)] * 2, [0, 1] * 10)
    found = try_first_batch(indexing(10, 2, seen), {}, dataset, store)
    assert found.label_dtypes == ("int64",)
    assert seen == [([*range(8)], [0, 1] * 4), ([0, 9], [0, 1])]


@pytest.mark.parametrize(
    ("kinds", "labels", "column"),
    [
        ([0, 1] * 9 + [7], [0, 1] * 9 + [0], "kind"),  # far from the first rows
        ([0, 1] * 9 + [0], [0, 1] * 9 + [5], "label"),
        ([0, 1] * 9 + [-1], [0, 1] * 9 + [0], "kind"),
        ([7, 1] * 9, [0, 1] * 9, "kind"),  # in the first rows
        ([0, 1] * 9, [5, 1] * 9, "label"),
    ],
)
def test_an_index_out_of_range_anywhere_names_its_column(tmp_path, kinds, labels, column):
    store = Store(tmp_path)
    dataset = dataset_of(store, kinds, labels)
    with pytest.raises(ColumnError, match=f"column '{column}' holds integers from .*out of range") as caught:
        try_first_batch(indexing(4, 3, []), {}, dataset, store)
    assert caught.value.column == column


def test_labels_that_the_loss_takes_as_numbers_may_have_any_value(tmp_path):
    store = Store(tmp_path)
    dataset = dataset_of(store, [0, 1] * 9, [0, 1000] * 9)
    try_first_batch(indexing(4, 3, [], label_dtype="float32"), {}, dataset, store)


def test_an_impossible_row_that_fails_otherwise_is_forgiven_and_a_real_one_is_not(tmp_path):
    store = Store(tmp_path)
    dataset = dataset_of(store, [0, 1] * 9, [0, 1] * 9)

    def fails_on(rows):
        def probe(payload, contract, batch):
            if batch.rows == rows:
                raise PreflightError("no such combination")
            return SimpleNamespace(label_dtypes=("int64",))

        return probe

    try_first_batch(fails_on(2), {}, dataset, store)
    with pytest.raises(PreflightError, match="no such combination"):
        try_first_batch(fails_on(8), {}, dataset, store)
