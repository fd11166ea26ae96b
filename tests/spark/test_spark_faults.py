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

from spark_ring import TorchEstimator
from spark_ring.spark.run import run

pytestmark = pytest.mark.spark
SCRIPT = Path(__file__).with_name("killed_worker.py")


def fit_in_a_cluster(folder: Path, epoch: int) -> dict:
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder), str(epoch)],
        capture_output=True,
        text=True,
        timeout=170,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.timeout(360)
def test_a_fit_survives_kill_9_of_a_worker(tmp_path):
    """A worker is killed in the middle of epoch 3: the work since epoch 2 is done again, and nothing else."""
    undisturbed = fit_in_a_cluster(tmp_path / "undisturbed", 99)
    killed = fit_in_a_cluster(tmp_path / "killed", 3)
    assert (tmp_path / "killed" / "killed").exists()
    assert not (tmp_path / "undisturbed" / "killed").exists()
    assert [record["epoch"] for record in killed["history"]] == [1, 2, 3, 4, 5]
    assert (undisturbed["resumed"], killed["resumed"]) == (0, 2)
    for left, right in zip(killed["history"], undisturbed["history"], strict=True):
        assert left["loss"] == pytest.approx(right["loss"], rel=1e-5)
        assert left["rows"] == 100
    for left, right in zip(killed["weights"], undisturbed["weights"], strict=True):
        assert left == pytest.approx(right, rel=1e-5)
    assert os.listdir(tmp_path / "killed" / "store" / "runs") == []


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
