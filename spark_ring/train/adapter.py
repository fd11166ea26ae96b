"""What a framework must do to be trained by :mod:`spark_ring.train.loop`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from spark_ring.communicator import Communicator
from spark_ring.data.batch import Batch
from spark_ring.data.schema import Contract
from spark_ring.train.job import TrainOptions

__all__ = ["Adapter", "Sums"]


@dataclass
class Sums:
    """Weighted sums over some rows; adding two gives the sums over all their rows.

    Attributes:
        values: metric name (``"loss"`` and the user's) → (sum over rows of value times weight, sum of
            weights). The weights are the row weights for the loss, and 1 for each row for a user's metric.
    """

    values: dict[str, tuple[float, float]] = field(default_factory=dict)

    def add(self, other: Sums) -> None:
        """Add another part's sums."""
        for name, (total, weight) in other.values.items():
            mine = self.values.get(name, (0.0, 0.0))
            self.values[name] = (mine[0] + total, mine[1] + weight)

    def mean(self, name: str) -> float:
        """Return the mean of a metric; NaN where it has no weight."""
        total, weight = self.values.get(name, (0.0, 0.0))
        return total / weight if weight else float("nan")


class Adapter(Protocol):
    """One framework's hands. It owns model, optimizer and loss; the loop owns epochs, data, checkpoints."""

    weights_suffix: str
    """What the name of a file of :meth:`weights` ends with, for example ``".safetensors"``."""

    def setup(
        self,
        payload: dict[str, Any],
        contract: Contract,
        options: TrainOptions,
        communicator: Communicator,
    ) -> None:
        """Build model, loss, optimizer from the user's objects; make rank 0's initial state everybody's."""

    def metric_names(self) -> tuple[str, ...]:
        """After :meth:`setup`: the names that every :class:`Sums` has, ``"loss"`` first."""

    def start_epoch(self, epoch: int) -> None:
        """Epochs count from 1. Seed what is random so that a resumed epoch equals the undisturbed one."""

    def train_step(self, batch: Batch) -> Sums:
        """One step over the global batch, collective included; ``batch.rows`` may be 0.

        Raises:
            FloatingPointError: the loss of this rank's rows is NaN or infinite.
        """

    def end_training(self, epoch: int) -> None:
        """After the last step, before validation: make equal what steps leave different on the ranks."""

    def eval_step(self, batch: Batch) -> Sums:
        """One forward pass without gradients in eval mode; train mode afterwards. No collective."""

    def end_epoch(self, epoch: int, logs: dict[str, float]) -> dict[str, float]:
        """After the epoch's global metrics are known: schedulers. Returns more values to log (``lr``)."""

    def communication_seconds(self) -> float:
        """Seconds since :meth:`setup` that steps stood still waiting for the ring."""

    def save(self) -> bytes:
        """Everything a resumed run needs: weights, optimizer, scheduler. No pickled code."""

    def load(self, state: bytes) -> None:
        """Restore what :meth:`save` wrote. Every rank is given the same bytes."""

    def weights(self) -> bytes:
        """The model's weights alone, in the framework's safe format (safetensors, ``.keras``)."""

    def facts(self) -> dict[str, Any]:
        """What a report wants to know, JSON-able: framework, version, threads."""

    def close(self) -> None:
        """Let go of threads and handles, and put back what :meth:`setup` changed in the process."""
