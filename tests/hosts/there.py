"""What runs on a host of the lab: ``python -m tests.hosts.there SCENARIO JSON``. The last line answers."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from spark_ring.communicator import Communicator
from spark_ring.config import settings
from spark_ring.errors import CommunicatorError
from spark_ring.rendezvous import RendezvousServer, exchange_through

SECRET = b"the secret of the laboratory, 32"


def server(address: str) -> None:
    """Bring the ranks together until stdin ends."""
    with RendezvousServer(SECRET, host=address) as running:
        print(running.address, flush=True)
        sys.stdin.read()


def everything(comm: Communicator) -> dict[str, Any]:
    """Compare each collective with NumPy; answer with the topology."""
    sizes = (0, 1, 1000, 77_777, 500_000)

    def of(rank: int, size: int) -> np.ndarray[Any, Any]:
        return np.random.default_rng([rank, size]).integers(-1000, 1000, size).astype(np.float64)

    for size in sizes:
        all_inputs = [of(rank, size) for rank in range(comm.size)]
        mine = all_inputs[comm.rank]
        assert np.array_equal(comm.allreduce(mine), sum(all_inputs)), size
        assert np.array_equal(comm.allreduce(mine, "max"), np.max(all_inputs, axis=0)), size
        assert np.array_equal(comm.allgather(mine), np.concatenate(all_inputs)), size
        for root in range(comm.size):
            assert np.array_equal(comm.broadcast(mine.copy(), root), all_inputs[root]), (size, root)
        rows = np.array_split(sum(all_inputs), comm.size)[comm.rank]
        assert np.array_equal(comm.reducescatter(mine), rows), size
        peer, source = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        sent = comm.isend(mine, peer)
        assert np.array_equal(comm.recv(None, source), all_inputs[source]), size
        sent.wait()
    group = comm.group(list(range(comm.size))[::-1])
    assert group is not None
    assert group.allreduce(1.0) == comm.size
    return {
        "transport": comm.transport,
        "local": [comm.local_rank, comm.local_size],
        "cross": [comm.cross_rank, comm.cross_size],
    }


def for_ever(comm: Communicator) -> dict[str, Any]:
    """Reduce until it fails; answer with the error and how long the last call took."""
    comm.barrier()
    print("running", flush=True)
    data = np.ones(100_000)
    while True:
        begin = time.monotonic()
        try:
            comm.allreduce(data)
        except CommunicatorError as error:
            return {
                "error": type(error).__name__,
                "rank": error.rank,
                "text": str(error),
                "seconds": time.monotonic() - begin,
            }


def wait_for_message(comm: Communicator) -> dict[str, Any]:
    """Wait for a message that never comes, with no collective under way; answer with the error."""
    comm.barrier()
    print("running", flush=True)
    begin = time.monotonic()
    try:
        comm.recv(None, (comm.rank + 1) % comm.size)
    except CommunicatorError as error:
        return {"error": type(error).__name__, "rank": error.rank, "seconds": time.monotonic() - begin}
    return {}


def _main() -> None:
    scenario, argument = sys.argv[1:]
    if scenario == "server":
        return server(argument)
    scenarios: dict[str, Callable[[Communicator], dict[str, Any]]] = {
        "everything": everything,
        "for_ever": for_ever,
        "wait_for_message": wait_for_message,
    }
    chosen = settings(env={}, **json.loads(argument))
    exchange = exchange_through(chosen.rendezvous, SECRET, chosen.rank, chosen.size, chosen)
    begin = time.monotonic()
    comm = Communicator.connect(chosen.rank, chosen.size, exchange, SECRET, chosen, toward=chosen.rendezvous)
    joined = time.monotonic() - begin
    with comm:
        answer = scenarios[scenario](comm)
    print(json.dumps({**answer, "joined": joined, "closed": True}), flush=True)
    return None


if __name__ == "__main__":
    _main()
