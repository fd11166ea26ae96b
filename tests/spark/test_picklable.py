"""The user's objects are pickled on the driver first."""

from __future__ import annotations

import functools
import threading

import pytest

from spark_ring.errors import PreflightError
from spark_ring.spark.picklable import check_picklable

LOCK = threading.Lock()


def uses_a_global(output, label):
    with LOCK:
        return output - label


def test_what_can_be_pickled_passes():
    check_picklable({"loss": lambda output, label: (output - label) ** 2, "metrics": {"a": len}, "x": None})


def closure():
    lock = threading.Lock()
    return lambda output, label: lock and output


class Holder:
    def __init__(self):
        self.inner = {"handles": [LOCK]}

    def loss(self, output, label):
        return output


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (closure(), "loss → variable 'lock'"),
        (functools.partial(max, LOCK), "loss → argument 0"),
        (functools.partial(max, key=LOCK), "loss → argument 'key'"),
        (Holder(), r"loss.inner\['handles'\]\[0\]"),
        (Holder().loss, r"loss → its object Holder.inner\['handles'\]\[0\]"),
        ([len, LOCK], r"loss\[1\]"),
        (lambda output, label=LOCK: output, "loss → default 0"),
    ],
)
def test_the_error_names_the_param_and_the_object(value, where):
    """Case 142: a loss that closes over a lock."""
    with pytest.raises(PreflightError, match=rf"Param loss cannot be sent.*{where} is a _thread.lock"):
        check_picklable({"model": len, "loss": value})


def test_a_module_level_lock_is_found_when_the_function_travels_by_value():
    """Case 142: as in a notebook, whose functions are pickled with their globals."""
    import sys

    import cloudpickle

    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    try:
        with pytest.raises(PreflightError, match=r"loss → global 'LOCK' is a _thread.lock"):
            check_picklable({"loss": uses_a_global})
    finally:
        cloudpickle.unregister_pickle_by_value(module)


@pytest.mark.spark
def test_a_spark_session_in_a_closure_is_named(spark):
    """Case 142: the session, or a DataFrame."""
    with pytest.raises(PreflightError, match=r"metrics.*variable 'spark' is a pyspark.sql.*SparkSession"):
        check_picklable({"metrics": {"rows": lambda output, label: spark.range(1).count()}})
