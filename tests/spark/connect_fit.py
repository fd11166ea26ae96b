"""A fit on Spark Connect. Run by test_connect.py, because a process has one kind of session only.

Usage: connect_fit.py FOLDER. Prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import threading
import time

import torch
from pyspark.ml import Pipeline
from pyspark.ml.feature import VectorAssembler
from pyspark.sql import SparkSession

from spark_ring import TorchEstimator
from spark_ring.data.store import Store
from spark_ring.errors import PreflightError, WorkerError
from spark_ring.spark.run import run


def refused(kind, act):
    """Return the text of the error that a call raises."""
    try:
        act()
    except kind as error:
        return str(error)
    return None


def main(folder: str) -> None:
    spark = SparkSession.builder.remote("local[4]").getOrCreate()
    points = [(a / 5 - 0.9, b / 5 - 0.9) for a in range(10) for b in range(10)]
    path = f"{folder}/source"
    rows = [(a, b, 2 * a - b + 0.5) for a, b in points]
    spark.createDataFrame(rows, "a double, b double, y double").write.parquet(path)
    df = spark.read.parquet(path)
    torch.manual_seed(0)
    store = Store(f"{folder}/store")
    estimator = TorchEstimator(
        model=torch.nn.Linear(2, 1),
        loss=torch.nn.functional.mse_loss,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.3),
        inputCols={"input": ["a", "b"]},
        labelCol="y",
        batchSize=5,
        epochs=8,
        numTrainWorkers=4,
        validationFraction=0.2,
        store=store.url,
        verbose=0,
        logToMLflow=False,
    )
    found = {}
    model = estimator.fit(df)
    found["history"] = model.history
    found["workers"] = len({worker["facts"]["pid"] for worker in model.summary.workers})
    found["datasets"] = len(store.list("datasets"))
    estimator.fit(df)
    found["datasets after the second fit"] = len(store.list("datasets"))
    by_vector = estimator.copy()
    by_vector.clear(by_vector.inputCols)
    assembler = VectorAssembler(inputCols=["a", "b"], outputCol="features")
    fitted = Pipeline(stages=[assembler, by_vector]).fit(df)
    row = fitted.transform(df.limit(1)).collect()[0]
    found["prediction"], found["label"] = row["prediction"], row["y"]
    found["run"] = run(lambda: __import__("spark_ring").size(), numTrainWorkers=2, spark=spark)
    found["slots"] = refused(PreflightError, lambda: estimator.copy({estimator.numTrainWorkers: 8}).fit(df))
    found["error"] = refused(WorkerError, lambda: run(lambda: 1 / 0, numTrainWorkers=2, spark=spark))
    found["interrupted"] = interrupted(spark)
    found["left"] = store.list("runs") + store.list("marks")
    print(json.dumps(found))
    spark.stop()


def interrupted(spark: SparkSession) -> float:
    """Interrupt the main thread during a stage; return the seconds until Spark runs another."""
    import _thread

    timer = threading.Timer(4.0, _thread.interrupt_main)
    timer.start()
    try:
        run(lambda: __import__("time").sleep(60), numTrainWorkers=2, spark=spark)
    except KeyboardInterrupt:
        began = time.monotonic()
        run(len, [()], numTrainWorkers=2, spark=spark)
        return time.monotonic() - began
    finally:
        timer.cancel()
    return -1.0


if __name__ == "__main__":
    main(sys.argv[1])
