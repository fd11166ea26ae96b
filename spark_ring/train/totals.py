"""One epoch's numbers over all ranks, by one allreduce.

Every rank lays its numbers out as one float64 vector and the vectors are summed::

    for each metric of training, then of validation:  sum, weight
    rows read in training
    for each rank, in its own slots (zero elsewhere):  seconds of each phase

The sum of a slot that one rank filled is that rank's value, so a single sum carries both global means and
each rank's own seconds (for the slowest rank). Every rank ends up with the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from spark_ring.communicator import Communicator
from spark_ring.train.adapter import Sums

__all__ = ["PHASES", "EpochTotals"]

PHASES = ("train", "validation", "data_wait", "communication")


@dataclass
class EpochTotals:
    """What one rank counted in an epoch, and after :meth:`reduce` what all did.

    Attributes:
        train: sums of the training metrics.
        validation: sums of the validation metrics; ``None`` without validation.
        rows: training rows.
        seconds: this rank's seconds per phase of :data:`PHASES`.
    """

    train: Sums = field(default_factory=Sums)
    validation: Sums | None = None
    rows: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    def reduce(self, metrics: tuple[str, ...], communicator: Communicator, name: str) -> GlobalTotals:
        """Sum over all ranks. Collective; every rank must have the same metrics."""
        parts = [self.train, *([self.validation] if self.validation else [])]
        numbers = [
            value for part in parts for metric in metrics for value in part.values.get(metric, (0.0, 0.0))
        ]
        slots = np.zeros((communicator.size, len(PHASES)), dtype=np.float64)
        slots[communicator.rank] = [self.seconds[phase] for phase in PHASES]
        vector = np.concatenate([np.asarray([*numbers, self.rows], dtype=np.float64), slots.ravel()])
        summed = communicator.allreduce(vector, op="sum", name=name)
        return _unpack(summed, metrics, len(parts), communicator.size)


@dataclass(frozen=True)
class GlobalTotals:
    """An epoch over all ranks.

    Attributes:
        means: global mean of each metric; those of validation begin with ``val_``.
        rows: training rows of all ranks.
        seconds: phase → seconds of each rank, ``(size,)``.
    """

    means: dict[str, float]
    rows: int
    seconds: dict[str, np.ndarray]

    @property
    def slowest_rank(self) -> int:
        """The rank that spent most time working: others wait for it in every step."""
        busy = self.seconds["train"] - self.seconds["communication"]
        return int(np.argmax(busy))


def _unpack(vector: np.ndarray, metrics: tuple[str, ...], parts: int, size: int) -> GlobalTotals:
    count = 2 * len(metrics) * parts
    pairs = vector[:count].reshape(parts, len(metrics), 2)
    means = {}
    for prefix, part in zip(("", "val_"), pairs, strict=False):
        for metric, (total, weight) in zip(metrics, part, strict=True):
            means[prefix + metric] = float(total / weight) if weight else float("nan")
    slots = vector[count + 1 :].reshape(size, len(PHASES))
    return GlobalTotals(
        means=means,
        rows=int(vector[count]),
        seconds={phase: slots[:, column] for column, phase in enumerate(PHASES)},
    )
