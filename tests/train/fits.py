"""Small real fits: a Parquet dataset, a payload and a job, and what each rank does with them.

The functions here run in worker processes, so they live in a module and take only plain arguments.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.nn import functional

from spark_ring import world
from spark_ring.data.manifest import Manifest
from spark_ring.data.schema import Contract, SourceColumn, TensorSpec
from spark_ring.data.store import Store
from spark_ring.torch.functions import allgather_object
from spark_ring.train.job import TrainJob, TrainOptions, WorkerResult
from spark_ring.train.worker import run_worker

FEATURES = 5


def contract(weighted: bool = False) -> Contract:
    """Five features, one label, perhaps a row weight."""
    return Contract(
        inputs=(TensorSpec("x0", (SourceColumn("features", "vector", FEATURES),), "float32", (FEATURES,)),),
        labels=(TensorSpec("y0", (SourceColumn("target", "double"),), "float32"),),
        weight=TensorSpec("w", (SourceColumn("importance", "double"),), "float32") if weighted else None,
    )


def data(rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    """A noisy nonlinear target; half of the rows weigh nothing."""
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((rows, FEATURES)).astype(np.float32)
    y = (x[:, 0] - 2 * x[:, 1] + np.sin(x[:, 2]) + 0.1 * generator.standard_normal(rows)).astype(np.float32)
    w = np.where(np.arange(rows) % 2 == 0, 0.0, 1.0 + np.arange(rows) % 3).astype(np.float32)
    return {"x0": x, "y0": y, "w": w}


def write_dataset(
    store: Store, rows: int, val_rows: int = 0, *, group: int = 37, weighted: bool = False
) -> None:
    """Write a dataset of awkward row groups, and its manifest."""
    splits = ["train"]
    _write_split(store, "train", data(rows, seed=1), group)
    if val_rows:
        _write_split(store, "val", data(val_rows, seed=2), group)
        splits.append("val")
    Manifest.scan(store, "datasets/d", contract(weighted), splits).write(store)


def _write_split(store: Store, split: str, arrays: dict[str, np.ndarray], group: int) -> None:
    flat = pa.array(arrays["x0"].ravel())
    table = pa.table(
        {
            "x0": pa.FixedSizeListArray.from_arrays(flat, FEATURES),
            "y0": arrays["y0"],
            "w": arrays["w"],
        }
    )
    folder = store.path(f"datasets/d/{split}")
    os.makedirs(folder, exist_ok=True)
    pq.write_table(table, f"{folder}/part-0.parquet", row_group_size=group)


def write_job(store: Store, payload: dict[str, Any], *, weighted: bool = False, **options: Any) -> TrainJob:
    """Write the payload, by value, and return a job over the dataset."""
    pickled = cloudpickle.dumps(payload)
    store.write_bytes("runs/r/payload.pkl", pickled)
    return TrainJob(
        run_id="r",
        store=store.url,
        dataset="datasets/d",
        contract=contract(weighted),
        adapter="spark_ring.torch.adapter:TorchAdapter",
        payload="runs/r/payload.pkl",
        payload_sha256=hashlib.sha256(pickled).hexdigest(),
        options=TrainOptions(**{"threads": 1, "progress_seconds": 0.0, **options}),
    )


def net(dropout: float = 0.0, norm: bool = False) -> torch.nn.Module:
    """A small network."""
    layers = [torch.nn.Linear(FEATURES, 16), torch.nn.ReLU()]
    layers += [torch.nn.BatchNorm1d(16)] if norm else []
    layers += [torch.nn.Dropout(dropout)] if dropout else []
    return torch.nn.Sequential(*layers, torch.nn.Linear(16, 1))


def sgd(params: Any) -> torch.optim.Optimizer:
    """SGD with momentum."""
    return torch.optim.SGD(params, lr=0.05, momentum=0.9)


def adam(params: Any) -> torch.optim.Optimizer:
    """AdamW."""
    return torch.optim.AdamW(params, lr=0.01)


def mae(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """Mean absolute error."""
    return (output - label).abs().mean()


def payload(**changes: Any) -> dict[str, Any]:
    """A payload that works."""
    return {"model": net, "loss": functional.mse_loss, "optimizer": sgd, **changes}


def train(job: TrainJob) -> WorkerResult:
    """Run the job as this rank, and check what must hold on every rank."""
    result = run_worker(job, world.current())
    of_all = allgather_object(
        {"history": result.history, "best": result.best_epoch, "weights": result.weights}
    )
    assert all(theirs == of_all[0] for theirs in of_all), "ranks report different results"
    return result


def step_losses(job: TrainJob) -> dict[str, Any]:
    """Run the job; return the global loss of every step, a digest of the final weights, and the result."""
    from spark_ring.torch.adapter import TorchAdapter

    losses: list[float] = []
    digests: list[str] = []
    original_step, original_close = TorchAdapter.train_step, TorchAdapter.close

    def train_step(self: TorchAdapter, batch: Any) -> Any:
        sums = original_step(self, batch)
        total, weight = world.allreduce(np.array(sums.values["loss"], np.float64))
        losses.append(float(total / weight))
        return sums

    def close(self: TorchAdapter) -> None:
        state = b"".join(t.numpy().tobytes() for t in self._module.state_dict().values())
        digests.append(hashlib.sha256(state).hexdigest())
        original_close(self)

    TorchAdapter.train_step, TorchAdapter.close = train_step, close  # type: ignore[method-assign]
    try:
        result = train(job)
    finally:
        TorchAdapter.train_step, TorchAdapter.close = original_step, original_close  # type: ignore[method-assign]
    return {"losses": losses, "digest": digests[0], "result": result}


class Fails(torch.nn.Module):
    """Raises, kills its process or gives NaN, in one rank after some forward passes in training.

    It does so only while the file ``once`` is not there, and makes it: a second attempt goes well.
    """

    def __init__(self, rank: int, after: int, how: str, once: str) -> None:
        super().__init__()
        self.inner = net(dropout=0.2, norm=True)
        self.rank, self.after, self.how, self.once = rank, after, how, once
        self.passes = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += self.training
        if self.passes <= self.after or world.rank() != self.rank or os.path.exists(self.once):
            return self.inner(x)
        open(self.once, "w").close()
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "nan":
            return self.inner(x) * float("nan")
        raise ZeroDivisionError("seventeen divided by nothing")


def what_it_raised(job: TrainJob, folder: str) -> None:
    """Run a job that fails; leave a note of what this rank was told, then fail as it did."""
    began = time.monotonic()
    try:
        run_worker(job, world.current())
    except Exception as error:
        seconds = time.monotonic() - began
        with open(os.path.join(folder, f"rank-{world.rank()}.txt"), "w") as note:
            note.write(f"{type(error).__name__}: {error} after {seconds:.1f} s")
        raise
