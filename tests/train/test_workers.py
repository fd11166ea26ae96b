"""N workers over the real ring: equal to one worker, equal to each other, and failing together.

One launch per world size and transport runs every job (processes are what costs); each test looks at one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fits
import numpy as np
import pytest
import torch
from safetensors.torch import load as load_safetensors

import spark_ring
from spark_ring.data.store import Store
from spark_ring.errors import LaunchError, WorkerError
from spark_ring.launch.local import LocalJob
from spark_ring.train.job import TrainJob
from spark_ring.train.progress import ProgressReader

GLOBAL_BATCH = 24
WORLDS = [(2, "shm"), (2, "tcp"), (3, "shm"), (3, "tcp"), (4, "shm"), (4, "tcp")]


def frozen_net() -> torch.nn.Module:
    """Dropout, batch norm, and a first layer that is not trained."""
    model = fits.net(dropout=0.5, norm=True)
    model[0].requires_grad_(False)
    return model


def restless(optimizer: torch.optim.Optimizer) -> Any:
    """A learning rate that makes the validation loss go up and down."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0 if epoch % 2 else 8.0)


def jobs(folder: Path, size: int) -> dict[str, TrainJob]:
    """Write datasets and jobs for a world size; the global batch is the same for every size."""
    made = {}

    def add(name: str, rows: int, val_rows: int, payload: dict[str, Any], **options: Any) -> None:
        store = Store(str(folder / name))
        weighted = options.pop("weighted", False)
        fits.write_dataset(store, rows, val_rows, weighted=weighted)
        options = {"batch_size": GLOBAL_BATCH // size, "lanes": 12, "validation": val_rows > 0, **options}
        made[name] = fits.write_job(store, payload, weighted=weighted, **options)

    add("plain", 179, 50, fits.payload(metrics={"mae": fits.mae}), epochs=3)
    add("weighted", 179, 50, fits.payload(loss=torch.nn.MSELoss()), epochs=3, weighted=True)
    add("random", 400, 50, fits.payload(model=frozen_net, optimizer=fits.adam), epochs=12)
    add("one row", 1, 1, fits.payload(), epochs=2, batch_size=4)
    add("uneven", 9, 0, fits.payload(), epochs=2, batch_size=1)
    add("early", 60, 50, fits.payload(scheduler=restless), epochs=20, patience=2)
    return made


def run_all(made: dict[str, TrainJob]) -> dict[str, dict[str, Any]]:
    """In each rank: run every job."""
    return {name: fits.step_losses(job) for name, job in made.items()}


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Return the results by rank, and the jobs, of a world; launched when first asked for."""
    done: dict[tuple[int, str], tuple[list[Any], dict[str, TrainJob]]] = {}

    def get(size: int, transport: str) -> tuple[list[Any], dict[str, TrainJob]]:
        if (size, transport) not in done:
            made = jobs(tmp_path_factory.mktemp(f"{size}-{transport}"), size)
            done[size, transport] = spark_ring.run(run_all, (made,), np=size, transport=transport), made
        return done[size, transport]

    return get


def weights_of(job: TrainJob, result: Any) -> dict[str, torch.Tensor]:
    loaded: dict[str, torch.Tensor] = load_safetensors(Store(job.store).read_bytes(result.weights))
    return loaded


@pytest.mark.parametrize(("size", "transport"), WORLDS)
@pytest.mark.parametrize("name", ["plain", "weighted"])
def test_n_workers_equal_one_worker(
    launched: Callable[..., Any], name: str, size: int, transport: str
) -> None:
    """Cases 56 and 58: the same global batches, an uneven tail, row weights."""
    (one, *_), one_jobs = launched(1, "auto")
    ranks, many_jobs = launched(size, transport)
    expected, found = one[name], ranks[0][name]
    assert len(expected["losses"]) == 24
    np.testing.assert_allclose(found["losses"], expected["losses"], rtol=1e-5)
    for mine, theirs in zip(found["result"].history, expected["result"].history, strict=True):
        assert mine["rows"] == theirs["rows"] == 179
        for metric in set(mine) & {"loss", "val_loss", "mae", "val_mae"}:
            assert mine[metric] == pytest.approx(theirs[metric], rel=1e-5), metric
    assert found["result"].best_epoch == expected["result"].best_epoch
    reference = weights_of(one_jobs[name], expected["result"])
    for key, tensor in weights_of(many_jobs[name], found["result"]).items():
        torch.testing.assert_close(tensor, reference[key], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("size", "transport"), WORLDS)
def test_every_rank_holds_the_same_bits(launched: Callable[..., Any], size: int, transport: str) -> None:
    """Cases 32, 58, 64, 86 and 92: 204 steps with dropout, batch norm and frozen parameters; fewer rows than
    ranks; tails that do not reach every rank."""
    ranks, _ = launched(size, transport)
    for name, first in ranks[0].items():
        for rank, results in enumerate(ranks):
            assert results[name]["digest"] == first["digest"], f"{name}: rank {rank} differs from rank 0"
    assert len(ranks[0]["random"]["losses"]) == 204


@pytest.mark.parametrize(("size", "transport"), WORLDS)
def test_every_row_is_read_once_whatever_the_counts(
    launched: Callable[..., Any], size: int, transport: str
) -> None:
    """Cases 32 and 58."""
    ranks, _ = launched(size, transport)
    for name, rows in {"one row": 1, "uneven": 9, "plain": 179}.items():
        assert sum(results[name]["result"].rows for results in ranks) == rows
        assert all(record["rows"] == rows for record in ranks[0][name]["result"].history)


@pytest.mark.parametrize(("size", "transport"), WORLDS)
def test_all_ranks_stop_in_the_same_epoch(launched: Callable[..., Any], size: int, transport: str) -> None:
    """Case 94."""
    ranks, made = launched(size, transport)
    (one, *_), _ = launched(1, "auto")
    stops = [len(results["early"]["result"].history) for results in ranks]
    assert stops == [len(one["early"]["result"].history)] * size
    assert stops[0] < made["early"].options.epochs


def test_facts_say_where_the_time_went(launched: Callable[..., Any]) -> None:
    ranks, _ = launched(2, "tcp")
    facts = [results["plain"]["result"].facts for results in ranks]
    assert [fact["transport"] for fact in facts] == ["tcp", "tcp"]
    assert facts[0]["pid"] != facts[1]["pid"]
    assert facts[0]["framework"] == f"torch {torch.__version__}"
    for fact in facts:
        seconds = fact["seconds"]
        assert 0 < seconds["communicate"] < seconds["total"]
        assert 0 < seconds["compute"] < seconds["total"]


def failing(folder: Path, how: str, after: int, **options: Any) -> tuple[Store, TrainJob]:
    """A job on two ranks in which rank 1 fails, once; 8 training steps an epoch."""
    store = Store(str(folder / "store"))
    fits.write_dataset(store, rows=8 * GLOBAL_BATCH, val_rows=30)
    model = fits.Fails(1, after, how, str(folder / "failed"))
    payload = fits.payload(model=model, optimizer=fits.adam)
    options = {"epochs": 4, "validation": True, "batch_size": GLOBAL_BATCH // 2, **options}
    return store, fits.write_job(store, payload, **options)


def test_a_users_exception_is_everybodys_within_seconds(tmp_path: Path) -> None:
    """Case 109."""
    _, job = failing(tmp_path, "raise", after=11)
    with pytest.raises(WorkerError, match="seventeen divided by nothing") as caught:
        spark_ring.run(fits.what_it_raised, (job, str(tmp_path)), np=2)
    assert caught.value.rank == 1
    assert caught.value.error_type == "ZeroDivisionError"
    assert "in forward" in caught.value.traceback
    told = (tmp_path / "rank-0.txt").read_text()
    assert re.match(
        r"AbortedError: .*rank 1 raised ZeroDivisionError: seventeen divided by nothing", told, re.S
    ), told
    assert float(told.split()[-2]) < 10


def test_a_nan_loss_names_epoch_step_and_rank_on_every_rank(tmp_path: Path) -> None:
    _, job = failing(tmp_path, "nan", after=11)
    with pytest.raises(WorkerError, match="loss is nan in epoch 2, step 4 of 8, on rank 1"):
        spark_ring.run(fits.what_it_raised, (job, str(tmp_path)), np=2)
    assert "loss is nan in epoch 2, step 4 of 8, on rank 1" in (tmp_path / "rank-0.txt").read_text()


def undisturbed(job: TrainJob) -> Any:
    """In each rank: run the job; it does not fail, because it failed before."""
    return fits.train(job)


@pytest.mark.parametrize("size_afterwards", [2, 1])
def test_a_killed_worker_costs_at_most_its_epoch(tmp_path: Path, size_afterwards: int) -> None:
    """Kill -9 in the middle of epoch 3. The survivor hears of it in seconds, a new attempt goes on after
    epoch 2, also with another number of workers, and with the same number its weights equal those of a
    run that nothing happened to."""
    store, job = failing(tmp_path, "kill", after=19)
    with LocalJob(fits.what_it_raised, (job, str(tmp_path)), np=2) as launched:
        outcomes = launched.wait(timeout=100)
    assert [outcome.failure is None for outcome in outcomes] == [False, False]
    told = (tmp_path / "rank-0.txt").read_text()
    assert re.match(r"PeerLostError: .*rank 1", told, re.S), told
    assert store.list("runs/r/checkpoints") == ["epoch-00001", "epoch-00002"]

    results = spark_ring.run(undisturbed, (job,), np=size_afterwards)
    assert [result.resumed_epoch for result in results] == [2] * size_afterwards
    assert len(results[0].history) == 4
    assert [r["epoch"] for r in ProgressReader(store, "r").poll().records] == [1, 2, 3, 4]
    if size_afterwards == 2:
        whole = spark_ring.run(undisturbed, (replace(job, run_id="whole"),), np=2)
        assert store.read_bytes(results[0].weights) == store.read_bytes(whole[0].weights)
        assert [r["val_loss"] for r in results[0].history] == [r["val_loss"] for r in whole[0].history]


def test_a_launch_that_was_killed_is_reported(tmp_path: Path) -> None:
    _, job = failing(tmp_path, "kill", after=3)
    with pytest.raises(LaunchError, match="rank 1"):
        spark_ring.run(fits.what_it_raised, (job, str(tmp_path)), np=2)
