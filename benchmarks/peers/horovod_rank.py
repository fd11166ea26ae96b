"""A rank of Horovod over gloo."""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd  # type: ignore[import-not-found]
import numpy as np
import torch
from loop import serve


class Horovod:
    def __init__(self) -> None:
        torch.set_num_threads(1)
        hvd.init()
        self.rank, self.size = hvd.rank(), hvd.size()
        self.close = hvd.shutdown
        self._nothing = torch.zeros(1)

    def barrier(self) -> None:
        hvd.allreduce_(self._nothing, op=hvd.Sum, name="barrier")

    def array(self, elements: int) -> np.ndarray:
        return np.zeros(elements, np.float32)

    def allreduce(self, data: np.ndarray) -> None:
        hvd.allreduce_(torch.from_numpy(data), op=hvd.Sum, name="cell")

    def gradients(self, arrays: list[np.ndarray]) -> None:
        hvd.grouped_allreduce_([torch.from_numpy(each) for each in arrays], op=hvd.Sum, name="gradients")

    def broadcast(self, data: np.ndarray) -> None:
        hvd.broadcast_(torch.from_numpy(data), 0, name="broadcast")

    def allgather(self, data: np.ndarray) -> Any:
        return hvd.allgather(torch.from_numpy(data), name="allgather").numpy()

    def alltoall(self, data: np.ndarray) -> Any:
        return hvd.alltoall(torch.from_numpy(data), name="alltoall").numpy()

    def reducescatter(self, data: np.ndarray) -> Any:
        return hvd.reducescatter(torch.from_numpy(data), op=hvd.Sum, name="reducescatter").numpy()


if __name__ == "__main__":
    serve(Horovod())
