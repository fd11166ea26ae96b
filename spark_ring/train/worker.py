"""What one worker does: from a job and a communicator to a result.

The user's objects arrive as one cloudpickled file in the store. Its digest travels in the job, over Spark's
own channel, and is checked before a byte is unpickled.

A failure here is everybody's at once: the communicator is aborted with the rank, the exception's type and its
message, so that other ranks raise that reason instead of waiting for a rank that will not come.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import socket
import time
from contextlib import ExitStack
from dataclasses import asdict
from importlib import import_module
from typing import Any

import cloudpickle

from spark_ring import world
from spark_ring.communicator import Communicator
from spark_ring.data.manifest import Manifest
from spark_ring.data.parquet import ParquetReader
from spark_ring.data.store import Store
from spark_ring.errors import CommunicatorError, ConfigError, DataError, StoreError
from spark_ring.train.adapter import Adapter
from spark_ring.train.checkpoint import CheckpointFolder
from spark_ring.train.job import TrainJob, WorkerResult
from spark_ring.train.loop import TrainingLoop
from spark_ring.train.progress import ProgressWriter

__all__ = ["fingerprint", "load_payload", "run_worker"]

log = logging.getLogger(__name__)

# Options that may change between two attempts without making the earlier attempt's checkpoint another job's.
_NOT_IDENTITY = ("epochs", "patience", "min_delta", "threads", "progress_seconds")


def run_worker(job: TrainJob, communicator: Communicator) -> WorkerResult:
    """Train as one rank. Collective: every rank of the communicator calls it with the same job.

    While it runs, ``communicator`` is the process's default one, so the verbs (``spark_ring.rank()``) answer
    inside the user's model, loss and metrics.

    Raises:
        StoreError: the payload is missing or is not the one the job names.
        CommunicatorError: another rank failed; the message has its reason.
        Exception: whatever the user's code raised on this rank.
    """
    with world.use(communicator), ExitStack() as stack:
        try:
            return _train(job, communicator, stack)
        except CommunicatorError:  # what another rank caused, the others hear from the ring itself
            raise
        except BaseException as error:  # before anything is closed: the others wait for this rank
            communicator.abort(f"rank {communicator.rank} raised {type(error).__name__}: {error}")
            raise


def load_payload(store: Store, path: str, sha256: str) -> dict[str, Any]:
    """Read the user's objects, after checking that they are those the driver wrote.

    Raises:
        StoreError: the file's digest is not ``sha256``.
    """
    data = store.read_bytes(path)
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise StoreError(
            f"the payload {path} in {store.url} has SHA-256 {found}; the job says {sha256}. It was not "
            "unpickled. Another fit wrote to the same run folder, or the file was changed."
        )
    try:
        payload = cloudpickle.loads(data)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the model, loss, optimizer or metrics need the module {error.name!r}, which cannot be imported "
            f"on host {socket.gethostname()}. Install it on every executor, or ship it with "
            "spark.addArtifact(path, pyfile=True)"
        ) from error
    if not isinstance(payload, dict):
        raise StoreError(f"the payload {path} holds a {type(payload).__name__}, not a dict")
    return payload


def fingerprint(job: TrainJob) -> str:
    """Return the identity of a job: equal for two attempts at it, different for another fit."""
    options = {name: value for name, value in asdict(job.options).items() if name not in _NOT_IDENTITY}
    identity = [job.payload_sha256, job.dataset, job.adapter, job.contract.to_json(), options]
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def _train(job: TrainJob, communicator: Communicator, stack: ExitStack) -> WorkerResult:
    began = time.perf_counter()
    store = Store(job.store)
    payload = load_payload(store, job.payload, job.payload_sha256)
    manifest = Manifest.read(store, job.dataset)
    if manifest.rows("train") == 0:
        raise DataError(f"dataset {job.dataset} in {store.url} has no training rows")
    adapter = _make_adapter(job.adapter)
    stack.callback(adapter.close)
    adapter.setup(payload, job.contract, job.options, communicator)
    train = _reader(job, store, manifest, "train", communicator, stack)
    validation = None
    if job.options.validation and manifest.rows("val") > 0:
        validation = _reader(job, store, manifest, "val", communicator, stack)
    folder = CheckpointFolder(store, job.run_id, fingerprint(job), adapter.weights_suffix)
    progress = stack.enter_context(
        ProgressWriter(store, job.run_id, job.options.progress_seconds, active=communicator.rank == 0)
    )
    ready = time.perf_counter()
    loop = TrainingLoop(adapter, train, validation, job.options, communicator, folder, progress)
    outcome = loop.run()
    facts = _facts(adapter, communicator, outcome.history[outcome.resumed_epoch :])
    facts["seconds"] |= {"setup": ready - began, "total": time.perf_counter() - began}
    return WorkerResult(
        rank=communicator.rank,
        rows=outcome.rows,
        history=outcome.history,
        best_epoch=outcome.best_epoch,
        weights=outcome.weights,
        resumed_epoch=outcome.resumed_epoch,
        facts=facts,
    )


def _make_adapter(name: str) -> Adapter:
    module, _, cls = name.partition(":")
    try:
        made: Adapter = getattr(import_module(module), cls)()
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"the adapter {name!r} cannot be imported on host {socket.gethostname()}: {error}. Install the "
            "framework and the same version of spark_ring on every executor."
        ) from error
    return made


def _reader(
    job: TrainJob, store: Store, manifest: Manifest, split: str, communicator: Communicator, stack: ExitStack
) -> ParquetReader:
    options = job.options
    reader = ParquetReader(
        store,
        job.dataset,
        manifest,
        job.contract,
        split=split,
        rank=communicator.rank,
        size=communicator.size,
        batch_size=options.batch_size,
        shuffle=options.shuffle and split == "train",
        contiguous=split != "train",
        seed=options.seed,
        lanes=options.lanes,
    )
    stack.callback(reader.close)
    return reader


def _facts(adapter: Adapter, communicator: Communicator, records: list[dict[str, Any]]) -> dict[str, Any]:
    """Collect what a report wants; seconds are sums over the epochs of this attempt."""
    phases = {
        "read": "data_wait",
        "compute": "compute",
        "communicate": "communication",
        "validate": "validation",
    }
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "local_rank": communicator.local_rank,
        "transport": communicator.transport,
        "seconds": {
            phase: sum(record[f"{key}_seconds"] for record in records) for phase, key in phases.items()
        },
        **adapter.facts(),
    }
