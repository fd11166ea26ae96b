"""The main job, end to end: flights, a Spark pipeline, workers on the ring, scores, MLflow, a picture."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.regression import LinearRegression
from pyspark.sql import DataFrame
from rich.console import Console

from spark_ring.demo import report
from spark_ring.demo.flights import LABEL, feature_stages, feature_width, load_flights, split_by_month
from spark_ring.demo.session import start_session

SEED = 2013


@dataclass(frozen=True)
class Places:
    """Where the demo writes; everything is below one folder."""

    root: Path

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def pipeline(self) -> Path:
        return self.root / "pipeline"

    @property
    def scored(self) -> Path:
        return self.root / "scored"

    @property
    def picture(self) -> Path:
        return self.root / "loss.png"

    @property
    def tracking(self) -> str:
        return f"sqlite:///{self.root / 'mlflow.db'}"


class Clock:
    """Seconds of each phase, in order."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started


@click.command(help=__doc__)
@click.option("--workers", default=2, show_default=True, help="Training workers, one barrier task each.")
@click.option("--epochs", default=4, show_default=True, help="Passes over the training months.")
@click.option("--batch-size", default=256, show_default=True, help="Rows per worker and step.")
@click.option(
    "--output",
    default="demo-output",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Folder for the store, the pipeline, the picture and the MLflow database.",
)
@click.option("--keep-store", is_flag=True, help="Reuse an earlier run's materialized dataset.")
def main(workers: int, epochs: int, batch_size: int, output: Path, keep_store: bool) -> None:
    places = Places(output.resolve())
    places.root.mkdir(parents=True, exist_ok=True)
    if not keep_store:
        shutil.rmtree(places.store, ignore_errors=True)
    console = Console(width=None if sys.stdout.isatty() else 110)
    clock = Clock()
    with clock.phase("start Spark"):
        spark = start_session(workers)
    report.versions(console, spark, workers)

    with clock.phase("read flights"):
        flights = load_flights(spark, places.data).cache()
        train, test = split_by_month(flights)
        rows = (train.count(), test.count())
    console.print(
        f"flights: {rows[0]:,} rows January-September to train, {rows[1]:,} October-December to test\n"
    )

    with clock.phase("features, then fit"):
        fitted = fit(train, places, workers=workers, epochs=epochs, batch_size=batch_size)
    with clock.phase("score"):
        scored = fitted.transform(test)
        # Written, not only counted: the new process below compares itself with these rows.
        scored.select("time_hour", LABEL, "prediction").write.mode("overwrite").parquet(str(places.scored))
    with clock.phase("linear regression"):
        rivals = {
            "TorchEstimator": quality(spark.read.parquet(str(places.scored))),
            "LinearRegression": quality(linear_regression(fitted, train).transform(test)),
        }
    fitted.write().overwrite().save(str(places.pipeline))

    model = fitted.stages[-1]
    report.workers(console, model)
    report.epochs(console, model)
    report.quality(console, rivals, clock.seconds["score"], rows[1])
    report.phases(console, clock.seconds, model)
    report.loss_curve(model, places.picture)
    console.print(f"loss curves: {places.picture}")
    console.print(f"pipeline:    {places.pipeline}")
    spark.stop()
    score_again(console, places)
    look = f"{sys.executable} -m mlflow ui --backend-store-uri {places.tracking}"
    console.print(f"\nLook at the run:  {look}", soft_wrap=True)
    if rivals["TorchEstimator"]["rmse"] >= rivals["LinearRegression"]["rmse"]:
        raise SystemExit("the network did not beat linear regression")


def fit(train: DataFrame, places: Places, *, workers: int, epochs: int, batch_size: int) -> PipelineModel:
    """Fit the whole pipeline: feature stages, then the estimator that trains on barrier tasks."""
    import mlflow
    import torch

    from spark_ring import TorchEstimator
    from spark_ring.demo.net import ArrivalDelay, mean_absolute_error

    mlflow.set_tracking_uri(places.tracking)
    _experiment(mlflow, places)
    torch.manual_seed(SEED)
    estimator = TorchEstimator(
        model=ArrivalDelay(features=feature_width(train)),
        loss=torch.nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=2e-3, weight_decay=1e-2),
        featuresCol="features",
        labelCol=LABEL,
        metrics={"mae": mean_absolute_error},
        validationFraction=0.1,
        batchSize=batch_size,
        epochs=epochs,
        numTrainWorkers=workers,
        seed=SEED,
        store=str(places.store),
    )
    return Pipeline(stages=[*feature_stages(), estimator]).fit(train)


def linear_regression(fitted: PipelineModel, train: DataFrame) -> PipelineModel:
    """Fit Spark ML's own linear regression on the same features."""
    features = fitted.stages[:-1]
    regression = LinearRegression(featuresCol="features", labelCol=LABEL, predictionCol="prediction")
    return PipelineModel([*features, regression.fit(PipelineModel(features).transform(train))])


def quality(scored: DataFrame) -> dict[str, float]:
    """Root mean squared error (minutes) and R² of column ``prediction``."""
    scored = scored.select(LABEL, "prediction").cache()
    values = {
        name: RegressionEvaluator(labelCol=LABEL, metricName=name).evaluate(scored) for name in ("rmse", "r2")
    }
    scored.unpersist()
    return values


def score_again(console: Console, places: Places) -> None:
    """Load the pipeline in a new process, score the test months again and compare."""
    command = [sys.executable, "-m", "spark_ring.demo.rescore", str(places.root)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise SystemExit(f"the new process failed:\n{finished.stderr[-4000:]}")
    console.print(f"new process: {finished.stdout.strip()}")


def _experiment(mlflow: Any, places: Places) -> None:
    name = "flights"
    if mlflow.get_experiment_by_name(name) is None:
        mlflow.create_experiment(name, artifact_location=(places.root / "mlruns").as_uri())
    mlflow.set_experiment(name)


if __name__ == "__main__":
    main()
