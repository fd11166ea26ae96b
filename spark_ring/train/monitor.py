"""Which epoch is kept, and when training stops early.

The rules, in one place:

* With validation, the kept epoch is the one with the best ``monitor``; a tie keeps the earlier epoch.
* Without validation there is nothing to choose by: the last epoch is kept. Early stopping then looks at the
  training loss in place of a ``val_…`` metric.
* An epoch counts as progress for early stopping when it beats the last progress by more than ``min_delta``.
  After ``patience`` epochs without progress training stops; ``patience=0`` never stops.
* NaN is worse than every number.

All inputs are globally reduced numbers, equal on every rank to the last bit, so every rank decides the same
without asking.
"""

from __future__ import annotations

import math
from typing import Any

from spark_ring.errors import ConfigError
from spark_ring.train.job import TrainOptions

__all__ = ["Monitor"]


class Monitor:
    """Watches one number per epoch.

    Args:
        options: ``monitor``, ``monitor_mode``, ``patience`` and ``min_delta`` are used.
        metrics: names of the training metrics, ``"loss"`` among them.
        validation: whether epochs have ``val_…`` metrics.

    Attributes:
        key: the metric that is looked at.
        best_epoch: the epoch to keep, from 1; 0 before the first.
        stopped: whether training is to stop.

    Raises:
        ConfigError: no metric has the monitor's name, or the mode is neither ``"min"`` nor ``"max"``.
    """

    def __init__(self, options: TrainOptions, metrics: tuple[str, ...], validation: bool) -> None:
        if options.monitor_mode not in ("min", "max"):
            raise ConfigError(f"monitor_mode is {options.monitor_mode!r}; it must be 'min' or 'max'")
        names = [*metrics, *(f"val_{name}" for name in metrics)]
        if options.monitor not in names:
            raise ConfigError(f"monitor={options.monitor!r} is not a metric; there are {', '.join(names)}")
        fallback = not validation and options.monitor.startswith("val_")
        self.key = "loss" if fallback else options.monitor
        self._sign = 1.0 if fallback or options.monitor_mode == "min" else -1.0
        self._keep_last = not validation
        self._patience = options.patience
        self._min_delta = options.min_delta
        self.best_epoch = 0
        self.stopped = False
        self._best = math.inf
        self._reference = math.inf
        self._waited = 0

    @property
    def keeps_last(self) -> bool:
        """Whether the last epoch is kept whatever its metrics."""
        return self._keep_last

    def update(self, epoch: int, record: dict[str, Any]) -> bool:
        """Take an epoch's record. Returns whether this epoch is the one to keep so far."""
        value = self._sign * float(record[self.key])
        if math.isnan(value):
            value = math.inf
        keep = self._keep_last or self.best_epoch == 0 or value < self._best
        if keep:
            self.best_epoch, self._best = epoch, value
        if value < self._reference - self._min_delta or epoch == 1:
            self._reference, self._waited = value, 0
        else:
            self._waited += 1
        self.stopped = 0 < self._patience <= self._waited
        return keep

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: JSON values (infinities as Python's json writes them)."""
        return {
            "best_epoch": self.best_epoch,
            "best": self._best,
            "reference": self._reference,
            "waited": self._waited,
            "stopped": self.stopped,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state`. ``stopped`` is decided anew, so that a larger patience is honoured."""
        self.best_epoch = state["best_epoch"]
        self._best = state["best"]
        self._reference = state["reference"]
        self._waited = state["waited"]
        self.stopped = 0 < self._patience <= self._waited
