"""What every rank of every competitor does: wait for a cell, time it, answer. Needs NumPy only.

A rank connects to the coordinator's socket and then blocks in reading it, so a competitor that is not being
measured uses no processor. One line of JSON asks for one measurement::

    {"verb": "allreduce", "bytes": 4096, "calls": 100, "check": true}

and the answer is the mean seconds of one call on this rank, or null if the competitor has no such verb. The
calls follow a barrier of the competitor's own and one call that is not timed.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

# Elements of the parameters of ResNet-50: 161 tensors, 25.6 M elements.
GRADIENTS = [
    9408, 64, 64,
    *[64 * 64, 64, 64, 64 * 64 * 9, 64, 64, 64 * 256, 256, 256, 64 * 256, 256, 256],
    *[256 * 64, 64, 64, 64 * 64 * 9, 64, 64, 64 * 256, 256, 256] * 2,
    *[256 * 128, 128, 128, 128 * 128 * 9, 128, 128, 128 * 512, 512, 512, 256 * 512, 512, 512],
    *[512 * 128, 128, 128, 128 * 128 * 9, 128, 128, 128 * 512, 512, 512] * 3,
    *[512 * 256, 256, 256, 256 * 256 * 9, 256, 256, 256 * 1024, 1024, 1024, 512 * 1024, 1024, 1024],
    *[1024 * 256, 256, 256, 256 * 256 * 9, 256, 256, 256 * 1024, 1024, 1024] * 5,
    *[1024 * 512, 512, 512, 512 * 512 * 9, 512, 512, 512 * 2048, 2048, 2048, 1024 * 2048, 2048, 2048],
    *[2048 * 512, 512, 512, 512 * 512 * 9, 512, 512, 512 * 2048, 2048, 2048] * 2,
    2048 * 1000, 1000,
]  # fmt: skip


class Competitor(Protocol):
    """One library on one rank. Every method that it lacks is a verb that it does not have."""

    rank: int
    size: int

    def array(self, elements: int) -> np.ndarray:
        """Make a float32 array where this library likes it best."""

    def barrier(self) -> None:
        """Wait for all ranks."""

    def close(self) -> None:
        """Leave."""


def serve(competitor: Competitor) -> None:
    """Answer the coordinator until it hangs up."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ["BENCHMARK_SOCKET"])
        lines = connection.makefile("rw")
        print(json.dumps({"rank": competitor.rank}), file=lines, flush=True)
        for line in lines:
            print(json.dumps(_measure(competitor, **json.loads(line))), file=lines, flush=True)
    competitor.close()


Pair = tuple[Callable[[], Any], Callable[[], None]]  # the call, and a check of its result
_ready: dict[tuple[str, int], Pair] = {}  # the last cell's, whose arrays are touched for the first time once


def _measure(competitor: Any, verb: str, bytes: int, calls: int, check: bool) -> float | None:
    if not hasattr(competitor, verb):
        return None
    if (verb, bytes) not in _ready:
        _ready.clear()
        _ready[verb, bytes] = globals()[f"_{verb}"](competitor, bytes // 4)
    run, verify = _ready[verb, bytes]
    if check:
        verify()
    competitor.barrier()
    run()
    competitor.barrier()
    began = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - began) / calls


def _expect(found: Any, wanted: Any, what: str) -> None:
    if not np.array_equal(np.asarray(found), np.asarray(wanted)):
        raise AssertionError(f"{what} came out wrong: {found}, not {wanted}")


def _allreduce(c: Any, elements: int) -> Pair:
    data = c.array(elements)
    data[:] = 0

    def verify() -> None:
        data[:] = c.rank + 1
        c.allreduce(data)
        _expect(data[[0, -1]], [c.size * (c.size + 1) / 2] * 2, "allreduce")
        data[:] = 0  # sums stay finite over any number of calls

    return (lambda: c.allreduce(data)), verify


def _gradients(c: Any, elements: int) -> Pair:
    arrays = c.arrays(GRADIENTS) if hasattr(c, "arrays") else [c.array(each) for each in GRADIENTS]
    for each in arrays:
        each[:] = 0

    def verify() -> None:
        for each in arrays:
            each[:] = c.rank + 1
        c.gradients(arrays)
        _expect([each[-1] for each in arrays], [c.size * (c.size + 1) / 2] * len(arrays), "gradients")
        for each in arrays:
            each[:] = 0

    return (lambda: c.gradients(arrays)), verify


def _broadcast(c: Any, elements: int) -> Pair:
    data = c.array(elements)

    def verify() -> None:
        data[:] = c.rank + 1
        c.broadcast(data)
        _expect(data[[0, -1]], [1, 1], "broadcast")

    return (lambda: c.broadcast(data)), verify


def _allgather(c: Any, elements: int) -> Pair:
    """Each rank gives the bytes of the cell."""
    return _gathering(c, elements, "allgather", lambda r: r + 1, lambda out: out[:: max(1, elements)])


def _alltoall(c: Any, elements: int) -> Pair:
    """Each rank has the bytes of the cell, an equal part for every rank."""
    part = elements // c.size
    return _gathering(c, part * c.size, "alltoall", lambda r: r + 1, lambda out: out[::part])


def _gathering(c: Any, elements: int, verb: str, value: Any, sample: Any) -> Pair:
    data = c.array(elements)
    data[:] = value(c.rank)
    call = getattr(c, verb)

    def verify() -> None:
        _expect(sample(np.asarray(call(data)).reshape(-1)), [value(r) for r in range(c.size)], verb)

    return (lambda: call(data)), verify


def _reducescatter(c: Any, elements: int) -> Pair:
    data = c.array(elements // c.size * c.size)
    data[:] = c.rank + 1

    def verify() -> None:
        found = np.asarray(c.reducescatter(data)).reshape(-1)
        _expect(found[[0, -1]], [c.size * (c.size + 1) / 2] * 2, "reducescatter")

    return (lambda: c.reducescatter(data)), verify


def _copy(c: Any, elements: int) -> Pair:
    source, target = c.array(elements), c.array(elements)
    source[:] = target[:] = 0
    return (lambda: np.copyto(target, source)), (lambda: None)


def _add(c: Any, elements: int) -> Pair:
    source, target = c.array(elements), c.array(elements)
    source[:] = target[:] = 0
    return (lambda: np.add(target, source, out=target)), (lambda: None)


def _stream(c: Any, elements: int) -> Pair:
    data = c.array(elements)
    data[:] = 0
    return (lambda: c.stream(data)), (lambda: None)
