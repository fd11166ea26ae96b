"""Epochs: read, step, measure, decide, keep.

One epoch on every rank::

    adapter.start_epoch → train_step for each batch → end_training
                        → eval_step for each validation batch of this rank's share
    one allreduce of all sums → the same record on every rank
    adapter.end_epoch (scheduler) → monitor decides (kept epoch, early stop), alike on every rank
    rank 0: weights of a new best epoch, checkpoint, progress

The reader gives every rank the same number of steps, so every rank makes the same collective calls in the
same order, also a rank whose rows ran out: it takes the step with none.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from spark_ring.communicator import Communicator
from spark_ring.data.batch import Batch
from spark_ring.errors import ConfigError, DataError
from spark_ring.train.adapter import Adapter, Sums
from spark_ring.train.checkpoint import Checkpoint, CheckpointFolder
from spark_ring.train.job import TrainOptions
from spark_ring.train.monitor import Monitor
from spark_ring.train.progress import ProgressWriter
from spark_ring.train.totals import EpochTotals, GlobalTotals

__all__ = ["Outcome", "Reader", "TrainingLoop"]

log = logging.getLogger(__name__)

RECORD_KEYS = frozenset(
    (
        "epoch",
        "rows",
        "seconds",
        "rows_per_second",
        "validation_seconds",
        "data_wait_seconds",
        "compute_seconds",
        "communication_seconds",
        "slowest_rank",
        "lr",
    )
)
"""Keys of a history record that are not metrics. No metric may have one of these names."""


class Reader(Protocol):
    """What the loop needs of a :class:`spark_ring.data.parquet.ParquetReader`."""

    @property
    def steps(self) -> int:
        """Steps of an epoch."""

    @property
    def global_rows(self) -> int:
        """Rows of an epoch over all ranks."""

    @property
    def wait_seconds(self) -> float:
        """Seconds so far that the loop has waited for batches."""

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """This rank's batches of an epoch, the same number on every rank."""


@dataclass(frozen=True)
class Outcome:
    """What a finished loop knows; all but ``rows`` is the same on every rank.

    Attributes:
        history: one record per epoch.
        best_epoch: the epoch whose weights are kept.
        weights: their path, relative to the store.
        resumed_epoch: epochs that a checkpoint had already done.
        rows: training rows of this rank in its last epoch.
    """

    history: list[dict[str, Any]]
    best_epoch: int
    weights: str
    resumed_epoch: int
    rows: int


class TrainingLoop:
    """Trains with one adapter over one training reader and, perhaps, one of validation.

    Args:
        adapter: set up, same initial state on every rank.
        train: reader of the training split.
        validation: reader of the validation split, or ``None``.
        options: epochs and decisions.
        communicator: of all ranks.
        folder: the run's checkpoints.
        progress: where rank 0 reports.

    Raises:
        ConfigError: no epochs are asked for, a metric's name is taken, the monitor names no metric, or ranks
            have different metrics.
    """

    def __init__(
        self,
        adapter: Adapter,
        train: Reader,
        validation: Reader | None,
        options: TrainOptions,
        communicator: Communicator,
        folder: CheckpointFolder,
        progress: ProgressWriter,
    ) -> None:
        self._adapter = adapter
        self._train = train
        self._validation = validation
        self._options = options
        self._communicator = communicator
        self._folder = folder
        self._progress = progress
        if options.epochs < 1:
            raise ConfigError(f"epochs is {options.epochs}; it must be at least 1")
        self._metrics = _checked_names(adapter.metric_names(), communicator)
        self._monitor = Monitor(options, self._metrics, validation is not None)
        self._history: list[dict[str, Any]] = []
        self._kept = ""
        self._rows = 0

    def run(self) -> Outcome:
        """Resume if there is a checkpoint, train what is left, and keep the weights."""
        resumed = self._resume()
        for epoch in range(resumed + 1, self._options.epochs + 1):
            if self._monitor.stopped:
                break
            self._run_epoch(epoch)
        if self._monitor.keeps_last:
            self._keep(self._monitor.best_epoch)
        return Outcome(self._history, self._monitor.best_epoch, self._kept, resumed, self._rows)

    def _resume(self) -> int:
        found = self._folder.resume(self._communicator)
        self._progress.clear(after=found.epoch if found else 0)
        if found is None:
            return 0
        self._adapter.load(found.state)
        self._monitor.restore(found.monitor)
        self._history = list(found.history)
        self._kept = found.weights
        log.info("rank %d goes on after epoch %d", self._communicator.rank, found.epoch)
        return found.epoch

    def _run_epoch(self, epoch: int) -> None:
        totals = EpochTotals()
        self._adapter.start_epoch(epoch)
        self._train_epoch(epoch, totals)
        if self._validation is not None:
            totals.validation = self._validate(epoch, self._validation, totals)
        reduced = totals.reduce(self._metrics, self._communicator, name=f"totals of epoch {epoch}")
        self._rows = totals.rows
        self._check_rows(epoch, reduced)
        record = _record(epoch, reduced)
        record.update(self._adapter.end_epoch(epoch, dict(reduced.means)))
        self._history.append(record)
        if self._monitor.update(epoch, record) and not self._monitor.keeps_last:
            self._keep(epoch)
        self._save(epoch)
        self._progress.epoch(record)

    def _train_epoch(self, epoch: int, totals: EpochTotals) -> None:
        began, waited = time.perf_counter(), self._train.wait_seconds
        blocked = self._adapter.communication_seconds()
        global_rows = 0
        for batch in self._train.epoch(epoch):
            try:
                totals.train.add(self._adapter.train_step(batch))
            except FloatingPointError as error:
                raise FloatingPointError(self._diverged(epoch, batch, error)) from error
            totals.rows += batch.rows
            global_rows += batch.global_rows
            if self._progress.due:
                self._report(epoch, batch.step + 1, totals, global_rows, time.perf_counter() - began)
        self._adapter.end_training(epoch)
        totals.seconds["train"] = time.perf_counter() - began
        totals.seconds["data_wait"] = self._train.wait_seconds - waited
        totals.seconds["communication"] = self._adapter.communication_seconds() - blocked

    def _validate(self, epoch: int, reader: Reader, totals: EpochTotals) -> Sums:
        began = time.perf_counter()
        sums = Sums()
        for batch in reader.epoch(epoch):
            sums.add(self._adapter.eval_step(batch))
        totals.seconds["validation"] = time.perf_counter() - began
        return sums

    def _check_rows(self, epoch: int, reduced: GlobalTotals) -> None:
        """Hold the reader to its promise: every row once per epoch over all ranks."""
        if reduced.rows != self._train.global_rows:
            raise DataError(
                f"epoch {epoch} read {reduced.rows} rows over all ranks; the dataset has "
                f"{self._train.global_rows}. Files of the dataset changed while it was read."
            )

    def _keep(self, epoch: int) -> None:
        """Make the present weights the kept ones."""
        self._kept = self._folder.weights_path(epoch)
        if self._communicator.rank == 0:
            self._folder.write_weights(epoch, self._adapter.weights())

    def _save(self, epoch: int) -> None:
        if self._communicator.rank != 0:
            return
        self._folder.write(
            Checkpoint(
                epoch=epoch,
                history=self._history,
                monitor=self._monitor.state(),
                weights=self._kept,
                fingerprint=self._folder.fingerprint,
                state=self._adapter.save(),
            )
        )

    def _report(self, epoch: int, steps_done: int, totals: EpochTotals, rows: int, seconds: float) -> None:
        self._progress.live(
            {
                "epoch": epoch,
                "epochs": self._options.epochs,
                "step": steps_done,
                "steps": self._train.steps,
                "rows": rows,
                "rows_per_second": rows / seconds if seconds > 0 else 0.0,
                "loss": totals.train.mean("loss"),
            }
        )

    def _diverged(self, epoch: int, batch: Batch, error: FloatingPointError) -> str:
        return (
            f"{error} in epoch {epoch}, step {batch.step + 1} of {self._train.steps}, on rank "
            f"{self._communicator.rank}. Look for NaN or huge values in the features and labels, or train "
            "with a smaller learning rate or with gradient clipping."
        )


def _record(epoch: int, reduced: GlobalTotals) -> dict[str, Any]:
    """Make a history record. Seconds are the slowest rank's; the parts of a step are means over ranks."""
    seconds = reduced.seconds
    train = float(seconds["train"].max())
    busy = seconds["train"] - seconds["data_wait"] - seconds["communication"]
    return {
        "epoch": epoch,
        **reduced.means,
        "rows": reduced.rows,
        "seconds": float((seconds["train"] + seconds["validation"]).max()),
        "rows_per_second": reduced.rows / train if train > 0 else 0.0,
        "validation_seconds": float(seconds["validation"].max()),
        "data_wait_seconds": float(seconds["data_wait"].mean()),
        "compute_seconds": float(busy.mean()),
        "communication_seconds": float(seconds["communication"].mean()),
        "slowest_rank": reduced.slowest_rank,
    }


def _checked_names(names: tuple[str, ...], communicator: Communicator) -> tuple[str, ...]:
    """Refuse names that a record already has, and ranks that disagree."""
    for name in names:
        if name in RECORD_KEYS or name.startswith("val_"):
            raise ConfigError(
                f"a metric cannot be called {name!r}: history records use that name; choose another"
            )
    of_all = communicator.allgather_object(list(names))
    for rank, theirs in enumerate(of_all):
        if list(theirs) != list(names):
            raise ConfigError(
                f"ranks have different metrics: rank {communicator.rank} has {list(names)}, "
                f"rank {rank} has {theirs}"
            )
    return names
