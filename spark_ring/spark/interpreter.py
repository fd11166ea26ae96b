"""Can the Python that Spark's workers run do the work? Asked before anything is started.

The commonest trap on one machine: the driver runs the Python of a virtual environment, and Spark starts the
``python3`` that it finds first on the path. On a cluster the executors' Python cannot be asked from here;
what is missing there is told by the worker task.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from pyspark.sql import SparkSession

from spark_ring.errors import PreflightError
from spark_ring.spark.session import is_connect

__all__ = ["check_interpreter"]

_NEEDED = "import cloudpickle, numpy, pyarrow, spark_ring._core"
_SECONDS = 60.0


def check_interpreter(spark: SparkSession) -> None:
    """Raise if Spark runs on this machine with another Python than the driver's, which cannot do the work.

    Args:
        spark: the session. One of Spark Connect, or one with executors elsewhere, is not asked.

    Raises:
        PreflightError: that Python does not exist, or lacks a package; says what to set.
    """
    if is_connect(spark) or not spark.sparkContext.master.startswith("local"):
        return
    wanted = str(spark.sparkContext.pythonExec)
    found = shutil.which(wanted)
    if found is None:
        raise PreflightError(f"Spark's workers are to run {wanted!r}, which is not there. {_advice()}")
    # A virtual environment's Python is a link to another one, so links are not followed.
    if os.path.abspath(found) == os.path.abspath(sys.executable):
        return
    try:
        asked = subprocess.run(
            [found, "-c", _NEEDED], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PreflightError(
            f"Spark's workers are to run {found}, which fails: {error}. {_advice()}"
        ) from error
    if asked.returncode != 0:
        reason = (asked.stderr.strip().splitlines() or [f"exit status {asked.returncode}"])[-1]
        raise PreflightError(f"Spark's workers run {found}, which cannot do the work: {reason}. {_advice()}")


def _advice() -> str:
    return (
        f"The driver runs {sys.executable}: set the environment variable PYSPARK_PYTHON={sys.executable} "
        "before the session is made"
    )
