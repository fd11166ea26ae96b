"""Are there enough task slots? Asked before anything is started.

Spark itself would wait ten minutes for slots that never come, and a barrier stage needs all of them at once.
On a classic session Spark tells how many tasks with this resource profile can run at a time, GPUs included;
on Spark Connect nothing tells, so only what the settings show is checked.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from spark_ring.errors import PreflightError
from spark_ring.spark.session import is_connect

__all__ = ["Slots", "check_slots"]

# Executors of a cluster that has just started may still be on their way.
_REGISTER_SECONDS = 20.0
_POLL_SECONDS = 0.25


@dataclass(frozen=True)
class Slots:
    """What is known about a cluster's room.

    Attributes:
        master: Spark's master URL, or ``""``.
        total: tasks that can run at the same time, or ``None`` when nobody tells.
        growing: whether more executors may still register.
        settings: the settings that decide it, as far as they are set.
    """

    master: str
    total: int | None
    growing: bool
    settings: dict[str, str]


def check_slots(spark: SparkSession, workers: int, *, wait: float = _REGISTER_SECONDS) -> None:
    """Raise if ``workers`` tasks cannot run at the same time.

    Args:
        spark: the session.
        workers: number of workers.
        wait: seconds to allow for executors that may still register.

    Raises:
        PreflightError: too few slots, or dynamic allocation is on; the settings to change are named.
    """
    slots = _slots(spark)
    if slots.settings.get("spark.dynamicAllocation.enabled") == "true" and not _is_local(slots.master):
        raise PreflightError(
            "spark.dynamicAllocation.enabled is true, and Spark runs no barrier stage with it: set it to "
            "false, and spark.executor.instances to the number of executors"
        )
    deadline = time.monotonic() + wait
    while slots.total is not None and slots.total < workers:
        if not slots.growing or time.monotonic() >= deadline:
            raise PreflightError(_too_few(slots, workers))
        time.sleep(_POLL_SECONDS)
        slots = _slots(spark)


def _slots(spark: SparkSession) -> Slots:
    names = (
        "spark.task.cpus",
        "spark.executor.instances",
        "spark.executor.cores",
        "spark.cores.max",
        "spark.dynamicAllocation.enabled",
        "spark.task.resource.gpu.amount",
        "spark.executor.resource.gpu.amount",
    )
    found = {name: _setting(spark, name) for name in (*names, "spark.master")}
    master = found.pop("spark.master") or ""
    settings = {name: value for name, value in found.items() if value}
    local = _is_local(master)
    total = None if is_connect(spark) else _concurrent_tasks(spark.sparkContext)
    if total is None:
        total = _local_slots(master, settings) if local else _configured_slots(settings)
    return Slots(master, total, growing=not local and not is_connect(spark), settings=settings)


def _setting(spark: SparkSession, name: str) -> str | None:
    try:
        value = spark.conf.get(name, None)
    except Exception:  # Connect servers may refuse to tell
        return None
    return None if value is None else str(value)


def _is_local(master: str) -> bool:
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def _local_slots(master: str, settings: dict[str, str]) -> int | None:
    """Return the slots of ``local``, ``local[4]``, ``local[4,2]``; nobody tells of ``local[*]``."""
    inside = re.fullmatch(r"local(?:\[\s*([0-9]+|\*)\s*(?:,.*)?\])?", master)
    if inside is None or inside[1] == "*":
        return None
    return int(inside[1] or 1) // int(settings.get("spark.task.cpus", 1))


def _configured_slots(settings: dict[str, str]) -> int | None:
    instances, cores = settings.get("spark.executor.instances"), settings.get("spark.executor.cores")
    if instances is None or cores is None:
        return None
    return int(instances) * (int(cores) // int(settings.get("spark.task.cpus", 1)))


def _concurrent_tasks(context: Any) -> int | None:
    """Ask Spark how many tasks run at a time, by the question that its own check for barriers asks."""
    try:
        scala = context._jsc.sc()
        profile = scala.resourceProfileManager().defaultResourceProfile()
        return int(scala.maxNumConcurrentTasks(profile))
    except Exception:  # not part of Spark's public interface
        return None


def _too_few(slots: Slots, workers: int) -> str:
    settings = {"spark.task.cpus": "1", **slots.settings}
    shown = ", ".join(f"{name}={value}" for name, value in settings.items())
    more = f"start Spark with master local[{workers}] or more" if _is_local(slots.master) else "add executors"
    return (
        f"numTrainWorkers={workers} needs {workers} task slots at the same time, and this Spark has "
        f"{slots.total} ({slots.master or 'unknown master'}; {shown}). "
        f"Use numTrainWorkers={max(1, slots.total or 1)}, or {more}"
    )
