"""Enough task slots, known before anything starts."""

from __future__ import annotations

import time

import pytest

from spark_ring.errors import PreflightError
from spark_ring.spark.slots import check_slots


class Conf:
    def __init__(self, values):
        self.values = values

    def get(self, name, default=None):
        return self.values.get(name, default)


def connect_session(**values):
    """A session that only knows settings, as Spark Connect's."""
    session = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    session.conf = Conf({name.replace("_", "."): value for name, value in values.items()})
    return session


@pytest.mark.spark
def test_too_many_workers_are_refused_in_seconds(spark):
    """Case 122: both numbers and the setting per task are named."""
    began = time.monotonic()
    check_slots(spark, 2)
    with pytest.raises(PreflightError, match="needs 8 task slots") as caught:
        check_slots(spark, 8)
    assert time.monotonic() - began < 5
    for part in ("has 2", "local[2]", "spark.task.cpus=1", "numTrainWorkers=2", "local[8]"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("master", "cpus", "fit"),
    [("local", "1", 1), ("local[4]", "1", 4), ("local[4,2]", "2", 2), ("local[ 3 ]", "1", 3)],
)
def test_a_local_master_tells_its_slots(master, cpus, fit):
    session = connect_session(spark_master=master, spark_task_cpus=cpus)
    check_slots(session, fit)
    with pytest.raises(PreflightError, match=f"has {fit} "):
        check_slots(session, fit + 1)


def test_what_nobody_tells_is_not_refused():
    check_slots(connect_session(), 64)
    check_slots(connect_session(spark_master="local[*]"), 64)
    check_slots(connect_session(spark_master="yarn", spark_executor_instances="2"), 64)


def test_configured_executors_are_counted():
    """Case 124: cores per task and executors from the settings."""
    session = connect_session(
        spark_master="k8s://x", spark_executor_instances="2", spark_executor_cores="3", spark_task_cpus="2"
    )
    check_slots(session, 2)
    with pytest.raises(PreflightError, match=r"spark\.executor\.cores=3.*add executors"):
        check_slots(session, 3)


def test_dynamic_allocation_is_refused_by_its_settings_name():
    """Case 121."""
    session = connect_session(spark_master="yarn", spark_dynamicAllocation_enabled="true")
    with pytest.raises(PreflightError, match=r"spark\.dynamicAllocation\.enabled is true"):
        check_slots(session, 2)
    check_slots(connect_session(spark_master="local[2]", spark_dynamicAllocation_enabled="true"), 2)
