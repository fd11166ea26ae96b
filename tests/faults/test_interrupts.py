"""Control-C while a rank waits in any verb: KeyboardInterrupt at once; the other rank hears who gave up."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

RANK = """
import os, sys, time
import numpy as np
from spark_ring.communicator import Communicator
from spark_ring.config import Settings
from spark_ring.errors import CommunicatorError
rank, folder, transport, verb = int(sys.argv[1]), *sys.argv[2:]
def exchange(text):
    with open(f"{folder}/{rank}.part", "w") as file: file.write(text)
    os.rename(f"{folder}/{rank}.part", f"{folder}/{rank}")
    while not all(os.path.exists(f"{folder}/{r}") for r in range(2)): time.sleep(0.01)
    return [open(f"{folder}/{r}").read() for r in range(2)]
verbs = {
    "allreduce": lambda c: c.allreduce(np.ones(4)),
    "large allreduce": lambda c: c.allreduce(np.ones(1 << 20)),
    "grouped_allreduce": lambda c: c.grouped_allreduce([np.ones(4), np.ones(5)]),
    "wait": lambda c: c.allreduce_async(np.ones(4)).wait(),
    "broadcast": lambda c: c.broadcast(np.ones(4), 1),
    "allgather": lambda c: c.allgather(np.ones(4)),
    "barrier": lambda c: c.barrier(),
    "join": lambda c: c.join(),
    "recv": lambda c: c.recv(np.empty(4), 1),
    "group": lambda c: c.group([0, 1]),
}
comm = Communicator.connect(rank, 2, exchange, b"s" * 32, Settings(transport=transport, close_timeout=0.5))
comm.barrier()
try:
    if rank == 0:
        print("waiting", flush=True)
        verbs[verb](comm)
    else:
        sys.stdin.readline()  # rank 0 was interrupted
        comm.allreduce(np.ones(4), name="late")
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise SystemExit(130)
except CommunicatorError as error:
    print(f"told: {error}", flush=True)
finally:
    began = time.monotonic()
    comm.close()
    print(f"closed in {time.monotonic() - began:.3f}", flush=True)
"""
VERBS = (
    "allreduce",
    "large allreduce",
    "grouped_allreduce",
    "wait",
    "broadcast",
    "allgather",
    "barrier",
    "join",
    "recv",
    "group",
)


def _start(rank: int, folder: Path, transport: str, verb: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", RANK, str(rank), str(folder), transport, verb]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_wait_is_interrupted_and_the_other_rank_told(tmp_path: Path, transport: str, verb: str) -> None:
    ranks = [_start(rank, tmp_path, transport, verb) for rank in range(2)]
    try:
        assert ranks[0].stdout is not None
        assert ranks[0].stdout.readline() == "waiting\n"
        time.sleep(0.2)  # into the wait; earlier would be interrupted as well
        ranks[0].send_signal(signal.SIGINT)
        began = time.monotonic()
        out, _ = ranks[0].communicate(timeout=30)
        took = time.monotonic() - began
        assert ranks[0].returncode == 130, out
        assert out.startswith("interrupted\n")
        assert took < 5, out
        told, _ = ranks[1].communicate("go\n", timeout=30)
        assert ranks[1].returncode == 0, told
        assert "told: " in told
        assert "rank 0" in told
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
