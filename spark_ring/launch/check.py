"""``spark-ring check``: what is installed here, and whether ranks can talk."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from spark_ring import _core
from spark_ring.addresses import announced_addresses
from spark_ring.config import inherited_environment, settings
from spark_ring.errors import SparkRingError
from spark_ring.launch.local import run

__all__ = ["report"]

PACKAGES = ("numpy", "torch", "keras", "tensorflow", "pyspark", "pyarrow", "mlflow", "petastorm")


def report() -> tuple[list[str], bool]:
    """Return lines for people, and whether two ranks could reduce over every transport."""
    lines = [
        _line("spark_ring", f"{_version('spark-ring')} (native {_core.__version__}, kernels {_core.simd()})"),
        _line("python", f"{platform.python_version()} ({sys.executable})"),
        *(_line(package, _version(package)) for package in PACKAGES),
        _line("java", _java()),
        _line("host id", _core.host_id()),
        _line("address", _address()),
    ]
    well = True
    for transport in ("shm", "tcp"):
        text, works = _try_transport(transport)
        lines.append(_line(f"2 ranks, {transport}", text))
        well = well and works
    return lines, well


def _line(what: str, found: str) -> str:
    return f"{what:<14} {found}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _java() -> str:
    home = inherited_environment().get("JAVA_HOME", "")
    program = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if not program:
        return "not found (Spark needs Java 17 or newer: install it, or set JAVA_HOME)"
    try:
        answer = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program} does not run: {error}"
    found = re.search(r'version "([^"]+)"', answer.stderr)
    return f"{found.group(1) if found else 'unknown version'} ({program})"


def _address() -> str:
    try:
        announced = ", ".join(announced_addresses(settings(), ""))
        return f"{announced} (announced to other hosts when no driver is known)"
    except SparkRingError as error:
        return str(error)


def _try_transport(transport: str) -> tuple[str, bool]:
    try:
        results = run(_sum_of_ranks, np=2, timeout=60, transport=transport)
    except SparkRingError as error:
        return f"FAILED: {error}", False
    works = results == [3.0, 3.0]
    return ("works" if works else f"WRONG RESULT: {results}, expected 3.0 on both"), works


def _sum_of_ranks() -> float:
    from spark_ring import world

    return float(world.allreduce(world.rank() + 1.0))
