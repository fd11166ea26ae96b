"""What every test gets: a deadline (pytest-timeout, see pyproject.toml), a check for leaks, a Spark session.

A test that leaves a child process, a thread of ours, or a shared-memory segment behind fails. Tests of the
ring (``tests/collectives``, ``tests/faults``) must also leave no file descriptor and no thread of any kind;
see ``no_leaks_at_all``.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

SETTLE_SECONDS = 3.0  # what ends by itself after a test has this long


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """One Spark session, ``local[2]``, for every test that asks; started by the first."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .appName("spark_ring tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.execution.arrow.pyspark.enabled", "true")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fail a test that leaves a child process, a ``spark_ring`` thread or a shared-memory segment behind."""
    before = {"child processes": _children(), "shared-memory segments": _segments()}
    yield
    _check_settled(
        {
            "child processes": lambda: _children() - before["child processes"],
            "shared-memory segments": lambda: _segments() - before["shared-memory segments"],
            "threads": lambda: {name for name in _threads() if name.startswith("spark_ring")},
        }
    )


@pytest.fixture
def no_leaks_at_all() -> Iterator[None]:
    """Fail a test that leaves any thread or file descriptor behind, besides what ``no_leaks`` looks for."""
    threads, descriptors = _threads(), _descriptors()
    yield
    _check_settled(
        {"threads": lambda: _threads() - threads, "file descriptors": lambda: _descriptors() - descriptors}
    )


def _check_settled(kinds: dict[str, Callable[[], set[str]]]) -> None:
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        left = {kind: found for kind, look in kinds.items() if (found := look())}
        if not left:
            return
        if time.monotonic() > deadline:
            pytest.fail("; ".join(f"leaked {kind}: {sorted(found)}" for kind, found in left.items()))
        gc.collect()
        time.sleep(0.02)


def _children() -> set[str]:
    """Child processes, less Spark's Java, which lives as long as the session."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        try:
            lineage = [child, *child.parents()]
            if not any(process.name() == "java" for process in lineage):
                found.add(f"{child.pid} {' '.join(child.cmdline())[:80]}")
        except psutil.NoSuchProcess:
            continue
    return found


def _segments() -> set[str]:
    folder = Path("/dev/shm")
    return {path.name for path in folder.glob("spark-ring-*")} if folder.is_dir() else set()


def _threads() -> set[str]:
    return {f"{thread.name} ({thread.ident})" for thread in threading.enumerate()}


def _descriptors() -> set[str]:
    folder = Path("/proc/self/fd")
    found = set()
    for path in folder.iterdir() if folder.is_dir() else ():
        try:
            found.add(f"{path.name} -> {path.readlink()}")
        except FileNotFoundError:  # the one that lists the folder
            continue
    return found
