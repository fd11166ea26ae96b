"""What happens when a worker is killed, or the user interrupts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from killed_worker import data, estimator

from spark_ring import TorchEstimator
from spark_ring.data.store import Store
from spark_ring.spark.run import run

pytestmark = pytest.mark.spark
SCRIPT = Path(__file__).with_name("killed_worker.py")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_fit_survives_kill_9_of_a_worker(spark, store, tmp_path):
    """A worker is killed in the middle of epoch 3: the work since epoch 2 is done again, and nothing else."""
    torch.manual_seed(0)
    undisturbed = estimator(torch.nn.Linear(2, 1), store.url).fit(data(spark))
    command = [sys.executable, str(SCRIPT), str(tmp_path), "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    assert (tmp_path / "killed").exists()
    killed = json.loads(done.stdout.splitlines()[-1])
    assert [record["epoch"] for record in killed["history"]] == [1, 2, 3, 4, 5]
    assert killed["resumed"] == 2
    for left, right in zip(killed["history"], undisturbed.history, strict=True):
        assert left["loss"] == pytest.approx(right["loss"], rel=1e-5)
        assert left["rows"] == 100
    for left, right in zip(killed["weights"], undisturbed.module.parameters(), strict=True):
        assert left == pytest.approx(right.flatten().tolist(), rel=1e-5)
    assert Store(tmp_path / "store").list("runs") == []


@pytest.mark.timeout(90)
def test_an_interrupt_ends_workers_and_cleans_the_store(spark, line, linear, store, counted):
    """Case 128: Ctrl-C in the middle of a fit; workers end within seconds, and Spark is free again."""
    folder = counted.folder

    class Slow(torch.nn.Linear):
        def forward(self, input):
            import os
            import time

            import spark_ring

            if spark_ring.is_initialized():
                with open(f"{folder}/pid-{os.getpid()}", "w"):
                    pass
                time.sleep(0.05)
            return super().forward(input)

    def interrupt():
        while counted("pid") < 2:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    trigger = threading.Thread(target=interrupt, daemon=True)
    trigger.start()
    args = {**linear, "model": Slow(2, 1)}
    with pytest.raises(KeyboardInterrupt):
        TorchEstimator(**args, store=store.url).setEpochs(1000).fit(line)
    trigger.join()
    assert run(lambda: "free", numTrainWorkers=2, spark=spark) == ["free", "free"]
