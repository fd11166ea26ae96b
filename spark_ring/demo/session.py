"""The demo's Spark session: this machine, one slot per worker."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from spark_ring.config import environment

__all__ = ["start_session"]


# Spark starts with pages of warnings that mean nothing on one machine; errors are still shown.
_LOGGING = """
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
logger.netlib.name = dev.ludovic.netlib
logger.netlib.level = off
"""


def start_session(workers: int) -> SparkSession:
    """Start Spark with at least ``workers`` slots and the Python that runs this."""
    logging = Path(tempfile.mkdtemp(prefix="spark_ring-demo-")) / "log4j2.properties"
    logging.write_text(_LOGGING)
    slots = max(workers, os.cpu_count() or 1)
    builder = (
        SparkSession.builder.master(f"local[{slots}]")
        .appName("spark_ring demo")
        .config("spark.driver.memory", "4g")
        .config("spark.pyspark.python", sys.executable)
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={logging.as_uri()}")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(slots))
    )
    with environment({"PYSPARK_PYTHON": sys.executable}):
        return builder.getOrCreate()
