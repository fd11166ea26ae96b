"""The barrier stage, seen from the driver: start n workers at once, wait, and make sense of their answers.

``mapInArrow(..., barrier=True)`` runs all partitions at the same time or not at all, on classic sessions and
on Spark Connect. Its output goes through a shuffle to one partition, for one reason: Spark gives up when a
barrier *result* stage loses a task, but runs a barrier *shuffle-map* stage again, up to
``spark.stage.maxConsecutiveAttempts`` times. With checkpoints in the store a lost executor then costs the
work since the last checkpoint.

The function that Spark ships is a few lines, pickled by value; all it does is to import
:mod:`.worker_task` where it runs, so a missing installation is an error that says so. The job's secret is
made here for this one stage and travels inside that function, over Spark's own channel.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pyspark.sql import SparkSession

from spark_ring import errors
from spark_ring.config import Settings, settings
from spark_ring.errors import LaunchError, SparkRingError, WorkerError
from spark_ring.spark.jobs import collect
from spark_ring.spark.worker_task import DONE, ERROR, FOLLOWED, REFUSED, job_to
from spark_ring.train.job import TrainJob, WorkerResult

__all__ = ["call", "train"]

# What belongs to one host, or to one launch, stays there.
_NOT_SHARED = ("rank", "size", "rendezvous", "secret", "address", "host_id", "trusted_artifacts")


def train(spark: SparkSession, job: TrainJob, size: int, mark: str) -> list[WorkerResult]:
    """Train as ``size`` ranks; blocks until the last has answered.

    Args:
        spark: the session, classic or Connect.
        job: what to train.
        size: number of ranks; each is one task.
        mark: token of a mark in the job's store, for workers to check that they see the same storage.

    Returns:
        One result per rank. Only rank 0's has the history.

    Raises:
        WorkerError: the user's code raised in a worker; once, with rank and traceback.
        StoreError: a worker does not see the driver's store.
        LaunchError: workers could not run, or were lost more often than Spark tries again.
    """
    values = _launch(spark, {"kind": "train", "job": job_to(job), "mark": mark}, size)
    return [WorkerResult(**value) for value in values]


def call(
    spark: SparkSession, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], size: int
) -> list[Any]:
    """Call a function on ``size`` ranks; return its results in rank order. Errors as in :func:`train`."""
    import cloudpickle

    function = base64.b64encode(cloudpickle.dumps((fn, tuple(args), dict(kwargs)))).decode()
    values = _launch(spark, {"kind": "call", "function": function, "mark": ""}, size)
    return [cloudpickle.loads(base64.b64decode(value)) for value in values]


def _launch(spark: SparkSession, spec: dict[str, Any], size: int) -> list[Any]:
    """Run one barrier stage; return the ranks' values."""
    spec |= {
        "size": size,
        "secret": secrets.token_hex(32),
        "driver": spark.conf.get("spark.driver.host", None) or "",
        "settings": _shared_settings(),
    }
    stage = spark.range(0, size, 1, size).mapInArrow(_task(spec), "row string", barrier=True)
    try:
        rows = [json.loads(row["row"]) for row in collect(spark, stage.repartition(1))]
    except Exception as error:
        raise _stage_failed(error, size) from error
    return _values(rows, size)


def _task(spec: dict[str, Any]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return the function of one task. It needs nothing of this module: cloudpickle sends it by value."""

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        import socket
        import sys

        import pyarrow
        from pyspark import BarrierTaskContext

        for _ in batches:
            pass
        try:
            from spark_ring.spark.worker_task import answer
        except ImportError as error:
            raise ImportError(
                f"spark_ring cannot be imported on host {socket.gethostname()} with {sys.executable}: "
                f"{error}. Install the driver's version of spark_ring on every executor"
            ) from None
        row = answer(spec, BarrierTaskContext.get())
        yield pyarrow.RecordBatch.from_arrays([pyarrow.array([row], pyarrow.string())], ["row"])

    return task


def _shared_settings() -> dict[str, Any]:
    """Return the driver's settings that differ from the defaults, for the workers."""
    defaults = asdict(Settings())
    return {
        name: value
        for name, value in asdict(settings()).items()
        if value != defaults[name] and name not in _NOT_SHARED
    }


def _values(rows: list[dict[str, Any]], size: int) -> list[Any]:
    """Return the ranks' values in rank order, or raise the failure that came first."""
    by_rank = {int(row["rank"]): row for row in rows}
    if sorted(by_rank) != list(range(size)) or len(rows) != size:
        raise LaunchError(f"expected one answer of each of {size} ranks; got those of {sorted(by_rank)}")
    ordered = [by_rank[rank] for rank in range(size)]
    for status in (REFUSED, ERROR, FOLLOWED):
        for row in ordered:
            if row["status"] == status and "type" in row:
                raise _failure(row, size)
    if any(row["status"] != DONE for row in ordered):
        raise LaunchError(f"workers stopped without a reason: {ordered}")
    return [row["value"] for row in ordered]


def _failure(row: Mapping[str, Any], size: int) -> SparkRingError:
    """Return the error that a row tells of."""
    where = f"rank {row['rank']} of {size} on host {row['host']}"
    kind = getattr(errors, str(row["type"]), None)
    if row["status"] == REFUSED:
        if isinstance(kind, type) and issubclass(kind, (errors.StoreError, errors.ConfigError)):
            return kind(f"{where}: {row['message']}")
        return LaunchError(f"{where} cannot work: {row['message']}")
    if row["status"] == FOLLOWED:
        return LaunchError(f"{where} was stopped: {row['message']}")
    return WorkerError(
        f"{where} raised {row['type']}: {row['message']}\n\n"
        f"Traceback of rank {row['rank']}:\n{row['traceback']}",
        rank=int(row["rank"]),
        error_type=str(row["type"]),
        error_message=str(row["message"]),
        traceback=str(row["traceback"]),
    )


def _stage_failed(error: Exception, size: int) -> LaunchError:
    text, told = str(error), ("cannot be imported", "No module named")
    if "SPARK-24819" in text:
        reason = f"Spark has fewer than {size} task slots: make the cluster larger or numTrainWorkers smaller"
    elif "SPARK-24942" in text:
        reason = "barrier stages need spark.dynamicAllocation.enabled=false"
    elif any(part in text for part in told):
        reason = next(line.strip() for line in text.splitlines() if any(part in line for part in told))
    else:
        reason = f"workers were lost, or Spark could not run them: {text[:3000]}"
    return LaunchError(f"the barrier stage of {size} workers failed: {reason}")
