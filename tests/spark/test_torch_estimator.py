"""Fits from a DataFrame to a model, on two workers."""

from __future__ import annotations

import logging
import threading
import time
import uuid

import numpy as np
import pytest
import torch
from pyspark.ml import Estimator, Pipeline
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from pyspark.sql import functions as F

from spark_ring import TorchEstimator
from spark_ring.errors import ColumnError, ConfigError, PreflightError, WorkerError
from spark_ring.spark import materialize as materialize_module

pytestmark = pytest.mark.spark


def test_a_fit_learns_and_leaves_nothing_behind(line, linear, store):
    """Case 163: the native model comes back; the store keeps no run."""
    estimator = TorchEstimator(**linear, store=store.url, metrics={"mae": torch.nn.functional.l1_loss})
    assert isinstance(estimator, Estimator)
    model = estimator.setEpochs(8).setValidationFraction(0.2).fit(line)
    assert [record["epoch"] for record in model.history] == list(range(1, 9))
    assert model.history[-1]["loss"] < 1e-3 < model.history[0]["loss"]
    assert {"val_loss", "mae", "val_mae"} <= set(model.history[0])
    weights = torch.cat([p.detach().flatten() for p in model.module.parameters()])
    assert torch.allclose(weights, torch.tensor([2.0, -1.0, 0.5]), atol=0.1)
    summary = model.summary
    assert set(summary.phases) == {"materialize", "check", "launch", "train"}
    assert sum(summary.rows.values()) == 100
    assert sum(summary.rows_per_worker.values()) == summary.rows["train"]
    assert len({worker["facts"]["pid"] for worker in summary.workers}) == 2
    assert store.list("datasets") == []
    scored = model.transform(line)
    assert RegressionEvaluator(labelCol="y").evaluate(scored) < 0.05
    assert (model.uid, model.getPredictionCol()) == (estimator.uid, "prediction")


def test_it_is_a_stage_of_a_pipeline(line, linear, store):
    """Case 26: fit and transform new data without any metadata."""
    linear.pop("inputCols")
    estimator = TorchEstimator(**linear, store=store.url)
    pipeline = Pipeline(stages=[VectorAssembler(inputCols=["a", "b"], outputCol="features"), estimator])
    fitted = pipeline.fit(line)
    rows = fitted.transform(line.select("b", "a").limit(3)).collect()
    module = fitted.stages[-1].module
    for row in rows:
        expected = module(torch.tensor([row["a"], row["b"]])).item()
        assert row["prediction"] == pytest.approx(expected, abs=1e-5)


def test_a_cross_validator_searches_over_params(line, linear, store, monkeypatch):
    """The data of a fold are written once for all its candidates."""
    written = []
    real = materialize_module._write
    monkeypatch.setattr(materialize_module, "_write", lambda *a: written.append(a) or real(*a))
    linear["optimizer"] = torch.optim.SGD
    estimator = TorchEstimator(**linear, store=store.url).setEpochs(2)
    grid = (
        ParamGridBuilder()
        .addGrid(estimator.learningRate, [1e-6, 0.3])
        .addGrid(estimator.batchSize, [10])
        .build()
    )
    evaluator = RegressionEvaluator(labelCol="y")
    validator = CrossValidator(
        estimator=estimator, estimatorParamMaps=grid, evaluator=evaluator, numFolds=2, seed=3
    )
    found = validator.fit(line)
    assert found.avgMetrics[1] < found.avgMetrics[0]
    assert found.bestModel.transform(line).columns[-1] == "prediction"
    assert len(written) == 3  # one per fold, one for the best


def test_the_learning_rate_reaches_the_optimizer_or_is_refused(line, linear, store):
    linear["optimizer"] = lambda params, lr: torch.optim.SGD(params, lr=lr)
    model = TorchEstimator(**linear, store=store.url, learningRate=0.125).setEpochs(1).fit(line)
    assert model.history[0]["lr"] == 0.125
    linear["optimizer"] = lambda params: torch.optim.SGD(params, lr=0.1)
    with pytest.raises(ConfigError, match="takes no argument lr"):
        TorchEstimator(**linear, store=store.url, learningRate=0.125).fit(line)


def test_a_users_error_fails_the_fit_once_and_at_once(line, linear, store, counted):
    """Case 109: rank, type and traceback; not repeated by Spark."""
    folder = counted.folder

    def loss(output, label):
        import spark_ring

        if spark_ring.is_initialized() and spark_ring.rank() == 1:  # in a worker, not in the check
            with open(f"{folder}/raised-{uuid.uuid4().hex}", "w"):
                pass
            raise ZeroDivisionError("the loss is wrong")
        return torch.nn.functional.mse_loss(output, label)

    began = time.monotonic()
    with pytest.raises(WorkerError, match=r"rank 1 of 2.*ZeroDivisionError: the loss is wrong") as caught:
        TorchEstimator(**{**linear, "loss": loss}, store=store.url).fit(line)
    assert time.monotonic() - began < 20
    assert caught.value.rank == 1
    assert caught.value.error_type == "ZeroDivisionError"
    assert "in loss" in caught.value.traceback
    assert counted("raised") == 1


def test_workers_answer_the_verbs_and_prints_have_ranks(line, linear, store, counted):
    folder = counted.folder

    class Net(torch.nn.Linear):
        def forward(self, input):
            import spark_ring

            if spark_ring.is_initialized():
                with open(f"{folder}/rank-{spark_ring.rank()}-of-{spark_ring.size()}", "w"):
                    pass
            return super().forward(input)

    TorchEstimator(**{**linear, "model": Net(2, 1)}, store=store.url).setEpochs(1).fit(line)
    assert counted("rank") == 2


@pytest.mark.parametrize("rows", [25, 1])
def test_few_rows_in_many_partitions_train(spark, linear, store, rows):
    """Cases 29 and 32: 8 partitions of which most are empty; fewer rows than workers."""
    data = [(i / 25, 1.0, i / 25) for i in range(rows)]
    df = spark.createDataFrame(data, "a double, b double, y double").coalesce(1).repartition(8, "b")
    model = TorchEstimator(**linear, store=store.url).setEpochs(2).fit(df)
    assert [record["rows"] for record in model.history] == [rows, rows]
    assert sum(model.summary.rows_per_worker.values()) == rows


def test_two_fits_back_to_back_are_strangers(line, linear, store):
    """Case 130: the second fit starts from its own model and never reads the first one's checkpoint."""
    estimator = TorchEstimator(**linear, store=store.url)
    first = estimator.fit(line)
    again = estimator.fit(line)
    assert [r["loss"] for r in first.history] == [r["loss"] for r in again.history]
    other = estimator.copy({estimator.model: torch.nn.Linear(2, 1)}).setEpochs(1).fit(line)
    assert other.history[0]["loss"] != first.history[0]["loss"]
    assert first.summary.run_id != again.summary.run_id


def test_fits_from_two_threads_take_turns(line, linear, store):
    """Case 125: slots for one; the second waits, both are right, and nothing is mixed up."""
    models = {}

    def fit(epochs):
        models[epochs] = TorchEstimator(**linear, store=store.url).setEpochs(epochs).fit(line)

    threads = [threading.Thread(target=fit, args=(epochs,)) for epochs in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [len(models[epochs].history) for epochs in (2, 3)] == [2, 3]
    assert models[3].history[1]["loss"] == models[2].history[1]["loss"]


def test_rows_of_weight_zero_have_no_effect(line, linear, store):
    """Case 56: the other half of the rows would teach something else."""
    wrong = line.withColumn("y", F.lit(100.0)).withColumn("w", F.lit(0))
    df = line.withColumn("w", F.lit(1)).unionByName(wrong)
    model = TorchEstimator(**linear, store=store.url, weightCol="w").setEpochs(8).fit(df)
    assert model.history[-1]["loss"] < 1e-3


def test_classes_and_categories_arrive_as_integers(spark, linear, store):
    """Case 17, 19: int64 for an embedding and for a class loss, float32 beside them, matched by name."""

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(4, 3)
            self.head = torch.nn.Linear(4, 3)

        def forward(self, kind, size):
            assert (kind.dtype, size.dtype) == (torch.int64, torch.float32)
            return self.head(torch.cat([self.embedding(kind), size[:, None]], 1))

    rows = [(i % 4, float(i % 2), (i % 4) % 3) for i in range(40)]
    df = spark.createDataFrame(rows, "kind int, size double, label long")
    args = {
        **linear,
        "model": Net(),
        "loss": torch.nn.functional.cross_entropy,
        "inputCols": {"kind": "kind", "size": "size"},
        "labelCol": "label",
    }
    model = TorchEstimator(**args, store=store.url).setEpochs(30).fit(df)
    assert model.history[-1]["loss"] < 0.3 < model.history[0]["loss"]
    with pytest.raises(ColumnError, match=r"column 'label' holds integers from 0 to 4, and some are out of"):
        TorchEstimator(**args, store=store.url).fit(df.withColumn("label", F.col("label") + F.col("kind")))
    with pytest.raises(ColumnError, match=r"column 'kind' holds integers from 0 to 6"):
        TorchEstimator(**args, store=store.url).fit(df.withColumn("kind", F.col("kind") * 2))


def test_the_best_epoch_is_kept_and_training_stops_early(line, linear, store):
    args = {**linear, "optimizer": lambda params: torch.optim.SGD(params, lr=0.3)}
    estimator = TorchEstimator(
        **args, store=store.url, validationFraction=0.2, patience=2, monitor="val_loss", minDelta=10.0
    ).setEpochs(50)
    model = estimator.fit(line)
    assert len(model.history) == 3  # the first, and two without an improvement of 10
    best = min(model.history, key=lambda record: record["val_loss"])
    assert model.summary.best_epoch == best["epoch"]


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"model": None}, ConfigError, "Param model must be set"),
        ({"numTrainWorkers": 8}, PreflightError, "has 2"),
        ({"inputCols": ["a", "b"]}, PreflightError, "forward"),
        ({"labelCol": "z"}, ColumnError, "no column 'z'"),
        ({"monitor": "accuracy"}, ConfigError, "accuracy"),
        ({"metrics": {"lr": len}}, ConfigError, "'lr' is taken"),
        ({"store": "s3x:/nowhere"}, ConfigError, "s3x"),
    ],
)
def test_what_cannot_work_is_refused_before_workers_start(
    line, linear, store, monkeypatch, change, error, says
):
    from spark_ring.spark import barrier

    monkeypatch.setattr(barrier, "train", lambda *args: pytest.fail("workers were started"))
    began = time.monotonic()
    with pytest.raises(error, match=says):
        TorchEstimator(**{"store": store.url, **linear, **change}).fit(line)
    assert time.monotonic() - began < 10


def test_a_label_of_another_size_names_both_sizes(spark, linear, store):
    """Case 14: ten outputs for a one-hot label of eleven."""
    from pyspark.ml.linalg import Vectors

    df = spark.createDataFrame([(0.5, 0.5, Vectors.sparse(11, [3], [1.0]))] * 4, ["a", "b", "y"])
    args = {**linear, "model": torch.nn.Linear(2, 10)}
    with pytest.raises(PreflightError, match=r"10 per row.*11"):
        TorchEstimator(**args, store=store.url).fit(df)
    TorchEstimator(**{**linear, "model": torch.nn.Linear(2, 11)}, store=store.url).setEpochs(1).fit(df)


def test_validation_without_rows_is_a_warning(spark, linear, store, caplog):
    """Case 35: 12 rows, so small a fraction that none is taken."""
    df = spark.createDataFrame([(0.1, 0.2, 0.3)] * 12, "a double, b double, y double")
    with caplog.at_level(logging.WARNING):
        model = TorchEstimator(**linear, store=store.url, validationFraction=1e-6).setEpochs(1).fit(df)
    assert "without validation" in caplog.text
    assert "val_loss" not in model.history[0]


def test_an_estimator_is_saved_and_loaded_with_its_objects(line, linear, store, tmp_path):
    estimator = TorchEstimator(**linear, store=store.url).setEpochs(1)
    path = str(tmp_path / "estimator")
    estimator.write().overwrite().save(path)
    loaded = TorchEstimator.load(path, trusted=True)
    assert (loaded.uid, loaded.getBatchSize()) == (estimator.uid, 10)
    assert loaded.getInputCols() == {"input": ["a", "b"]}
    assert loaded.fit(line).history[0]["loss"] == pytest.approx(estimator.fit(line).history[0]["loss"])


def test_progress_is_shown(line, linear, store, capsys):
    TorchEstimator(**linear, store=store.url).setVerbose(1).fit(line)
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("wrote 100 train rows in")
    assert shown[1] == "training on 2 workers"
    assert [text.split("  ")[0] for text in shown[2:]] == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]


def test_one_worker_and_plain_numbers_work(line, linear, store):
    """Case 49, 50: two scalar inputs as two arguments; a scalar output."""

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(3))

        def forward(self, a, b):
            return self.w[0] * a + self.w[1] * b + self.w[2]

    args = {**linear, "model": Net(), "inputCols": ["a", "b"], "numTrainWorkers": 1, "batchSize": 20}
    model = TorchEstimator(**args, store=store.url).setEpochs(10).fit(line)
    assert model.history[-1]["loss"] < 0.01
    found = np.array(model.transform(line.limit(1)).select("prediction").first()[0])
    assert found.shape == ()
