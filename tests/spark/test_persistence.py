"""Saving and loading stages, alone and in pipelines, here and in a new process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from pyspark.ml import Estimator, Pipeline, PipelineModel
from pyspark.ml.feature import VectorAssembler
from torch import nn

import spark_ring.artifact
from spark_ring.artifact import FitSummary, trusted_artifacts
from spark_ring.data.schema import Contract, SourceColumn, TensorSpec
from spark_ring.errors import DataError, StoreError, UntrustedArtifactError
from spark_ring.spark.model import TorchModel
from spark_ring.spark.params import HasPrediction
from spark_ring.spark.persistence import EstimatorPersistence, _as_spark_reads
from spark_ring.spark.training_params import HasObjects

pytestmark = pytest.mark.spark
CONTRACT = Contract((TensorSpec("x0", (SourceColumn("features", "vector", 3),), "float32", (3,)),))


class Objects(HasObjects, HasPrediction, Estimator, EstimatorPersistence):
    """An estimator reduced to what is saved."""

    def _fit(self, dataset):
        return TorchModel(self.getModel(), CONTRACT).setPredictionCol(self.getPredictionCol())


def plain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def custom():
    layers = plain()

    class Net(nn.Module):  # pickled by value; it must not mention this module, which workers do not have
        def __init__(self):
            super().__init__()
            self.inner = layers

        def forward(self, x):
            return self.inner(x)

    return Net()


@pytest.fixture(scope="module")
def df(spark):
    rows = np.random.default_rng(2).normal(size=(20, 3)).tolist()
    return spark.createDataFrame(
        [(i, *row) for i, row in enumerate(rows)], "id int, a double, b double, c double"
    )


def assembler():
    return VectorAssembler(inputCols=["a", "b", "c"], outputCol="features")


def predictions(pipeline, df):
    return [row.prediction for row in pipeline.transform(df).orderBy("id").select("prediction").collect()]


def test_a_model_is_saved_and_loaded_with_params_and_history(tmp_path):
    path = str(tmp_path / "my model")
    model = TorchModel(
        plain(), CONTRACT, history=[{"epoch": 1}], summary=FitSummary("r", phases={"train": 1.0})
    )
    model.setPredictionCol("p").setHandleInvalid("keep").save(path)
    again = TorchModel.load(path)
    assert again.uid == model.uid
    assert (again.getPredictionCol(), again.getHandleInvalid()) == ("p", "keep")
    assert again.isSet("predictionCol")
    assert not again.isSet("inferenceBatchSize")
    assert (again.history, again.summary, again.contract) == (model.history, model.summary, model.contract)
    np.testing.assert_array_equal(again.predict(np.ones((2, 3))), model.predict(np.ones((2, 3))))
    spark_free = spark_ring.artifact.load_model(path)
    np.testing.assert_array_equal(spark_free.predict(np.ones((2, 3))), model.predict(np.ones((2, 3))))


def test_an_existing_path_is_overwritten_only_when_asked(tmp_path):
    path = str(tmp_path / "m")
    model = TorchModel(plain(), CONTRACT)
    model.write().save(path)
    with pytest.raises(StoreError, match="overwrite"):
        model.save(path)
    model.setPredictionCol("second").write().overwrite().save(path)
    assert TorchModel.load(path).getPredictionCol() == "second"


def test_a_pipeline_model_round_trip(df, tmp_path):
    """Cases 26, 152, 161: found by module path, through a path with a space and a plus."""
    path = str(tmp_path / "a b+c")
    model = PipelineModel([assembler(), TorchModel(plain(), CONTRACT)])
    for _ in range(2):
        model.write().overwrite().save(path)
    again = PipelineModel.load(path)
    assert type(again.stages[1]) is TorchModel
    assert predictions(again, df) == predictions(model, df)
    (metadata,) = Path(path).glob("stages/1_*/metadata/part-00000")
    assert json.loads(metadata.read_text())["class"] == "spark_ring.spark.model.TorchModel"


def test_code_in_a_pipeline_is_not_run_unless_trusted(df, tmp_path):
    """Case 178: no argument can be passed to PipelineModel.load."""
    path = str(tmp_path / "p")
    model = PipelineModel([assembler(), TorchModel(custom(), CONTRACT)])
    model.save(path)
    with pytest.raises(UntrustedArtifactError, match=r"trusted_artifacts\(\)"):
        PipelineModel.load(path)
    with trusted_artifacts():
        again = PipelineModel.load(path)
    assert predictions(again, df) == predictions(model, df)
    stage = next(Path(path).glob("stages/1_*"))
    assert TorchModel.load(str(stage), trusted=True).uid == model.stages[1].uid
    assert TorchModel.read().trusted().load(str(stage)).uid == model.stages[1].uid


LOADER = """
import json, sys
from pyspark.ml import PipelineModel
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
df = spark.read.parquet(sys.argv[2])
scored = PipelineModel.load(sys.argv[1]).transform(df).orderBy("id")
print(json.dumps([row.prediction for row in scored.collect()]))
"""


def test_a_pipeline_loads_in_a_new_process_with_equal_predictions(df, tmp_path):
    """Cases 160, 161."""
    model = PipelineModel([assembler(), TorchModel(custom(), CONTRACT)])
    model.save(str(tmp_path / "p"))
    df.coalesce(1).write.parquet(str(tmp_path / "df"))
    done = subprocess.run(
        [sys.executable, "-c", LOADER, str(tmp_path / "p"), str(tmp_path / "df")],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env={**os.environ, "SPARK_RING_TRUSTED_ARTIFACTS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    np.testing.assert_allclose(found, predictions(model, df), rtol=1e-6)


def test_an_estimator_with_python_objects_is_saved_under_the_same_rule(tmp_path):
    """Case 178."""
    path = str(tmp_path / "e")
    estimator = Objects().setParams(
        model=custom(), optimizer=lambda parameters: torch.optim.SGD(parameters, 0.1), learningRate=0.5
    )
    estimator.save(path)
    with pytest.raises(UntrustedArtifactError, match=r"objects\.pkl"):
        Objects.load(path)
    again = Objects.load(path, trusted=True)
    assert again.uid == estimator.uid
    assert again.getLearningRate() == 0.5
    assert torch.equal(again.getModel().inner[0].weight, estimator.getModel().inner[0].weight)
    assert isinstance(again.getOptimizer()(again.getModel().parameters()), torch.optim.SGD)


def test_an_estimator_without_objects_needs_no_trust(tmp_path):
    Objects().setParams(learningRate=0.25).save(str(tmp_path / "e"))
    assert Objects.load(str(tmp_path / "e")).getLearningRate() == 0.25


def test_an_estimator_in_a_pipeline(df, tmp_path):
    path = str(tmp_path / "p")
    Pipeline(stages=[assembler(), Objects().setParams(model=custom(), predictionCol="prediction")]).save(path)
    with pytest.raises(UntrustedArtifactError):
        Pipeline.load(path)
    with trusted_artifacts():
        fitted = Pipeline.load(path).fit(df)
    assert len(predictions(fitted, df)) == 20


def test_an_object_that_cannot_be_pickled_is_named(tmp_path):
    import threading

    lock = threading.Lock()
    with pytest.raises(DataError, match="loss"):
        Objects().setParams(loss=lambda output, label: lock).save(str(tmp_path / "e"))
    assert not (tmp_path / "e").exists()


def test_the_wrong_class_and_a_wrong_path_are_named(tmp_path):
    Objects().save(str(tmp_path / "e"))
    with pytest.raises(DataError, match=r"holds a .*Objects; load it with"):
        TorchModel.load(str(tmp_path / "e"))
    with pytest.raises(StoreError, match="no saved spark_ring stage"):
        TorchModel.load(str(tmp_path / "nowhere"))


class OtherFilesystem:
    """A classic session whose default filesystem is not the local one."""

    def __init__(self, url):
        self.sparkContext = self
        self._jsc = self
        self.url = url

    def hadoopConfiguration(self):
        return {"fs.defaultFS": self.url}


@pytest.mark.parametrize(
    ("default", "path", "meant"),
    [
        ("file:///", "/x", "/x"),
        ("dbfs:///", "/x", "dbfs:/x"),
        ("dbfs:///", "/dbfs/x", "dbfs:/dbfs/x"),
        ("dbfs:///", "/Volumes/a/b/c", "dbfs:/Volumes/a/b/c"),
        ("dbfs:///", "file:/x", "file:/x"),
        ("dbfs:///", "x/y", "x/y"),
        ("hdfs://name:8020", "/x", "hdfs:/x"),
    ],
)
def test_a_path_means_what_it_means_to_spark(default, path, meant):
    """Case 151: a stage lies where its pipeline's metadata lie."""
    assert _as_spark_reads(path, OtherFilesystem(default)) == meant
