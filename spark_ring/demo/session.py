"""The demo's Spark session: this machine, one slot per worker."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from spark_ring.config import environment

__all__ = ["start_session"]


def start_session(workers: int) -> SparkSession:
    """Start Spark with at least ``workers`` slots and the Python that runs this."""
    slots = max(workers, os.cpu_count() or 1)
    builder = (
        SparkSession.builder.master(f"local[{slots}]")
        .appName("spark_ring demo")
        .config("spark.driver.memory", "4g")
        .config("spark.pyspark.python", sys.executable)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(slots))
    )
    with environment({"PYSPARK_PYTHON": sys.executable}):
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
