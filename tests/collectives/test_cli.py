"""The command ``spark-ring``."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest


def _spark_ring(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "spark_ring.launch.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, **options)  # type: ignore[call-overload]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A training script as users write it."""
    path = tmp_path / "train.py"
    path.write_text(
        "import os, signal, sys\n"
        "import numpy as np\n"
        "import spark_ring as ring\n"
        "ring.init()\n"
        "mode = sys.argv[1] if len(sys.argv) > 1 else ''\n"
        "if ring.rank() == 1:\n"
        "    if mode == 'raise': raise ValueError('bad row')\n"
        "    if mode == 'exit': sys.exit(7)\n"
        "    if mode == 'kill': os.kill(os.getpid(), signal.SIGKILL)\n"
        "if mode == 'argv': print(open('/proc/self/cmdline').read().count(os.environ['SPARK_RING_SECRET']))\n"
        "if mode == 'env': print(os.environ['COLOUR'])\n"
        "print(f'sum {ring.allreduce(np.ones(3)).sum():g} of {ring.size()}')\n"
    )
    return path


def test_a_script_runs_on_every_rank_with_prefixed_output(script: Path) -> None:
    """Also Case 101: ranks that exit right after the last collective are not an error."""
    process = _spark_ring("run", "-np", 3, "--", sys.executable, script)
    assert process.returncode == 0, process.stderr
    assert sorted(process.stdout.splitlines()) == [f"[{rank}] sum 9 of 3" for rank in range(3)]
    assert process.stderr == ""


def test_the_same_script_runs_alone() -> None:
    code = (
        "import spark_ring as ring; ring.init(); print(ring.rank(), ring.size(), float(ring.allreduce(2.0)))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (process.stdout, process.stderr) == ("0 1 2.0\n", "")


@pytest.mark.parametrize(
    ("mode", "status", "words"),
    [
        ("raise", 1, "rank 1 of 2 exited with status 1"),
        ("exit", 7, "rank 1 of 2 exited with status 7"),
        ("kill", 137, "rank 1 of 2 was killed by signal 9 (SIGKILL)"),
    ],
)
def test_the_first_failure_ends_all_and_gives_the_exit_status(
    script: Path, mode: str, status: int, words: str
) -> None:
    process = _spark_ring("run", "-np", 2, sys.executable, script, mode)
    assert process.returncode == status, process.stderr
    assert words in process.stderr
    if mode == "raise":
        assert "[1] ValueError: bad row" in process.stderr
        assert "rank 1 raised ValueError: bad row" in process.stderr, "rank 0 is told why"


def test_the_secret_is_not_an_argument_and_variables_are_passed_on(script: Path) -> None:
    """Case 176."""
    assert _spark_ring("run", "-np", 1, sys.executable, script, "argv").stdout.splitlines()[0] == "[0] 0"
    process = _spark_ring("run", "-np", 1, "--env", "COLOUR=sea green", sys.executable, script, "env")
    assert process.stdout.splitlines()[0] == "[0] sea green"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "-np", "0", "true"], "-np"),
        (["run", "-np", "2"], "COMMAND"),
        (["run", "-np", "1", "--env", "COLOUR", "true"], "NAME=VALUE"),
        (["run", "-np", "1", "no-such-program"], "'no-such-program' could not be started"),
        (["run", "-np", "1", "--timeout", "0.5", "sleep", "60"], "still running: 0"),
    ],
)
def test_misuse_is_explained(arguments: list[str], words: str) -> None:
    process = _spark_ring(*arguments)
    assert process.returncode in (1, 2)
    assert words in process.stderr
    assert "Traceback" not in process.stderr


def test_check_tries_every_transport() -> None:
    process = _spark_ring("check")
    assert process.returncode == 0, process.stdout + process.stderr
    lines = {line[:14].strip(): line[14:].strip() for line in process.stdout.splitlines()}
    assert lines["2 ranks, shm"] == lines["2 ranks, tcp"] == "works"
    assert {"spark_ring", "python", "torch", "pyspark", "java", "address", "host id"} <= set(lines)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL])
def test_ranks_end_with_the_command(how: signal.Signals, tmp_path: Path) -> None:
    """Whatever ends the launcher, no rank and nothing that a rank started goes on."""
    script = tmp_path / "stall.py"
    script.write_text(
        "import os, subprocess, sys, threading\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "print(os.getpid(), child.pid, flush=True)\n"
        "threading.Event().wait()\n"
    )
    command = [sys.executable, "-m", "spark_ring.launch.cli", "run", "-np", "2", sys.executable, str(script)]
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert launcher.stdout is not None
    with launcher.stdout:
        pids = [int(pid) for _ in range(2) for pid in launcher.stdout.readline().split()[1:]]
        ranks = [psutil.Process(pid) for pid in pids]
        launcher.send_signal(how)
        status = launcher.wait(timeout=20)
    assert status == (-how if how == signal.SIGKILL else 128 + how)
    _, alive = psutil.wait_procs(ranks, timeout=20)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
