"""What the driver asks of a worker, and what a worker answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from spark_ring.data.schema import Contract

__all__ = ["TrainJob", "TrainOptions", "WorkerResult"]


@dataclass(frozen=True)
class TrainOptions:
    """How to train; every field is honoured.

    Attributes:
        epochs: how many epochs in all (a resumed run counts from its checkpoint).
        batch_size: rows per worker and step.
        seed: of shuffling and of every worker's random generators.
        shuffle: whether rows are shuffled anew each epoch.
        lanes: virtual lanes of the reader; with the same value the global batches do not depend on the world
            size.
        validation: whether the dataset has a ``val`` split.
        patience: epochs without improvement of the monitored metric before stopping; 0 never stops early.
        min_delta: what counts as improvement.
        monitor: metric that decides the best epoch, for example ``"val_loss"``.
        monitor_mode: ``"min"`` or ``"max"``.
        threads: CPU threads of the framework in one worker; 0 leaves the framework's choice.
        progress_seconds: how often rank 0 reports in an epoch.
    """

    epochs: int = 1
    batch_size: int = 32
    seed: int = 0
    shuffle: bool = True
    lanes: int = 16
    validation: bool = False
    patience: int = 0
    min_delta: float = 0.0
    monitor: str = "val_loss"
    monitor_mode: str = "min"
    threads: int = 0
    progress_seconds: float = 1.0


@dataclass(frozen=True)
class TrainJob:
    """Everything a worker needs. Small and picklable; large things travel through the store.

    Attributes:
        run_id: identity of this fit; its folder is ``<store>/runs/<run_id>``.
        store: the store's root, any form that ``Store`` accepts.
        dataset: path of the materialized dataset, relative to the store's root.
        contract: the column contract.
        adapter: ``"module:Class"`` of the framework's adapter, imported where it runs.
        payload: path (relative to the store's root) of the cloudpickled user objects.
        payload_sha256: digest of that file, checked before it is unpickled.
        options: how to train.
    """

    run_id: str
    store: str
    dataset: str
    contract: Contract
    adapter: str
    payload: str
    payload_sha256: str
    options: TrainOptions


@dataclass(frozen=True)
class WorkerResult:
    """What one rank found; JSON-able.

    Attributes:
        rank: the rank.
        rows: training rows this rank read in the last epoch.
        history: one record per epoch (the same on all ranks): ``{"epoch": 1, "loss": …, "val_loss": …, …}``.
        best_epoch: the epoch whose weights are kept, from 1.
        weights: path (relative to the store's root) of the kept weights; the same on all ranks.
        resumed_epoch: epochs that were already done in the checkpoint this attempt started from.
        facts: host, pid, seconds per phase (read, compute, communicate), transport, …
    """

    rank: int
    rows: int
    history: list[dict[str, Any]]
    best_epoch: int
    weights: str
    resumed_epoch: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
