"""A rank of spark_ring: ``python ring_rank.py {shm|tcp|own}``; ``own`` keeps arrays in the ring's memory."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from loop import serve
from meeting import exchange, place

from spark_ring.communicator import Communicator
from spark_ring.config import Settings


class Ring:
    def __init__(self, kind: str) -> None:
        self.rank, self.size = place()
        settings = Settings(transport="tcp" if kind == "tcp" else "shm")
        self._comm = Communicator.connect(self.rank, self.size, exchange, b"for benchmarks only", settings)
        self._own = kind == "own"
        self._room: dict[tuple[str, int], np.ndarray] = {}
        self.barrier, self.close = self._comm.barrier, self._comm.close

    def array(self, elements: int) -> np.ndarray:
        return self._comm.empty(elements) if self._own else np.zeros(elements, np.float32)

    def arrays(self, extents: Sequence[int]) -> list[np.ndarray]:
        if not self._own:
            return [self.array(each) for each in extents]
        return np.split(self.array(sum(extents)), np.cumsum(extents)[:-1])

    def allreduce(self, data: np.ndarray) -> None:
        self._comm.allreduce(data, out=data)

    def gradients(self, arrays: list[np.ndarray]) -> None:
        self._comm.grouped_allreduce(arrays, out=arrays)

    def broadcast(self, data: np.ndarray) -> None:
        self._comm.broadcast(data)

    def allgather(self, data: np.ndarray) -> Any:
        return self._comm.allgather(data, out=self._out("allgather", data.size * self.size))

    def alltoall(self, data: np.ndarray) -> Any:
        return self._comm.alltoall(data, out=self._out("alltoall", data.size))

    def _out(self, verb: str, elements: int) -> np.ndarray:
        key = verb, elements
        if key not in self._room:
            self._room = {key: self.array(elements)}
        return self._room[key]

    def reducescatter(self, data: np.ndarray) -> Any:
        return self._comm.reducescatter(data)


if __name__ == "__main__":
    serve(Ring(sys.argv[1]))
