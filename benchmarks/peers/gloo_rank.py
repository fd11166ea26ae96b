"""A rank of torch.distributed over gloo."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from loop import serve
from meeting import folder, place


class Gloo:
    def __init__(self) -> None:
        self.rank, self.size = place()
        torch.set_num_threads(1)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group(
            "gloo", init_method=f"file://{folder()}/gloo", rank=self.rank, world_size=self.size
        )
        self.barrier, self.close = dist.barrier, dist.destroy_process_group
        self._room: dict[tuple[str, int], Any] = {}

    def array(self, elements: int) -> np.ndarray:
        return np.zeros(elements, np.float32)

    def allreduce(self, data: np.ndarray) -> None:
        dist.all_reduce(torch.from_numpy(data))

    def gradients(self, arrays: list[np.ndarray]) -> None:
        """As DistributedDataParallel does: buckets of 25 MB, copied in and out, all under way at once."""
        tensors = [torch.from_numpy(each) for each in arrays]
        buckets: list[list[torch.Tensor]] = [[]]
        filled = 0
        for tensor in reversed(tensors):
            if filled > 25 << 20:
                buckets.append([])
                filled = 0
            buckets[-1].append(tensor)
            filled += tensor.numel() * 4
        flats = [torch.cat(bucket) for bucket in buckets]
        works = [dist.all_reduce(flat, async_op=True) for flat in flats]
        for work, flat, bucket in zip(works, flats, buckets, strict=True):
            work.wait()
            torch._foreach_copy_(bucket, list(flat.split([each.numel() for each in bucket])))

    def broadcast(self, data: np.ndarray) -> None:
        dist.broadcast(torch.from_numpy(data), 0)

    def allgather(self, data: np.ndarray) -> np.ndarray:
        out = self._out("allgather", data.size * self.size)
        dist.all_gather_into_tensor(out, torch.from_numpy(data))
        return out.numpy()

    def alltoall(self, data: np.ndarray) -> np.ndarray:
        out = self._out("alltoall", data.size)
        dist.all_to_all_single(out, torch.from_numpy(data))
        return out.numpy()

    def reducescatter(self, data: np.ndarray) -> np.ndarray:
        out = self._out("reducescatter", data.size // self.size)
        dist.reduce_scatter_tensor(out, torch.from_numpy(data))
        return out.numpy()

    def _out(self, verb: str, elements: int) -> torch.Tensor:
        key = verb, elements
        if key not in self._room:
            self._room = {key: torch.zeros(elements)}
        return self._room[key]


if __name__ == "__main__":
    serve(Gloo())
