"""Run a Spark job that an interrupt can end.

On a classic session a job that is waited for blocks its thread in a read from the JVM. Ctrl-C would arrive in
the middle of that read, and asking the JVM to cancel over the same connection cannot work. So the main thread
hands the job to another thread, with all its job groups and tags, and waits where a signal does no harm.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_ring.spark.session import is_connect

__all__ = ["collect"]

_ENDING_SECONDS = 10.0
_LOOK_SECONDS = 0.2


def collect(spark: SparkSession, frame: DataFrame) -> list[Any]:
    """Return the rows of a DataFrame; cancel its job if an interrupt (not an error) ends the wait."""
    tag = f"spark_ring-{uuid.uuid4().hex}"
    add, remove, cancel = _tagging(spark)
    add(tag)
    try:
        if is_connect(spark) or threading.current_thread() is not threading.main_thread():
            return list(frame.collect())
        return _collect_in_thread(frame, lambda: cancel(tag))
    except BaseException as error:
        if not isinstance(error, Exception):
            with suppress(Exception):
                cancel(tag)
        raise
    finally:
        with suppress(Exception):
            remove(tag)


def _collect_in_thread(frame: DataFrame, cancel: Callable[[], Any]) -> list[Any]:
    from pyspark import InheritableThread

    rows: list[Any] = []
    failures: list[Exception] = []

    def work() -> None:
        try:
            rows.extend(frame.collect())
        except Exception as error:
            failures.append(error)

    thread = InheritableThread(target=work, name="spark_ring job", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_LOOK_SECONDS)
    except BaseException:
        with suppress(Exception):
            cancel()
        thread.join(_ENDING_SECONDS)
        raise
    if failures:
        raise failures[0]
    return rows


def _tagging(spark: SparkSession) -> tuple[Callable[[str], Any], ...]:
    """Return how this session adds, removes and cancels by a tag."""
    if is_connect(spark):
        return spark.addTag, spark.removeTag, spark.interruptTag
    context = spark.sparkContext
    return context.addJobTag, context.removeJobTag, context.cancelJobsWithTag
