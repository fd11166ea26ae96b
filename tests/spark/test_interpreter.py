"""A Python that cannot do the work is refused before anything starts."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from spark_ring.errors import PreflightError
from spark_ring.spark.interpreter import check_interpreter


def session(python, master="local[2]"):
    return SimpleNamespace(sparkContext=SimpleNamespace(pythonExec=str(python), master=master))


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_the_drivers_own_python_is_fine():
    check_interpreter(session(sys.executable))


def test_another_python_that_has_everything_is_fine(tmp_path):
    check_interpreter(session(script(tmp_path / "python3", f'exec "{sys.executable}" "$@"')))


def test_a_python_that_lacks_a_package_is_refused_with_what_to_set(tmp_path):
    other = script(
        tmp_path / "python3", "echo \"ModuleNotFoundError: No module named 'pyarrow'\" >&2; exit 1"
    )
    with pytest.raises(PreflightError) as caught:
        check_interpreter(session(other))
    for part in (str(other), "No module named 'pyarrow'", f"PYSPARK_PYTHON={sys.executable}"):
        assert part in str(caught.value)


def test_a_python_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(PreflightError, match="which is not there"):
        check_interpreter(session(tmp_path / "python3"))


def test_executors_elsewhere_are_not_asked(tmp_path):
    check_interpreter(session(tmp_path / "python3", master="spark://10.0.0.1:7077"))
