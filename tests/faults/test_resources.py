"""What a machine may lack: shared memory, memory, threads. And more work than anybody waits for."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "collectives"))
from threads import together

from spark_ring.communicator import Communicator

PROGRAM = """
import spark_ring
from spark_ring import world
def work():
    return world.allreduce(1.0).item(), world.current().transport
try:
    print(spark_ring.run(work, np=2, transport={transport!r}))
except spark_ring.errors.SparkRingError as error:
    print(str(error).splitlines()[0])
"""


def _output(shell: str, transport: str) -> str:
    """Run the program after a line of shell that takes something away."""
    command = [
        "bash",
        "-c",
        f'{shell} && exec "$0" -c "$1"',
        sys.executable,
        PROGRAM.format(transport=transport),
    ]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout


def _small_shared_memory() -> list[str]:
    """Ways to have less shared memory than a segment needs: a limit, and a small /dev/shm of one's own."""
    return ["ulimit -f 100", "mount -t tmpfs -o size=64k tmpfs /dev/shm"]


@pytest.mark.parametrize("shell", _small_shared_memory())
def test_too_little_shared_memory_is_told_with_its_size_or_tcp_is_used(shell: str) -> None:
    if shell.startswith("mount"):
        if os.geteuid() != 0:
            pytest.skip("mounting needs root")
        probe = subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True)
        if probe.returncode != 0:
            pytest.skip("no mount namespace can be made here")
        shell = f'exec unshare -m bash -c \'{shell} && exec "$0" -c "$1"\' "$0" "$1" && true'
    assert _output(shell, "auto").strip() == "[(2.0, 'tcp'), (2.0, 'tcp')]"
    told = _output(shell, "shm")
    assert "transport='shm' is not possible: rank 0: shared memory: reserving pages failed" in told
    assert " bytes; " in told
    assert "or use transport='tcp'" in told


NO_THREADS = """
import os, resource, sys
import numpy as np
from spark_ring.communicator import Communicator
from spark_ring.config import Settings
from spark_ring.errors import AbortedError
comm = Communicator.connect(0, 1, lambda text: [text], b"", Settings(stall_warning_seconds=0.0))
os.setuid(65534)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
for start in (lambda: comm.allreduce_async(np.ones(3)), lambda: comm.isend(np.ones(3), 0)):
    try:
        start()
        print("started")
    except AbortedError as error:
        print(error)
print(comm.allreduce(2.0))
comm.close()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become a user that may have no more threads")
def test_without_a_thread_what_needs_one_says_so_and_the_rest_works() -> None:
    process = subprocess.run(
        [sys.executable, "-c", NO_THREADS], capture_output=True, text=True, timeout=60, check=False
    )
    assert process.returncode == 0, process.stderr
    collective, message, result = process.stdout.splitlines()
    assert "cannot be started" in collective
    assert "ulimit -u" in collective
    assert "the thread for messages cannot be started" in message
    assert float(result) == 2.0


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_thousands_of_operations_in_orders_of_their_own(transport: str) -> None:
    def work(comm: Communicator) -> float:
        order = np.random.default_rng(comm.rank).permutation(3000)
        handles = [comm.allreduce_async(np.ones(3), name=f"x{index}") for index in order]
        return sum(float(handle.wait(30)[0]) for handle in reversed(handles))

    assert together(work, 3, transport=transport) == [9000.0] * 3


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_handles_that_nobody_keeps_end_all_the_same(transport: str) -> None:
    def work(comm: Communicator) -> Any:
        for index in range(200):
            comm.allreduce_async(np.ones(10_000), name=f"x{index}")
        gc.collect()
        comm.barrier()
        return comm.statistics()["operations"]

    assert together(work, 3, transport=transport) == [201] * 3
