"""Small data, small nets, and what must not be left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from spark_ring.data.store import Store


@pytest.fixture
def store(tmp_path):
    """A store; after the test no run and no mark may be left in it."""
    found = Store(tmp_path / "ring store")
    yield found
    assert found.list("runs") == []
    assert found.list("marks") == []


@pytest.fixture(scope="session")
def line(spark):
    """100 rows of y = 2a - b + 0.5, in 4 partitions, cached."""
    points = [(a / 5 - 0.9, b / 5 - 0.9) for a in range(10) for b in range(10)]
    rows = [(a, b, 2 * a - b + 0.5) for a, b in points]
    frame = spark.createDataFrame(rows, "a double, b double, y double").repartition(4).cache()
    assert frame.count() == 100
    return frame


@pytest.fixture
def linear():
    """Keyword arguments of a TorchEstimator that learns ``line`` in a few epochs."""
    torch.manual_seed(0)
    return {
        "model": torch.nn.Linear(2, 1),
        "loss": torch.nn.functional.mse_loss,
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.3),
        "inputCols": {"input": ["a", "b"]},
        "labelCol": "y",
        "batchSize": 10,
        "epochs": 3,
        "numTrainWorkers": 2,
        "verbose": 0,
        "logToMLflow": False,
    }


@pytest.fixture
def counted(tmp_path):
    """A folder where workers leave a file each time something happens, and a function to count them."""

    def count(name):
        return len(list(Path(tmp_path).glob(f"{name}-*")))

    count.folder = str(tmp_path)
    return count
