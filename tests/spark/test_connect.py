"""Everything of a fit on Spark Connect, where there is no sparkContext, no JVM and no RDD."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("connect_fit.py")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_fit_on_connect(tmp_path):
    """Case 140 too: four workers on one machine."""
    pytest.importorskip("grpc")
    command = [sys.executable, str(SCRIPT), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["workers"] == 4
    assert [record["epoch"] for record in found["history"]] == list(range(1, 9))
    assert found["history"][-1]["val_loss"] < 1e-3
    assert (found["datasets"], found["datasets after the second fit"]) == (1, 1)
    assert found["prediction"] == pytest.approx(found["label"], abs=0.1)
    assert found["run"] == [2, 2]
    assert "has 4" in found["slots"]
    assert "ZeroDivisionError" in found["error"]
    assert 0 <= found["interrupted"] < 15
    assert found["left"] == []
