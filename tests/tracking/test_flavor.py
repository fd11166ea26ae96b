"""Logged models: as a Transformer, as pyfunc, as a function of Spark columns."""

from __future__ import annotations

import mlflow
import numpy as np
import pandas as pd
import pytest
import torch
from pyspark.ml import PipelineModel
from pyspark.ml.feature import VectorAssembler
from torch import nn

from spark_ring import mlflow as flavor
from spark_ring.artifact import trusted_artifacts
from spark_ring.data.schema import Contract, SourceColumn, TensorSpec
from spark_ring.errors import UntrustedArtifactError
from spark_ring.spark.model import TorchModel
from spark_ring.tracking import start_run

VECTOR = Contract((TensorSpec("x0", (SourceColumn("features", "vector", 3),), "float32", (3,)),))
ROWS = np.random.default_rng(3).normal(size=(6, 3))


def custom(outputs=1):
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers

        def forward(self, x):
            return self.layers(x)

    return Net()


@pytest.fixture
def model():
    return TorchModel(custom(), VECTOR, history=[{"epoch": 1, "loss": 1.0}]).setPredictionCol("p")


def example():
    return pd.DataFrame({"features": ROWS[:2].tolist(), "unused": ["a", "b"]})


def test_a_fit_logs_its_model_with_signature_and_example(mlflow_store, model):
    with start_run() as record:
        record.log_model(model, example())
    (logged,) = mlflow_store.search_logged_models([mlflow_store.get_run(record.run_id).info.experiment_id])
    info = mlflow.models.get_model_info(f"models:/{logged.model_id}")
    assert info.run_id == record.run_id
    assert "spark_ring" in info.flavors
    assert "'features': Tensor('float64', (-1, 3))" in str(info.signature.inputs)
    assert "'p': double" in str(info.signature.outputs)
    saved = mlflow.models.Model.load(f"models:/{logged.model_id}")
    stored = saved.load_input_example()
    np.testing.assert_allclose(np.stack(stored["features"]), ROWS[:2])


def test_a_logged_model_is_a_transformer_and_a_pyfunc(mlflow_store, model):
    with mlflow.start_run():
        info = flavor.log_model(model, input_example=example())
    expected = model.predict(ROWS)
    again = flavor.load_model(info.model_uri)
    assert type(again) is TorchModel
    assert (again.uid, again.getPredictionCol(), again.history) == (model.uid, "p", model.history)
    np.testing.assert_array_equal(again.predict(ROWS), expected)
    pyfunc = mlflow.pyfunc.load_model(info.model_uri)
    frame = pd.DataFrame({"features": ROWS.tolist()})
    for given in (frame, frame.assign(when=pd.Timestamp("2013-01-01")), ROWS, {"features": ROWS}):
        np.testing.assert_allclose(pyfunc.predict(given), expected, rtol=1e-6)
    with pytest.raises(mlflow.MlflowException, match="features"):
        pyfunc.predict(pd.DataFrame({"features": [[1.0, 2.0]]}))
    requirements = mlflow.pyfunc.get_model_dependencies(info.model_uri)
    with open(requirements) as file:
        text = file.read()
    assert f"torch=={torch.__version__.split('+')[0]}" in text
    assert "+cpu" not in text


@pytest.mark.spark
def test_a_logged_model_scores_as_a_function_of_columns(spark, mlflow_store, model):
    """Cases 31, 166, 167: array<double>, empty partitions, a timestamp beside it."""
    with mlflow.start_run():
        info = flavor.log_model(model)
    data = [(i, row) for i, row in enumerate(ROWS.tolist())]
    df = spark.createDataFrame(data, "id int, features array<double>").repartition(8)
    df = df.selectExpr("*", "timestamp'2013-01-01' AS time")
    score = mlflow.pyfunc.spark_udf(spark, info.model_uri, env_manager="local")
    scored = df.withColumn("p", score("features")).orderBy("id").collect()
    np.testing.assert_allclose([row.p for row in scored], model.predict(ROWS), rtol=1e-6)
    assert (
        df.where("id < 0").select(score("features").alias("p")).schema["p"].dataType.simpleString()
        == "double"
    )
    assert df.where("id < 0").select(score("features")).collect() == []


@pytest.mark.spark
def test_a_logged_classifier_gives_a_struct_and_a_null_for_a_null(spark, mlflow_store):
    """Case 167."""
    columns = tuple(SourceColumn(name, "double") for name in "abc")
    contract = Contract((TensorSpec("x0", columns, "float32", (3,), "x"),))
    with mlflow.start_run():
        info = flavor.log_model(TorchModel(custom(2), contract).setOutputKind("logits"))
    df = spark.createDataFrame(
        [(0, 1.0, 2.0, 3.0), (1, None, 2.0, 3.0)], "id int, a double, b double, c double"
    )
    score = mlflow.pyfunc.spark_udf(spark, info.model_uri, env_manager="local")
    whole, null = df.withColumn("s", score("a", "b", "c")).orderBy("id").select("s.*").collect()
    assert whole.prediction == np.argmax(whole.rawPrediction)
    assert sum(whole.probability) == pytest.approx(1)
    assert null.prediction is None


@pytest.mark.spark
def test_a_whole_pipeline_goes_through_mlflows_own_spark_flavor(spark, mlflow_store, tmp_path, model):
    """Case 161."""
    pipeline = PipelineModel([VectorAssembler(inputCols=["a", "b", "c"], outputCol="features"), model])
    options = {
        "dfs_tmpdir": str(tmp_path / "tmp"),
        "pip_requirements": [],
    }  # else MLflow looks for them for long
    mlflow.spark.save_model(pipeline, str(tmp_path / "saved"), **options)
    with pytest.raises(UntrustedArtifactError):
        mlflow.spark.load_model(str(tmp_path / "saved"), dfs_tmpdir=str(tmp_path / "tmp"))
    with trusted_artifacts():
        again = mlflow.spark.load_model(str(tmp_path / "saved"), dfs_tmpdir=str(tmp_path / "tmp"))
    df = spark.createDataFrame(ROWS.tolist(), "a double, b double, c double").coalesce(1)
    found = [row.p for row in again.transform(df).collect()]
    np.testing.assert_allclose(found, model.predict(ROWS), rtol=1e-5)


def test_mlflows_own_switch_against_pickled_code_is_honoured(mlflow_store, monkeypatch, model):
    """Case 178."""
    with mlflow.start_run():
        info = flavor.log_model(model)
        safe = flavor.log_model(TorchModel(nn.Sequential(nn.Linear(3, 1)), VECTOR), name="safe")
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    with pytest.raises(UntrustedArtifactError):
        flavor.load_model(info.model_uri)
    with pytest.raises(UntrustedArtifactError):
        mlflow.pyfunc.load_model(info.model_uri)
    with trusted_artifacts():
        assert flavor.load_model(info.model_uri).uid == model.uid
    assert mlflow.pyfunc.load_model(safe.model_uri).predict(ROWS).shape == (6,)


def test_a_model_of_another_flavor_is_refused(mlflow_store, tmp_path):
    (tmp_path / "other" / flavor.DATA).mkdir(parents=True)
    with pytest.raises(Exception, match="no saved spark_ring stage"):
        flavor.load_model((tmp_path / "other").as_uri())
