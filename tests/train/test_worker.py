"""One process trains a job: payload, threads, generators, resume. Real files, real torch, a world of one."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import fits
import numpy as np
import pytest
import torch
from safetensors.torch import load as load_safetensors

import spark_ring
from spark_ring import world
from spark_ring.communicator import Communicator
from spark_ring.data.store import Store
from spark_ring.errors import ConfigError, DataError, StoreError
from spark_ring.torch.module import load_weights
from spark_ring.train.job import TrainJob
from spark_ring.train.progress import ProgressReader
from spark_ring.train.worker import fingerprint, run_worker


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(str(tmp_path / "store with a space"))
    fits.write_dataset(made, rows=150, val_rows=40)
    return made


def test_a_job_trains_and_its_weights_load(store: Store, alone: Communicator) -> None:
    job = fits.write_job(store, fits.payload(metrics={"mae": fits.mae}), epochs=5, validation=True)
    result = run_worker(job, alone)
    assert [record["epoch"] for record in result.history] == [1, 2, 3, 4, 5]
    assert result.history[-1]["loss"] < 0.3 * result.history[0]["loss"]
    assert result.rows == 150
    best = min(result.history, key=lambda record: record["val_loss"])
    assert result.best_epoch == best["epoch"]
    model = fits.net()
    load_weights(model, store.read_bytes(result.weights))
    val = fits.data(40, seed=2)
    with torch.no_grad():
        error = (model(torch.from_numpy(val["x0"]))[:, 0] - torch.from_numpy(val["y0"])).abs().mean()
    assert float(error) == pytest.approx(best["val_mae"], rel=1e-5)
    assert ProgressReader(store, "r").poll().records == result.history


def test_the_history_is_that_of_a_plain_torch_loop(store: Store, alone: Communicator) -> None:
    """Nothing is scaled, nothing is added: the same rows in the same order give the same losses."""
    model = fits.net()
    job = fits.write_job(store, fits.payload(model=model), epochs=3, shuffle=False, batch_size=32)
    result = run_worker(job, alone)
    optimizer = fits.sgd(model.parameters())
    rows = fits.data(150, seed=1)
    x, y = torch.from_numpy(rows["x0"]), torch.from_numpy(rows["y0"])
    for record in result.history:
        total = 0.0
        for start in range(0, 150, 32):
            part = slice(start, start + 32)
            loss = torch.nn.functional.mse_loss(model(x[part])[:, 0], y[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(x[part])
        assert record["loss"] == pytest.approx(total / 150, rel=1e-6)
        assert record["lr"] == 0.05


def test_a_payload_that_was_changed_is_not_unpickled(store: Store, alone: Communicator) -> None:
    job = fits.write_job(store, fits.payload())
    marker = store.path("unpickled")
    store.write_bytes(job.payload, f"cbuiltins\nopen\n(V{marker}\nVw\ntR.".encode())
    with pytest.raises(StoreError, match="It was not unpickled"):
        run_worker(job, alone)
    assert not store.exists("unpickled")


def test_the_verbs_answer_inside_the_users_code(store: Store, alone: Communicator) -> None:
    seen = {"size": lambda output, label: spark_ring.size(), "rank": lambda output, label: spark_ring.rank()}
    with nothing_as_default():
        result = run_worker(fits.write_job(store, fits.payload(metrics=seen)), alone)
    assert result.history[0]["size"] == 1.0
    assert result.history[0]["rank"] == 0.0


@contextmanager
def nothing_as_default() -> Iterator[None]:
    """Make the default communicator one that cannot answer, so that only a lent one gives answers."""
    with world.use(cast(Communicator, SimpleNamespace(size=7))):
        with pytest.raises(AttributeError):
            spark_ring.rank()
        yield


def test_the_process_gets_back_its_threads_and_generators(store: Store, alone: Communicator) -> None:
    torch.set_num_threads(2)
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    expected = (torch.rand(1), np.random.rand(), random.random())
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    seen = {"threads": lambda output, label: torch.get_num_threads()}
    result = run_worker(fits.write_job(store, fits.payload(metrics=seen), threads=1), alone)
    assert result.history[0]["threads"] == 1.0
    assert torch.get_num_threads() == 2
    assert (torch.rand(1), np.random.rand(), random.random()) == expected


def test_the_seed_decides_everything(store: Store, alone: Communicator) -> None:
    """Case 65."""

    def weights(seed: int, run: str) -> bytes:
        job = fits.write_job(store, fits.payload(model=lambda: fits.net(dropout=0.5)), seed=seed, epochs=2)
        return store.read_bytes(run_worker(replace(job, run_id=run), alone).weights)

    assert weights(7, "a") == weights(7, "b")
    assert weights(7, "a") != weights(8, "c")


class HaltsError(Exception):
    """What breaks a run off."""


class HaltsAt(torch.nn.Module):
    """Breaks off at a forward pass in training, once per process."""

    passes = 0
    at = 0

    def __init__(self) -> None:
        super().__init__()
        self.inner = fits.net(dropout=0.3, norm=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        HaltsAt.passes += self.training
        if HaltsAt.passes == HaltsAt.at:
            raise HaltsError
        return self.inner(x)


def clipped_with_schedule() -> dict[str, Any]:
    return fits.payload(
        model=HaltsAt,
        optimizer=fits.adam,
        scheduler=lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, factor=0.5, patience=0),
        clip_norm=0.5,
    )


@pytest.mark.parametrize("at", [1, 7, 15, 16])
def test_a_resumed_run_equals_the_undisturbed_one(store: Store, alone: Communicator, at: int) -> None:
    """Optimizer, scheduler, dropout masks, batch norm statistics, shuffle and early stopping go on as if
    nothing had happened: the weights are equal to the last bit."""
    job = fits.write_job(store, clipped_with_schedule(), epochs=6, validation=True, patience=4)
    HaltsAt.passes, HaltsAt.at = 0, 0
    undisturbed = run_worker(replace(job, run_id="whole"), alone)
    HaltsAt.passes, HaltsAt.at = 0, at
    with pytest.raises(HaltsError):
        run_worker(job, alone)
    spark_ring.shutdown()  # a communicator that gave up stays so: a new attempt has a new one
    spark_ring.init()
    resumed = run_worker(job, world.current())
    assert resumed.resumed_epoch == (at - 1) // 5
    exact = ("epoch", "loss", "val_loss", "lr", "rows")
    assert [{k: r[k] for k in exact} for r in resumed.history] == [
        {k: r[k] for k in exact} for r in undisturbed.history
    ]
    assert resumed.best_epoch == undisturbed.best_epoch
    assert store.read_bytes(resumed.weights) == store.read_bytes(undisturbed.weights)
    last = [store.list(f"runs/{run}/checkpoints")[-1] for run in ("r", "whole")]
    assert last[0] == last[1]


def test_a_second_fit_with_the_same_run_id_starts_anew(store: Store, alone: Communicator) -> None:
    """Case 130."""
    first = run_worker(fits.write_job(store, fits.payload(), epochs=3), alone)
    second = run_worker(fits.write_job(store, fits.payload(optimizer=fits.adam), epochs=1), alone)
    assert second.resumed_epoch == 0
    assert len(second.history) == 1
    assert len(first.history) == 3
    assert ProgressReader(store, "r").poll().records == second.history


def test_more_epochs_go_on_from_the_checkpoint(store: Store, alone: Communicator) -> None:
    job = fits.write_job(store, fits.payload(), epochs=2)
    run_worker(job, alone)
    more = run_worker(replace(job, options=replace(job.options, epochs=4)), alone)
    assert more.resumed_epoch == 2
    assert len(more.history) == 4


def test_the_fingerprint_tells_jobs_apart_but_not_attempts(store: Store) -> None:
    job = fits.write_job(store, fits.payload())
    longer = replace(job, options=replace(job.options, epochs=9, patience=3, threads=2))
    assert fingerprint(longer) == fingerprint(job)
    others: list[TrainJob] = [
        replace(job, payload_sha256="0"),
        replace(job, dataset="datasets/e"),
        replace(job, options=replace(job.options, seed=1)),
        replace(job, options=replace(job.options, batch_size=8)),
    ]
    assert len({fingerprint(other) for other in (job, *others)}) == 5


def test_frozen_parameters_do_not_move(store: Store, alone: Communicator) -> None:
    """Case 86."""

    def half_frozen() -> torch.nn.Module:
        torch.manual_seed(1)
        model = fits.net()
        model[0].requires_grad_(False)
        return model

    result = run_worker(fits.write_job(store, fits.payload(model=half_frozen)), alone)
    before, after = half_frozen().state_dict(), load_safetensors(store.read_bytes(result.weights))
    assert torch.equal(before["0.weight"], after["0.weight"])
    assert not torch.equal(before["2.weight"], after["2.weight"])


def test_rows_of_weight_zero_have_no_effect(store: Store, alone: Communicator) -> None:
    """Case 56. The rows of weight 0 have absurd labels in one of two datasets; nothing changes."""
    fits.write_dataset(store, rows=150, val_rows=40, weighted=True)
    job = fits.write_job(store, fits.payload(), weighted=True, epochs=3, validation=True)
    plain = run_worker(job, alone)
    original = fits.data

    def absurd(rows: int, seed: int = 0) -> dict[str, np.ndarray]:
        arrays = original(rows, seed)
        arrays["y0"][arrays["w"] == 0] = 1e30
        return arrays

    fits.data = absurd
    try:
        fits.write_dataset(store, rows=150, val_rows=40, weighted=True)
    finally:
        fits.data = original
    spoiled = run_worker(replace(job, run_id="spoiled"), alone)
    assert [r["loss"] for r in spoiled.history] == [r["loss"] for r in plain.history]
    assert [r["val_loss"] for r in spoiled.history] == [r["val_loss"] for r in plain.history]
    assert store.read_bytes(spoiled.weights) == store.read_bytes(plain.weights)


def test_an_empty_training_split_is_an_error_and_an_empty_validation_split_is_not(
    store: Store, alone: Communicator
) -> None:
    """Case 35."""
    fits.write_dataset(store, rows=20, val_rows=0)
    Path(store.path("datasets/d/val")).rename(store.path("datasets/d/kept"))
    Path(store.path("datasets/d/val")).mkdir()
    from spark_ring.data.manifest import Manifest

    Manifest.scan(store, "datasets/d", fits.contract(), ["train", "val"]).write(store)
    result = run_worker(fits.write_job(store, fits.payload(), validation=True), alone)
    assert "val_loss" not in result.history[0]
    Manifest.scan(store, "datasets/d", fits.contract(), {"train": "val"}).write(store)
    with pytest.raises(DataError, match="has no training rows"):
        run_worker(fits.write_job(store, fits.payload()), alone)


def test_an_adapter_that_is_not_there_is_named(store: Store, alone: Communicator) -> None:
    job = replace(fits.write_job(store, fits.payload()), adapter="spark_ring.nowhere:Adapter")
    with pytest.raises(ConfigError, match=r"'spark_ring.nowhere:Adapter' cannot be imported on host"):
        run_worker(job, alone)


def test_a_tail_of_one_row_passes_batch_norm(store: Store, alone: Communicator) -> None:
    fits.write_dataset(store, rows=33)
    job = fits.write_job(store, fits.payload(model=lambda: fits.net(norm=True)), batch_size=32, epochs=2)
    assert run_worker(job, alone).history[1]["rows"] == 33


def test_a_module_that_executors_lack_is_named_with_the_host(
    store: Store, alone: Communicator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 145."""
    (tmp_path / "only_on_the_driver.py").write_text("def metric(output, label):\n    return 0.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    metric = importlib.import_module("only_on_the_driver").metric
    job = fits.write_job(store, fits.payload(metrics={"m": metric}))
    monkeypatch.undo()
    del sys.modules["only_on_the_driver"]
    with pytest.raises(ConfigError, match="module 'only_on_the_driver', which cannot be imported on host"):
        run_worker(job, alone)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"epochs": 0}, "epochs is 0"), ({"monitor": "val_mse"}, "monitor='val_mse' is not a metric")],
)
def test_options_that_cannot_be_used_are_refused(
    store: Store, alone: Communicator, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run_worker(fits.write_job(store, fits.payload(), **options), alone)
