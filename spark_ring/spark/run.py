"""``spark_ring.spark.run``: an ordinary training function on Spark's workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession

from spark_ring.spark import barrier
from spark_ring.spark.picklable import check_picklable
from spark_ring.spark.slots import check_slots

__all__ = ["run"]


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    numTrainWorkers: int = 1,
    spark: SparkSession | None = None,
) -> list[Any]:
    """Call ``fn(*args, **kwargs)`` on several Spark workers at once, joined by a ring.

    In ``fn`` the world is initialised: ``spark_ring.rank()``, ``spark_ring.torch.allreduce`` and the others
    answer. What workers print has the prefix ``[rank]`` and is in the executors' logs.

    Args:
        fn: the function; it, its arguments and its result travel pickled by cloudpickle, through Spark.
        args: positional arguments, the same for every rank.
        kwargs: keyword arguments, the same for every rank.
        numTrainWorkers: number of ranks; each takes one Spark task slot.
        spark: the session; ``None`` takes the one of ``SparkSession.builder.getOrCreate()``.

    Returns:
        One result per rank, in rank order.

    Raises:
        WorkerError: ``fn`` raised in a rank; with its rank and traceback.
        PreflightError: too few task slots, or something cannot be pickled.
        LaunchError: workers were lost more often than Spark tries again. ``fn`` is then called again from its
            beginning each time.
    """
    session = spark or SparkSession.builder.getOrCreate()
    check_picklable({"fn": fn, "args": tuple(args), "kwargs": dict(kwargs or {})})
    check_slots(session, numTrainWorkers)
    return barrier.call(session, fn, args, kwargs or {}, numTrainWorkers)
