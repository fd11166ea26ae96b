"""A fit on a cluster of two executors, one of whose workers is killed. Run by test_spark_faults.py.

Usage: killed_worker.py FOLDER EPOCH. Prints one line of JSON.
"""

from __future__ import annotations

import json
import sys

import torch
from pyspark.sql import SparkSession

from spark_ring import TorchEstimator

STEPS = 100 // 20  # of an epoch: rows over the global batch


class Net(torch.nn.Linear):
    """Kills its process with signal 9, once, on rank 1 in the middle of the chosen epoch."""

    def __init__(self, folder: str, epoch: int) -> None:
        super().__init__(2, 1)
        self.folder, self.epoch, self.calls = folder, epoch, 0

    def forward(self, input):
        import os
        import signal

        import spark_ring

        self.calls += 1
        if (
            spark_ring.is_initialized()
            and spark_ring.rank() == 1
            and self.calls == STEPS * (self.epoch - 1) + 3
            and not os.path.exists(f"{self.folder}/killed")
        ):
            with open(f"{self.folder}/killed", "w") as file:
                file.write(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(input)


def data(spark: SparkSession):
    """100 rows in 2 partitions, always in the same order."""
    points = [(a / 5 - 0.9, b / 5 - 0.9) for a in range(10) for b in range(10)]
    rows = [(a, b, 2 * a - b + 0.5) for a, b in points]
    return spark.createDataFrame(rows, "a double, b double, y double").coalesce(1)


def estimator(model: torch.nn.Module, store: str) -> TorchEstimator:
    """Five epochs on two workers."""
    return TorchEstimator(
        model=model,
        loss=torch.nn.functional.mse_loss,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.3),
        inputCols={"input": ["a", "b"]},
        labelCol="y",
        batchSize=10,
        epochs=5,
        numTrainWorkers=2,
        store=store,
        verbose=0,
        logToMLflow=False,
    )


def main(folder: str, epoch: int) -> None:
    spark = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.pyspark.python", sys.executable)
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    torch.manual_seed(0)
    model = estimator(Net(folder, epoch), f"{folder}/store").fit(data(spark))
    weights = [p.flatten().tolist() for p in model.module.parameters()]
    print(json.dumps({"history": model.history, "resumed": model.summary.resumed_epoch, "weights": weights}))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
