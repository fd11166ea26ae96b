"""Which epoch is kept and when training stops: pure decisions from numbers."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from spark_ring.errors import ConfigError
from spark_ring.train.job import TrainOptions
from spark_ring.train.monitor import Monitor

METRICS = ("loss", "accuracy")


def follow(monitor: Monitor, values: list[float]) -> list[bool]:
    """Feed one value per epoch; return which epochs were kept, up to the stop."""
    kept = []
    for epoch, value in enumerate(values, start=1):
        kept.append(monitor.update(epoch, {monitor.key: value}))
        if monitor.stopped:
            break
    return kept


def make(validation: bool = True, **options: Any) -> Monitor:
    return Monitor(TrainOptions(**options), METRICS, validation)


def test_the_best_epoch_is_kept_and_a_tie_keeps_the_earlier() -> None:
    monitor = make()
    assert follow(monitor, [3.0, 1.0, 1.0, 2.0]) == [True, True, False, False]
    assert monitor.best_epoch == 2
    assert not monitor.stopped


def test_mode_max_keeps_the_largest() -> None:
    monitor = make(monitor="val_accuracy", monitor_mode="max")
    assert follow(monitor, [0.1, 0.9, 0.5]) == [True, True, False]


def test_without_validation_the_last_epoch_is_kept_and_the_training_loss_is_watched() -> None:
    monitor = make(validation=False, patience=2, monitor="val_accuracy", monitor_mode="max")
    assert monitor.key == "loss"
    assert monitor.keeps_last
    assert follow(monitor, [1.0, 2.0, 0.5, 0.6, 0.7, 0.8]) == [True] * 5
    assert monitor.stopped
    assert monitor.best_epoch == 5


def test_patience_counts_epochs_without_progress() -> None:
    monitor = make(patience=2)
    assert len(follow(monitor, [1.0, 1.1, 0.9, 1.0, 1.0, 0.1])) == 5
    assert monitor.best_epoch == 3


def test_min_delta_is_for_stopping_and_not_for_the_kept_epoch() -> None:
    monitor = make(patience=2, min_delta=0.5)
    assert follow(monitor, [1.0, 0.9, 0.8, 0.7]) == [True, True, True]
    assert monitor.stopped
    assert monitor.best_epoch == 3


def test_nan_is_worse_than_every_number() -> None:
    monitor = make(patience=3)
    assert follow(monitor, [math.nan, math.nan, 5.0, math.nan]) == [True, False, True, False]
    assert monitor.best_epoch == 3


def test_a_restored_monitor_goes_on_as_if_never_interrupted() -> None:
    values = [1.0, 0.9, 1.2, 1.1, 1.3, 0.1]
    whole = make(patience=3)
    follow(whole, values)
    for cut in range(1, 5):
        first = make(patience=3)
        follow(first, values[:cut])
        second = make(patience=3)
        second.restore(json.loads(json.dumps(first.state())))
        for epoch in range(cut + 1, len(values) + 1):
            second.update(epoch, {"val_loss": values[epoch - 1]})
            if second.stopped:
                break
        assert second.state() == whole.state()


@pytest.mark.parametrize(
    ("options", "named"),
    [({"monitor": "val_lossy"}, "val_accuracy"), ({"monitor_mode": "least"}, "'min' or 'max'")],
)
def test_a_monitor_that_cannot_be_is_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        make(**options)
