"""The loop with a tiny adapter: one number that each step moves, so that every epoch's outcome is known."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spark_ring.communicator import Communicator
from spark_ring.data.batch import Batch
from spark_ring.data.store import Store
from spark_ring.errors import ConfigError, DataError
from spark_ring.train.adapter import Sums
from spark_ring.train.checkpoint import CheckpointFolder
from spark_ring.train.job import TrainOptions
from spark_ring.train.loop import Outcome, TrainingLoop
from spark_ring.train.progress import ProgressReader, ProgressWriter


class Rows:
    """Four rows in two batches; says that it has ``global_rows``."""

    steps = 2
    wait_seconds = 0.0

    def __init__(self, global_rows: int = 4) -> None:
        self.global_rows = global_rows

    def epoch(self, epoch: int) -> Iterator[Batch]:
        for step in range(self.steps):
            yield Batch({"x0": np.full(2, epoch)}, {}, None, rows=2, global_rows=2, step=step)


class Counter:
    """A model of one number: the steps taken. Its losses per epoch are given."""

    weights_suffix = ".txt"

    def __init__(self, val_losses: list[float], names: tuple[str, ...] = ("loss",)) -> None:
        self.val_losses = val_losses
        self.names = names
        self.steps = 0
        self.current = 0
        self.calls: list[str] = []
        self.fail_at: int | None = None

    def setup(self, *_: Any) -> None: ...

    def metric_names(self) -> tuple[str, ...]:
        return self.names

    def start_epoch(self, epoch: int) -> None:
        self.current = epoch
        self.calls.append(f"start {epoch}")

    def train_step(self, batch: Batch) -> Sums:
        if self.steps == self.fail_at:
            raise FloatingPointError("the loss is nan")
        self.steps += 1
        return Sums(dict.fromkeys(self.names, (float(self.steps) * batch.rows, float(batch.rows))))

    def end_training(self, epoch: int) -> None:
        self.calls.append(f"trained {epoch}")

    def eval_step(self, batch: Batch) -> Sums:
        return Sums(dict.fromkeys(self.names, (self.val_losses[self.current - 1] * 2, 2.0)))

    def end_epoch(self, epoch: int, logs: dict[str, float]) -> dict[str, float]:
        self.calls.append(f"end {epoch}")
        return {"lr": 0.1 / epoch}

    def communication_seconds(self) -> float:
        return 0.0

    def save(self) -> bytes:
        return json.dumps(self.steps).encode()

    def load(self, state: bytes) -> None:
        self.steps = json.loads(state)

    def weights(self) -> bytes:
        return f"weights after {self.steps} steps".encode()

    def facts(self) -> dict[str, Any]:
        return {}

    def close(self) -> None: ...


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path))


def train(
    adapter: Counter,
    store: Store,
    communicator: Communicator,
    *,
    validation: bool = True,
    rows: int = 4,
    **options: Any,
) -> Outcome:
    folder = CheckpointFolder(store, "run", "job", adapter.weights_suffix)
    with ProgressWriter(store, "run", interval=0.0) as progress:
        loop = TrainingLoop(
            adapter,
            Rows(rows),
            Rows() if validation else None,
            TrainOptions(**options),
            communicator,
            folder,
            progress,
        )
        return loop.run()


def test_an_epoch_goes_in_order_and_leaves_one_record(store: Store, alone: Communicator) -> None:
    adapter = Counter([9.0, 5.0])
    outcome = train(adapter, store, alone, epochs=2)
    assert adapter.calls == ["start 1", "trained 1", "end 1", "start 2", "trained 2", "end 2"]
    first, second = outcome.history
    assert (first["epoch"], first["loss"], first["val_loss"], first["rows"]) == (1, 1.5, 9.0, 4)
    assert (second["epoch"], second["loss"], second["val_loss"], second["lr"]) == (2, 3.5, 5.0, 0.05)
    assert set(first) == {
        *("epoch", "loss", "val_loss", "rows", "seconds", "rows_per_second", "validation_seconds"),
        *("data_wait_seconds", "compute_seconds", "communication_seconds", "slowest_rank", "lr"),
    }
    assert ProgressReader(store, "run").poll().records == outcome.history


def test_the_weights_of_the_best_epoch_are_kept(store: Store, alone: Communicator) -> None:
    outcome = train(Counter([9.0, 5.0, 7.0, 6.0]), store, alone, epochs=4)
    assert outcome.best_epoch == 2
    assert store.read_bytes(outcome.weights) == b"weights after 4 steps"


def test_without_validation_the_last_weights_are_kept(store: Store, alone: Communicator) -> None:
    outcome = train(Counter([]), store, alone, epochs=3, validation=False)
    assert outcome.best_epoch == 3
    assert store.read_bytes(outcome.weights) == b"weights after 6 steps"
    assert "val_loss" not in outcome.history[0]


def test_training_stops_early(store: Store, alone: Communicator) -> None:
    """Case 94."""
    outcome = train(Counter([5.0, 6.0, 7.0, 1.0]), store, alone, epochs=4, patience=2)
    assert [record["epoch"] for record in outcome.history] == [1, 2, 3]
    assert outcome.best_epoch == 1


@pytest.mark.parametrize("validation", [True, False])
def test_a_broken_off_run_goes_on_after_its_last_epoch(
    store: Store, alone: Communicator, validation: bool
) -> None:
    losses = [9.0, 2.0, 8.0, 7.0]
    broken = Counter(losses)
    broken.fail_at = 5
    with pytest.raises(FloatingPointError):
        train(broken, store, alone, epochs=4, validation=validation)
    adapter = Counter(losses)
    outcome = train(adapter, store, alone, epochs=4, validation=validation)
    assert outcome.resumed_epoch == 2
    assert adapter.steps == 8
    assert [record["loss"] for record in outcome.history] == [1.5, 3.5, 5.5, 7.5]
    assert outcome.best_epoch == (2 if validation else 4)
    expected = b"weights after 4 steps" if validation else b"weights after 8 steps"
    assert store.read_bytes(outcome.weights) == expected


@pytest.mark.parametrize("validation", [True, False])
def test_a_finished_run_that_is_retried_trains_no_more(
    store: Store, alone: Communicator, validation: bool
) -> None:
    first = train(Counter([1.0, 2.0]), store, alone, epochs=2, validation=validation)
    again = train(Counter([1.0, 2.0]), store, alone, epochs=2, validation=validation)
    assert again.resumed_epoch == 2
    assert again.history == first.history
    assert again.weights == first.weights
    assert store.exists(again.weights)


def test_a_run_that_stopped_early_stays_stopped(store: Store, alone: Communicator) -> None:
    train(Counter([1.0, 2.0, 3.0]), store, alone, epochs=3, patience=1)
    adapter = Counter([1.0, 2.0, 3.0])
    assert len(train(adapter, store, alone, epochs=3, patience=1).history) == 2
    assert adapter.calls == []


def test_divergence_names_epoch_step_and_rank(store: Store, alone: Communicator) -> None:
    adapter = Counter([1.0, 1.0])
    adapter.fail_at = 3
    with pytest.raises(FloatingPointError, match="nan in epoch 2, step 2 of 2, on rank 0"):
        train(adapter, store, alone, epochs=3)


def test_rows_that_do_not_add_up_are_an_error(store: Store, alone: Communicator) -> None:
    with pytest.raises(DataError, match="epoch 1 read 4 rows over all ranks; the dataset has 5"):
        train(Counter([1.0]), store, alone, rows=5)


@pytest.mark.parametrize("name", ["rows", "val_loss", "lr"])
def test_a_metric_may_not_take_the_name_of_another_value(
    store: Store, alone: Communicator, name: str
) -> None:
    with pytest.raises(ConfigError, match=f"cannot be called '{name}'"):
        train(Counter([1.0], names=("loss", name)), store, alone)


def test_live_progress_tells_where_training_is(store: Store, alone: Communicator) -> None:
    train(Counter([1.0]), store, alone)
    live = ProgressReader(store, "run").poll().live
    assert live is not None
    assert (live["epoch"], live["epochs"], live["step"], live["steps"], live["rows"]) == (1, 1, 2, 2, 4)
    assert live["loss"] == 1.5
    assert live["rows_per_second"] > 0
