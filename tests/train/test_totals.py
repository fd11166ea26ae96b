"""One allreduce carries an epoch's means, rows and each rank's seconds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spark_ring.communicator import Communicator
from spark_ring.train.adapter import Sums
from spark_ring.train.totals import EpochTotals


class Recorded:
    """Takes the vector that a rank would send."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.vector: np.ndarray = np.empty(0)

    def allreduce(self, vector: np.ndarray, **_: Any) -> np.ndarray:
        self.vector = vector
        return vector


class Summed(Recorded):
    """Gives back the sum of what the ranks sent."""

    def __init__(self, vectors: list[np.ndarray]) -> None:
        super().__init__(0, len(vectors))
        self._sum = np.sum(vectors, axis=0)

    def allreduce(self, vector: np.ndarray, **_: Any) -> np.ndarray:
        return self._sum


def rank_totals(rank: int) -> EpochTotals:
    totals = EpochTotals(rows=10 * (rank + 1))
    totals.train = Sums({"loss": (2.0 * (rank + 1), 10.0 * (rank + 1)), "mae": (1.0, 5.0)})
    totals.validation = Sums({"loss": (3.0, 4.0)} if rank == 1 else {})
    totals.seconds |= {"train": 1.0 + rank, "communication": 0.9 * rank}
    return totals


def test_means_are_weighted_over_ranks_and_seconds_stay_apart() -> None:
    ranks = [Recorded(rank, 3) for rank in range(3)]
    for rank, recorded in enumerate(ranks):
        rank_totals(rank).reduce(("loss", "mae"), recorded, "x")  # type: ignore[arg-type]
    summed = Summed([recorded.vector for recorded in ranks])
    result = rank_totals(0).reduce(("loss", "mae"), summed, "x")  # type: ignore[arg-type]
    assert result.means["loss"] == 12.0 / 60.0
    assert result.means["mae"] == 3.0 / 15.0
    assert result.means["val_loss"] == 0.75
    assert math.isnan(result.means["val_mae"])
    assert result.rows == 60
    assert result.seconds["train"].tolist() == [1.0, 2.0, 3.0]
    assert result.slowest_rank == 2


def test_without_validation_there_are_no_val_metrics(alone: Communicator) -> None:
    totals = EpochTotals(train=Sums({"loss": (6.0, 4.0)}), rows=4)
    result = totals.reduce(("loss",), alone, "x")
    assert result.means == {"loss": 1.5}
    assert result.rows == 4
