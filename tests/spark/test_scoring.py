"""transform on real DataFrames: right values, lazily, and errors on the driver."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest
import torch
from pyspark.ml.evaluation import MulticlassClassificationEvaluator, RegressionEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import functions as F
from pyspark.sql import types as T
from torch import nn

from spark_ring.artifact import FittedModel
from spark_ring.artifact.outputs import plan_outputs
from spark_ring.data.schema import Contract, SourceColumn, TensorSpec
from spark_ring.errors import ColumnError, ConfigError
from spark_ring.spark import shipping
from spark_ring.spark.model import TorchModel
from spark_ring.spark.scoring import add_predictions, has_arrow_udf

pytestmark = pytest.mark.spark


def vector(name="features", width=3, spark_type="vector", labels=()):
    return Contract(
        (TensorSpec("x0", (SourceColumn(name, spark_type, width),), "float32", (width,)),), labels
    )


LABEL = (TensorSpec("y0", (SourceColumn("label", "int"),), "int64"),)


def network(width=3, outputs=1, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(width, 8), nn.Tanh(), nn.Linear(8, outputs)).eval()


def expected(net, rows):
    with torch.no_grad():
        return net(torch.tensor(rows, dtype=torch.float32)).double().numpy()


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(1).normal(size=(21, 3)).round(3).tolist()


@pytest.fixture(scope="module")
def df(spark, rows):
    data = [(i, Vectors.dense(row), int(np.argmax(row))) for i, row in enumerate(rows)]
    return with_vectors(spark, data, "label").repartition(4).cache()


def with_vectors(spark, data, *more):
    """A DataFrame of id, features and further integers."""
    fields = [T.StructField("id", T.IntegerType()), T.StructField("features", VectorUDT())]
    fields += [T.StructField(name, T.IntegerType()) for name in more]
    return spark.createDataFrame(data, T.StructType(fields))


def physical_plan(df):
    """Of a DataFrame that was not run: adaptive execution shows two plans afterwards."""
    return df._jdf.queryExecution().executedPlan().toString()


def by_id(scored, column="prediction"):
    return [row[0] for row in scored.orderBy("id").select(F.col(f"`{column}`")).collect()]


@pytest.mark.parametrize("arrow", [True, False])
@pytest.mark.parametrize("batch_size", [1, 10, 4096])
def test_predictions_equal_those_in_memory(df, rows, arrow, batch_size):
    """Case 50: 21 rows in batches of 10; both kinds of UDF."""
    if arrow and not has_arrow_udf():
        pytest.skip("this Spark has no arrow_udf")
    net = network()
    model = FittedModel.of("torch", net, vector())
    plan = plan_outputs(
        model.outputs, kind="auto", integer_label=False, prediction="p", probability="", raw=""
    )
    scored = add_predictions(
        df, model, "features", plan, batch_size=batch_size, handle_invalid="error", arrow=arrow
    )
    assert scored.columns == [*df.columns, "p"]
    assert scored.schema["p"].dataType == T.DoubleType()
    np.testing.assert_allclose(by_id(scored, "p"), expected(net, rows)[:, 0], rtol=1e-5)


@pytest.mark.parametrize("arrow", [True, False])
def test_rows_with_nulls_are_an_error_or_kept_or_skipped(spark, arrow):
    """Cases 1, 4, 167: with both kinds of UDF."""
    data = [(0, [1.0, 2.0]), (1, None), (2, [3.0, None]), (3, [float("nan"), 1.0])]
    df = spark.createDataFrame(data, "id int, a array<double>").coalesce(1)
    model = FittedModel.of("torch", network(2, 3), vector("a", 2, "array<double>"))
    plan = plan_outputs(
        model.outputs, kind="logits", integer_label=False, prediction="p", probability="q", raw="r"
    )

    def scored(handle_invalid):
        return add_predictions(df, model, "a", plan, batch_size=2, handle_invalid=handle_invalid, arrow=arrow)

    with pytest.raises(Exception, match="column 'a' is null, or holds a null"):
        scored("error").collect()
    kept = scored("keep").orderBy("id").collect()
    assert [row.p is None for row in kept] == [False, True, True, False]
    assert kept[1].q is None
    assert kept[2].r is None
    assert kept[3].p != kept[3].p  # NaN is a number: it went through the model
    assert [row.id for row in scored("skip").orderBy("id").collect()] == [0, 3]


def test_a_vector_output_is_a_vector(df, rows):
    net = network(outputs=2)
    scored = TorchModel(net, vector()).transform(df)
    assert scored.schema["prediction"].dataType == VectorUDT()
    np.testing.assert_allclose([v.toArray() for v in by_id(scored)], expected(net, rows), rtol=1e-5)


def test_a_classifier_adds_what_sparks_evaluators_want(df, rows):
    net = network(outputs=3)
    scored = TorchModel(net, vector(labels=LABEL)).transform(df)
    assert scored.columns[-3:] == ["rawPrediction", "probability", "prediction"]
    logits = expected(net, rows)
    np.testing.assert_allclose([v.toArray() for v in by_id(scored, "rawPrediction")], logits, rtol=1e-5)
    probability = torch.softmax(torch.tensor(logits), 1).numpy()
    np.testing.assert_allclose([v.toArray() for v in by_id(scored, "probability")], probability, rtol=1e-5)
    assert by_id(scored) == logits.argmax(1).tolist()
    right = np.mean(logits.argmax(1) == np.argmax(rows, 1))
    evaluator = MulticlassClassificationEvaluator(metricName="accuracy")
    assert evaluator.evaluate(scored) == pytest.approx(right)
    log_loss = -np.log(probability[range(len(rows)), np.argmax(rows, 1)]).mean()
    evaluator = MulticlassClassificationEvaluator(metricName="logLoss")
    assert evaluator.evaluate(scored) == pytest.approx(log_loss, rel=1e-5)


def test_a_regression_is_evaluated(df, rows):
    net = network()
    scored = TorchModel(net, vector()).transform(df)
    error = expected(net, rows)[:, 0] - np.argmax(rows, 1)
    assert RegressionEvaluator().evaluate(scored) == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-5)


def test_sparse_and_dense_vectors_score_alike(spark):
    """Cases 10, 11, 28: zeros that are not stored, a row of nothing but zeros, empty partitions."""
    dense = [[0.0, 0.0, 0.0], [0.0, 2.0, 0.0], [1.0, 2.0, 3.0]]
    net = network()
    scores = []
    for make in (Vectors.dense, lambda row: Vectors.sparse(3, {i: v for i, v in enumerate(row) if v})):
        df = with_vectors(spark, [(i, make(row)) for i, row in enumerate(dense)])
        scores.append(by_id(TorchModel(net, vector()).transform(df.repartition(8, "id"))))
    assert scores[0] == scores[1]
    np.testing.assert_allclose(scores[0], expected(net, dense)[:, 0], rtol=1e-5)


def test_every_kind_of_number_follows_the_same_rule_as_in_fit(spark):
    """Cases 16, 22, 25, 49: bool, decimal, integers, awkward names; concatenated for one argument."""
    names = ["a.b", "c d", "e`f", "g"]
    schema = T.StructType(
        [
            T.StructField("a.b", T.BooleanType()),
            T.StructField("c d", T.DecimalType(38, 10)),
            T.StructField("e`f", T.IntegerType()),
            T.StructField("g", VectorUDT()),
            T.StructField("id", T.IntegerType()),
        ]
    )
    data = [
        (True, Decimal("1.5"), 3, Vectors.dense(7.0, 8.0), 0),
        (False, Decimal("-2.25"), -4, Vectors.sparse(2, [1], [9.0]), 1),
    ]
    df = spark.createDataFrame(data, schema)
    columns = tuple(
        SourceColumn(name, df.schema[name].dataType.simpleString(), 2 if name == "g" else 1) for name in names
    )
    net = network(5)

    class Keyword(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, *, dense):
            return self.net(dense)

    scored = TorchModel(
        Keyword(), Contract((TensorSpec("x0", columns, "float32", (5,), "dense"),))
    ).transform(df)
    assert scored.columns == [*names, "id", "prediction"]
    want = expected(net, [[1, 1.5, 3, 7, 8], [0, -2.25, -4, 0, 9]])[:, 0]
    np.testing.assert_allclose(by_id(scored), want, rtol=1e-5)


def test_integers_reach_an_embedding_and_several_arguments_keep_their_order(spark):
    """Cases 17, 46, 49: int64 stays int64; a matrix is reshaped row by row."""

    class Two(nn.Module):
        def forward(self, item, matrix):
            assert item.dtype == torch.int64
            return matrix[torch.arange(len(item)), item].sum(1)

    contract = Contract(
        (
            TensorSpec("x0", (SourceColumn("item", "int"),), "int64"),
            TensorSpec("x1", (SourceColumn("m", "array<array<int>>", 6),), "float32", (2, 3)),
        )
    )
    data = [(0, 1, [[1, 2, 3], [4, 5, 6]]), (1, 0, [[7, 8, 9], [0, 0, 0]])]
    df = spark.createDataFrame(data, "id int, item int, m array<array<int>>")
    assert by_id(TorchModel(Two(), contract).transform(df)) == [15.0, 24.0]


def test_several_outputs_are_several_columns(df, rows):
    class Heads(nn.Module):
        def forward(self, x):
            return x.sum(1), x * 2

    labels = (*LABEL, TensorSpec("y1", (SourceColumn("double it", "vector", 3),), "float32", (3,)))
    scored = TorchModel(Heads(), vector(labels=labels)).transform(df)
    assert scored.columns == [*df.columns, "prediction_label", "prediction_double it"]
    np.testing.assert_allclose(by_id(scored, "prediction_label"), np.sum(rows, 1), atol=1e-5)
    np.testing.assert_allclose(
        [v.toArray() for v in by_id(scored, "prediction_double it")], np.array(rows) * 2, atol=1e-5
    )


def test_transform_runs_nothing(spark, df):
    """Lazy: no job until somebody asks for rows, and one Python evaluation for all of a model's columns."""
    tracker = spark.sparkContext.statusTracker()
    group = "spark_ring: nothing should run"
    spark.sparkContext.setJobGroup(group, group)
    try:
        scored = TorchModel(network(outputs=3), vector(labels=LABEL)).transform(df)
        scored = TorchModel(network(), vector()).setPredictionCol("second").transform(scored)
        assert tracker.getJobIdsForGroup(group) == []
        assert len(scored.collect()) == 21
        assert len(tracker.getJobIdsForGroup(group)) > 0
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    assert physical_plan(scored.drop("id")).count("ArrowEvalPython [") == 2


def test_only_the_features_leave_the_jvm(df):
    scored = TorchModel(network(), vector()).transform(df.withColumn("big", F.repeat(F.lit("x"), 1000)))
    plan = physical_plan(scored)
    (line,) = [line for line in plan.splitlines() if "ArrowEvalPython" in line]
    assert "features" in line
    assert "big" not in line.split("], [")[0]


def test_vectors_and_other_types_straight_from_a_file(spark, df, rows, tmp_path):
    """A scan whose column batches Spark would hand to the UDF, with a vector that the model does not use."""
    net = network()
    arrays = df.withColumn("other", F.col("features")).withColumn("features", F.array(*map(F.lit, rows[0])))
    for frame, want in ((df, expected(net, rows)), (arrays, expected(net, [rows[0]] * 21))):
        path = str(tmp_path / str(len(frame.columns)))
        frame.write.parquet(path)
        scored = TorchModel(net, vector()).transform(spark.read.parquet(path))
        np.testing.assert_allclose(by_id(scored), want[:, 0], rtol=1e-5)
        assert scored.columns == [*frame.columns, "prediction"]


def test_a_streaming_dataframe_is_scored(spark, df, rows, tmp_path):
    """Case 146."""
    df.write.parquet(str(tmp_path / "in"))
    net = network()
    stream = TorchModel(net, vector()).transform(
        spark.readStream.schema(df.schema).parquet(str(tmp_path / "in"))
    )
    assert stream.isStreaming
    query = stream.writeStream.format("memory").queryName("scored_stream").trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(60)
        np.testing.assert_allclose(by_id(spark.table("scored_stream")), expected(net, rows)[:, 0], rtol=1e-5)
    finally:
        query.stop()


def test_an_empty_dataframe_and_a_pipeline_without_metadata(spark, rows):
    """Cases 26, 31."""
    net = network()
    assembler = VectorAssembler(inputCols=["a", "b", "c"], outputCol="features")
    raw = spark.createDataFrame(
        [(i, *row) for i, row in enumerate(rows)], "id int, a double, b double, c double"
    )
    model = TorchModel(net, vector())
    np.testing.assert_allclose(
        by_id(model.transform(assembler.transform(raw))), expected(net, rows)[:, 0], rtol=1e-5
    )
    empty = model.transform(assembler.transform(raw.where("id < 0")))
    assert empty.collect() == []
    assert empty.schema["prediction"].dataType == T.DoubleType()


def test_a_large_model_is_shipped_once_in_a_broadcast(spark, df, rows, monkeypatch):
    monkeypatch.setattr(shipping, "INLINE_BYTES", 10)
    net = network()
    model = TorchModel(net, vector())
    for _ in range(2):  # the second time from the same broadcast
        np.testing.assert_allclose(by_id(model.transform(df)), expected(net, rows)[:, 0], rtol=1e-5)
    first = shipping.ship(model.fitted, spark, connect=False)
    assert isinstance(first, shipping.Broadcasted)
    assert shipping.ship(model.fitted, spark, connect=False) is first


def test_a_width_that_was_not_fitted_is_named(spark):
    df = with_vectors(spark, [(0, Vectors.dense(1.0, 2.0))])
    with pytest.raises(Exception, match=r"column 'features'.*length 2.*must have length 3"):
        TorchModel(network(), vector()).transform(df).collect()


@pytest.mark.parametrize(
    ("schema", "error", "match"),
    [
        ("feature array<double>", ColumnError, "no column 'features'; did you mean 'feature'"),
        ("features string", ColumnError, "'features' is string"),
        ("features double", ColumnError, "'features' is double; the model was fitted on vector"),
        ("features array<double>, prediction int", ConfigError, "already has a column 'prediction'"),
        ("features array<double>, Prediction int", ConfigError, "already has a column 'Prediction'"),
    ],
)
def test_what_the_schema_shows_is_an_error_when_transform_is_called(spark, schema, error, match):
    with pytest.raises(error, match=match):
        TorchModel(network(), vector()).transform(spark.createDataFrame([], schema))


def test_floats_are_not_taken_where_integers_were_fitted(spark):
    """Case 2, the other way round: no silent float to int."""
    contract = Contract((TensorSpec("x0", (SourceColumn("item", "int"),), "int64"),))
    model = TorchModel(nn.Sequential(nn.Embedding(5, 1)), contract)
    with pytest.raises(ColumnError, match="'item' is double; the model was fitted on int"):
        model.transform(spark.createDataFrame([(1.0,)], "item double"))
    assert model.transform(spark.createDataFrame([(1,)], "item bigint")).count() == 1


def test_arrays_stand_for_vectors_and_integers_for_floats(spark):
    df = spark.createDataFrame([(0, [1, 2, 3])], "id int, features array<int>")
    net = network()
    np.testing.assert_allclose(
        by_id(TorchModel(net, vector()).transform(df)), expected(net, [[1, 2, 3]])[:, 0], rtol=1e-5
    )
