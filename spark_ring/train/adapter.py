"""What a framework must do to be trained by :mod:`spark_ring.train.loop`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from spark_ring.communicator import Communicator
from spark_ring.data.batch import Batch
from spark_ring.data.schema import Contract
from spark_ring.train.job import TrainOptions

__all__ = ["Adapter", "Sums"]


@dataclass
class Sums:
    """Weighted sums over some rows; adding two and dividing by the weight gives the mean over all their rows.

    Attributes:
        weight: rows, or the sum of row weights.
        values: metric name (``"loss"`` and the user's) → sum over rows of value times weight.
    """

    weight: float
    values: dict[str, float]


class Adapter(Protocol):
    """One framework's hands: it owns model, optimizer and loss; the loop owns epochs, data and checkpoints."""

    def setup(
        self,
        payload: dict[str, Any],
        contract: Contract,
        options: TrainOptions,
        communicator: Communicator,
    ) -> None:
        """Build model, loss, optimizer from the user's objects; make rank 0's initial state everybody's."""

    def start_epoch(self, epoch: int) -> None:
        """Epoch numbers count from 1. Seed what is random so that a resumed epoch equals the undisturbed one."""

    def train_step(self, batch: Batch) -> Sums:
        """One step over the global batch, collective included; ``batch.rows`` may be 0."""

    def eval_step(self, batch: Batch) -> Sums:
        """One forward pass without gradients in eval mode, and back to train mode afterwards."""

    def end_epoch(self, epoch: int, logs: dict[str, float]) -> dict[str, float]:
        """After the epoch's global metrics are known: schedulers, callbacks. Returns extra values to log (``lr``)."""

    def save(self) -> bytes:
        """Everything a resumed run needs: weights, optimizer, scheduler, random generators. No pickled code."""

    def load(self, state: bytes) -> None:
        """Restore what :meth:`save` wrote."""

    def weights(self) -> bytes:
        """The model's weights alone, in the framework's safe format (safetensors, ``.keras``)."""

    def close(self) -> None:
        """Let go of threads and handles."""
