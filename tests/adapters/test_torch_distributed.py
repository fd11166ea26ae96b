"""torch.distributed over the ring. What each rank checks is in ``distributed_ranks``."""

from __future__ import annotations

from pathlib import Path

import distributed_ranks
import parallel_ranks
import pytest
import torch

import spark_ring


def every_collective() -> str:
    """In each rank: all collectives, beside gloo."""
    torch.set_num_threads(1)
    return distributed_ranks.collectives()


@pytest.mark.parametrize(("size", "transport"), [(1, "auto"), (2, "shm"), (3, "tcp"), (4, "shm")])
def test_collectives_equal_those_of_gloo(size: int, transport: str) -> None:
    """Every collective of torch.distributed leaves what gloo leaves, in every tensor."""
    assert spark_ring.run(every_collective, np=size, transport=transport) == ["well"] * size


@pytest.mark.parametrize("size", [2, 3])
def test_parallel_wrappers_train_as_over_gloo(size: int, tmp_path: Path) -> None:
    """DDP in all its modes, FSDP2, ZeRO, DTensor, functional collectives and sharded checkpoints."""
    assert spark_ring.run(parallel_ranks.wrappers, args=(str(tmp_path),), np=size) == ["well"] * size
