"""The same bits on every rank, and in every run."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from threads import together

from spark_ring.communicator import Communicator


def _train(comm: Communicator, at_once: bool = True) -> list[str]:
    """A toy training: 100 steps of averaged random gradients of awkward sizes, small and large."""
    generator = np.random.default_rng(comm.rank)
    weights = [np.zeros(count, kind) for count in (1, 1009, 30_011) for kind in ("float32", "float16")]
    for _ in range(100):
        gradients = [generator.standard_normal(w.shape).astype(w.dtype) for w in weights]
        handles = []
        for index, gradient in enumerate(gradients):
            handles.append(comm.allreduce_async(gradient, "average", name=f"g{index}"))
            if not at_once:
                handles[-1].wait()
        for weight, handle in zip(weights, handles, strict=True):
            weight -= 0.01 * handle.wait()
    return [hashlib.sha256(weight.tobytes()).hexdigest() for weight in weights]


def _train_one_by_one(comm: Communicator) -> list[str]:
    return _train(comm, at_once=False)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_weights_are_equal_to_the_bit_on_all_ranks_and_from_run_to_run(transport: str, size: int) -> None:
    """Cases 64 and 65: also when time, which differs from run to run, decides what is fused with what."""
    first = together(_train, size, transport=transport, segment_bytes=4096)
    assert first == [first[0]] * size
    assert together(_train, size, transport=transport, segment_bytes=4096) == first
    assert together(_train_one_by_one, size, transport=transport, segment_bytes=4096) == first
