"""Scoring and persistence on Spark Connect, where there is no sparkContext, no JVM and no broadcast."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).with_name("connect_score.py")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_scoring_and_persistence_on_connect(tmp_path):
    """Cases 160, 161, 178."""
    pytest.importorskip("grpc")
    command = [sys.executable, str(SCRIPT), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for way in ("scored", "loaded", "from a file", "as an artifact"):
        np.testing.assert_allclose(found[way], found["expected"], rtol=1e-5, err_msg=way)
    labels = [i % 3 for i in range(21)]
    assert found["rmse"] == pytest.approx(
        np.sqrt(np.mean((np.array(found["expected"]) - labels) ** 2)), rel=1e-5
    )
    assert found["refused"]
    assert found["classes"] == ["rawPrediction vector", "probability vector", "prediction double"]
    assert found["class rows"] == 21
    assert found["source"] == "Artifact"
    assert "no column 'features'" in found["missing"]
