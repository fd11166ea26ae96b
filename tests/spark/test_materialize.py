"""One pass from a DataFrame to a checked dataset in the store."""

from __future__ import annotations

import logging
import os
import shutil
from decimal import Decimal

import pytest
from pyspark.ml.linalg import Vectors
from pyspark.sql import functions as F

from spark_ring.data.manifest import Manifest
from spark_ring.data.parquet import ParquetReader
from spark_ring.data.store import Store
from spark_ring.errors import ColumnError, DataError
from spark_ring.spark.materialize import Request, materialize
from spark_ring.spark.split import Split

pytestmark = pytest.mark.spark


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "ring store")


def write(df, store, inputs="x", labels=("y",), weight=None, **split):
    return materialize(df, store, Request(inputs, list(labels), weight, Split(**split)), "run")


def read(store, dataset, split="train"):
    """All rows of a split in written order, as one batch."""
    rows = dataset.manifest.rows(split)
    reader = ParquetReader(
        store,
        dataset.path,
        dataset.manifest,
        dataset.contract,
        split=split,
        rank=0,
        size=1,
        batch_size=rows,
        shuffle=False,
        seed=0,
    )
    try:
        (batch,) = reader.epoch(1)
    finally:
        reader.close()
    return batch


def test_every_kind_of_column_arrives_with_its_dtype_and_shape(spark, store):
    """Cases 10, 14, 16, 17, 22, 25, 46, 47: what is written is what the DataFrame holds."""
    df = spark.createDataFrame(
        [
            (
                Vectors.sparse(3, [1], [2.0]),
                Decimal("1.5"),
                True,
                [[1, 2], [3, 4]],
                7,
                Vectors.dense(0.0, 1.0),
            ),
            (
                Vectors.dense(4.0, 5.0, 6.0),
                Decimal("2.5"),
                False,
                [[5, 6], [7, 8]],
                9,
                Vectors.sparse(2, [0], [1.0]),
            ),
        ],
        ["v", "sepal.width", "flag", "grid", "label", "hot"],
    ).coalesce(1)
    dataset = write(
        df, store, {"a": ["v", "sepal.width", "flag"], "grid": "grid", "one": ["label"]}, ("label", "hot")
    )
    batch = read(store, dataset)
    a, grid, one = (batch.inputs[f"x{i}"] for i in range(3))
    assert (a.dtype, a.tolist()) == ("float32", [[0, 2, 0, 1.5, 1], [4, 5, 6, 2.5, 0]])
    assert (grid.dtype, grid.tolist()) == ("int64", [[[1, 2], [3, 4]], [[5, 6], [7, 8]]])
    assert (one.dtype, one.tolist()) == ("int64", [[7], [9]])
    assert (batch.labels["y0"].dtype, batch.labels["y0"].tolist()) == ("int64", [7, 9])
    assert batch.labels["y1"].tolist() == [[0, 1], [1, 0]]
    assert [c.width for c in dataset.contract.inputs[0].columns] == [3, 1, 1]
    assert Manifest.read(store, dataset.path) == dataset.manifest


@pytest.mark.parametrize(
    ("rows", "schema", "says"),
    [
        ([(1, 1.0), (None, 2.0)], "x int, y double", r"column 'x' \(int\) is null in 1 of 2 rows"),
        ([(1.0, 1.0), (2.0, None)], "x double, y double", r"column 'y' \(double\) is null in 1 of 2"),
        ([([1.0], 1.0), (None, 2.0)], "x array<double>, y double", "is null in 1 of 2 rows"),
        ([([1.0], 1.0), ([None], 2.0)], "x array<double>, y double", "null elements in 1 of 2 rows"),
        ([([0], 1.0), ([None], 2.0)], "x array<int>, y double", "null elements in 1 of 2 rows"),
        ([(None, 1.0), (None, 2.0)], "x double, y double", "no non-null value in 2 rows"),
        ([(None, 1.0), (None, 2.0)], "x array<double>, y double", "no non-null value in 2 rows"),
        ([(float("nan"), 1.0)], "x double, y double", "NaN or infinite as float32 in 1 of 1"),
        ([(1e300, 1.0)], "x double, y double", "NaN or infinite as float32 in 1 of 1"),
        ([([1.1, float("nan")], 1.0)], "x array<double>, y double", "NaN or infinite"),
        ([([1.1, float("-inf")], 1.0)], "x array<double>, y double", "NaN or infinite"),
        ([(1.0, float("nan"))], "x double, y double", "column 'y'.*NaN"),
        ([([1.0] * n, 1.0) for n in (3, 3, 2)], "x array<double>, y double", r"3 \(2 rows\), 2 \(1 rows\)"),
        ([([[1, 2], [3]], 1.0)], "x array<array<int>>, y double", "nesting level 2: 1 to 2"),
        (
            [([[1, 2], v], 1.0) for v in (None, [3, 4])],
            "x array<array<int>>, y double",
            "null array, in 1 of 2",
        ),
        ([([[1], [None]], 1.0)], "x array<array<int>>, y double", "null elements in 1 of 1"),
        ([([], 1.0)], "x array<double>, y double", "only empty arrays"),
    ],
)
def test_data_that_cannot_be_trained_on_is_one_named_error(spark, store, rows, schema, says):
    """Cases 1, 2, 4, 5, 7, 44: the error names the user's column and counts; nothing is left behind."""
    with pytest.raises(ColumnError, match=says):
        write(spark.createDataFrame(rows, schema), store)
    assert store.list("datasets") == []


def test_vectors_of_different_size_and_with_nan_are_refused(spark, store):
    """Case 7 and 44 for vectors."""
    ragged = [(Vectors.dense(1.0, 2.0), 1.0), (Vectors.sparse(3, [], []), 1.0)]
    with pytest.raises(ColumnError, match=r"column 'x' \(vector\) has arrays of different length: 2 .*3 "):
        write(spark.createDataFrame(ragged, ["x", "y"]), store)
    with pytest.raises(ColumnError, match="NaN or infinite"):
        write(spark.createDataFrame([(Vectors.dense(1.1, 2.1, float("nan")), 1.0)], ["x", "y"]), store)
    nulls = spark.createDataFrame([(Vectors.dense(1.0), 1.0), (None, 1.0)], ["x", "y"])
    with pytest.raises(ColumnError, match=r"'x' \(vector\) is null in 1 of 2"):
        write(nulls, store)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([(1.0, 2, [3.0]), (1.0, None, [3.0])], r"column 'b' \(int\) is null in 1 of 2"),
        ([(1.0, 2, [float("nan")]), (1.0, 2, [3.0])], r"column 'c' \(array<double>\) is NaN"),
        ([(1.0, 2, [3.0, None]), (1.0, 2, [3.0, 3.0])], "column 'c'.*null elements in 1 of 2"),
        ([(1.0, 2, None), (1.0, 2, [3.0])], "column 'c'.*is null in 1 of 2"),
    ],
)
def test_the_one_bad_column_of_a_group_is_named(spark, store, rows, says):
    with pytest.raises(ColumnError, match=says):
        write(
            spark.createDataFrame(rows, "a double, b int, c array<double>"),
            store,
            {"x": ["a", "b", "c"]},
            ["a"],
        )


def test_lengths_that_only_add_up_are_refused(spark, store):
    """Two ragged columns whose sum is constant would silently mix up features."""
    df = spark.createDataFrame([([1.0, 2.0], [3.0], 0.0), ([1.0], [2.0, 3.0], 0.0)], ["a", "b", "y"])
    with pytest.raises(ColumnError, match=r"column 'a'.*different length"):
        write(df, store, {"x": ["a", "b"]})


def test_no_rows_and_only_validation_rows_are_refused(spark, store):
    empty = spark.createDataFrame([], "x double, y double")
    with pytest.raises(DataError, match="no rows"):
        write(empty, store)
    marked = spark.createDataFrame([(1.0, 1.0, True)], "x double, y double, v boolean")
    with pytest.raises(DataError, match="all 1 rows are marked for validation"):
        write(marked, store, indicator="v")


@pytest.mark.parametrize(
    ("kind", "yes", "no"), [("boolean", True, False), ("int", 1, 0), ("double", 1.0, 0.0)]
)
def test_an_indicator_of_any_kind_divides_the_rows(spark, store, kind, yes, no):
    """Case 23: boolean, 0/1 as integer or double."""
    rows = [(float(i), float(i), yes if i % 3 == 0 else no) for i in range(12)]
    dataset = write(spark.createDataFrame(rows, f"x double, y double, v {kind}"), store, indicator="v")
    assert sorted(read(store, dataset, "val").inputs["x0"].tolist()) == [0, 3, 6, 9]
    assert dataset.manifest.rows("train") == 8


def test_an_indicator_with_other_values_is_refused(spark, store):
    """Case 23: on the driver, with the count of rows."""
    df = spark.createDataFrame([(1.0, 1.0, 2), (1.0, 1.0, None), (1.0, 1.0, 0)], "x double, y double, v int")
    with pytest.raises(ColumnError, match=r"'v' is null or neither 0 nor 1 in 2 of 3 rows"):
        write(df, store, indicator="v")
    text = df.withColumn("v", F.lit("a"))
    with pytest.raises(ColumnError, match="must be boolean"):
        write(text, store, indicator="v")


def test_a_fraction_divides_the_rows_by_seed(spark, store):
    df = spark.range(400).select(F.col("id").cast("double").alias("x"), F.lit(1.0).alias("y"))
    first, again, other = (write(df, store, fraction=0.25, seed=seed) for seed in (1, 1, 2))
    rows = [sorted(read(store, d, "val").inputs["x0"].tolist()) for d in (first, again, other)]
    assert 60 < len(rows[0]) < 140
    assert rows[0] == rows[1] != rows[2]
    train = read(store, first).inputs["x0"].tolist()
    assert sorted(train + rows[0]) == list(range(400))


def test_a_fraction_that_gives_no_row_warns_and_goes_on(spark, store, caplog):
    """Case 35: known before training."""
    df = spark.createDataFrame([(1.0, 1.0)] * 3, "x double, y double")
    with caplog.at_level(logging.WARNING):
        dataset = write(df, store, fraction=1e-9)
    assert not dataset.validates
    assert "no row of 3 fell to validation" in caplog.text


def test_weights_are_checked(spark, store):
    """Case 56: negative weights and weights that are all zero mean nothing."""
    df = spark.createDataFrame([(1.0, 1.0, -0.5), (1.0, 1.0, 1.0)], "x double, y double, w double")
    with pytest.raises(ColumnError, match=r"weight column 'w' goes down to -0.5"):
        write(df, store, weight="w")
    with pytest.raises(ColumnError, match="0 in every row"):
        write(df.withColumn("w", F.lit(0)), store, weight="w")
    good = write(df.withColumn("w", F.lit(2)), store, weight="w")
    assert read(store, good).weight.tolist() == [2.0, 2.0]


@pytest.fixture
def source(spark, tmp_path):
    path = str(tmp_path / "source")
    spark.range(50).selectExpr("cast(id as double) x", "id % 2 y").write.parquet(path)
    return path


def test_the_same_data_are_written_once(spark, store, source):
    """Case 131: reused by another DataFrame of the same plan; not with other columns or another split."""
    first = write(spark.read.parquet(source), store)
    again = write(spark.read.parquet(source), store)
    assert (first.reused, again.reused, again.path) == (False, True, first.path)
    assert again.contract == first.contract
    for other in (
        write(spark.read.parquet(source).where("x > 3"), store),
        write(spark.read.parquet(source), store, "y"),
        write(spark.read.parquet(source), store, fraction=0.5),
        write(spark.read.parquet(source), store, fraction=0.5, seed=1),
    ):
        assert not other.reused
    first.discard(store)
    assert store.exists(first.path)


def test_a_changed_source_is_written_again(spark, store, source):
    """Case 131: the source table's data changed."""
    first = write(spark.read.parquet(source), store)
    spark.range(60).selectExpr("cast(id as double) x", "id % 2 y").write.mode("overwrite").parquet(source)
    second = write(spark.read.parquet(source), store)
    assert (second.reused, second.manifest.rows("train")) == (False, 60)
    assert first.path != second.path


def test_a_deleted_or_damaged_dataset_is_written_again(spark, store, source, tmp_path):
    """Case 131: folder deleted by hand, one file deleted by hand, another store."""
    first = write(spark.read.parquet(source), store)
    shutil.rmtree(store.path("datasets"))
    second = write(spark.read.parquet(source), store)
    assert not second.reused
    store.delete(f"{second.path}/{second.manifest.row_groups('train')[0].file}")
    third = write(spark.read.parquet(source), store)
    assert (third.reused, third.manifest.rows("train")) == (False, 50)
    assert first.manifest.key == third.manifest.key
    assert not write(spark.read.parquet(source), Store(tmp_path / "other")).reused


def test_data_without_identity_are_written_for_one_fit_only(spark, store, source):
    in_memory = spark.createDataFrame([(1.0, 1.0)], "x double, y double")
    for df in (in_memory, spark.read.parquet(source).withColumn("x", F.rand())):
        dataset = write(df, store)
        assert not write(df, store).reused
        dataset.discard(store)
        assert not store.exists(dataset.path)


def test_an_interrupted_write_is_not_a_dataset(spark, store, source, monkeypatch):
    def interrupted(self, store):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write(spark.read.parquet(source), store)
    assert not write(spark.read.parquet(source), store).reused


def test_compressible_data_pass(spark, store):
    """Case 52: constant columns take less than a byte a row."""
    df = spark.range(20_000).select(F.lit(0.0).alias("x"), F.lit(0).alias("y"))
    assert write(df, store).manifest.rows("train") == 20_000


@pytest.mark.parametrize("name", ["two words", "50%20off", "a#b", "c+d", "München 北"])
def test_writer_and_reader_use_one_folder_whatever_its_name(spark, tmp_path, name):
    """Case 152: no name is escaped on one side only, so no second folder appears beside it."""
    df = spark.range(6).select(F.col("id").cast("double").alias("x"), F.col("id").alias("y"))
    store = Store(tmp_path / name)
    dataset = write(df, store)
    assert sorted(read(store, dataset).labels["y0"].tolist()) == list(range(6))
    assert {path.name for path in tmp_path.iterdir()} == {name}
    assert list((tmp_path / name / dataset.path).rglob("*.parquet"))
    assert spark.read.parquet(store.spark_path(dataset.path)).count() == 6


def test_two_runs_share_a_store_and_cleaning_keeps_what_a_young_run_reads(spark, store, tmp_path):
    """Case 131: one dataset serves both runs, and goes only when neither needs it."""
    source = tmp_path / "shared.parquet"
    spark.range(6).select(F.col("id").cast("double").alias("x"), F.col("id").alias("y")).write.parquet(
        f"file://{source}"
    )
    df = spark.read.parquet(f"file://{source}")
    request = Request("x", ["y"], None, Split())
    first, second = (materialize(df, store, request, run) for run in ("first", "second"))
    assert second.reused
    assert second.path == first.path
    key = "/".join(first.path.split("/")[:2])
    for path in tmp_path.joinpath("ring store", key).rglob("*"):
        os.utime(path, (1, 1))
    os.utime(tmp_path / "ring store" / key, (1, 1))
    store.delete("runs/first")
    assert store.clean(3600) == []
    assert sorted(read(store, second).labels["y0"].tolist()) == list(range(6))
    store.delete("runs/second")
    assert store.clean(3600) == [key]
    assert store.list("datasets") == []
