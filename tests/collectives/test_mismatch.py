"""Ranks that disagree: an error on every rank that names both sides, and a communicator that works on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from threads import together

from spark_ring.communicator import Communicator
from spark_ring.errors import MismatchError

# What rank 0 and what the others do; what every message must hold.
DISAGREEMENTS: dict[str, tuple[Callable[[Communicator], Any], Callable[[Communicator], Any], list[str]]] = {
    "shape": (
        lambda c: c.allreduce(np.ones((100, 5)), name="grad"),
        lambda c: c.allreduce(np.ones((200, 5)), name="grad"),
        ["allreduce 'grad'", "100, 5", "200, 5"],
    ),
    "shape of equal count": (
        lambda c: c.allreduce(np.ones((10, 5)), name="grad"),
        lambda c: c.allreduce(np.ones((5, 10)), name="grad"),
        ["allreduce 'grad'", "10, 5", "5, 10"],
    ),
    "number of dimensions": (
        lambda c: c.allreduce(np.ones(()), name="loss"),
        lambda c: c.allreduce(np.ones((1,)), name="loss"),
        ["allreduce 'loss'"],
    ),
    "dtype": (
        lambda c: c.allreduce(np.ones(6, np.float32), name="grad"),
        lambda c: c.allreduce(np.ones(6, np.float64), name="grad"),
        ["allreduce 'grad'", "float32", "float64"],
    ),
    "dtype of equal size": (
        lambda c: c.allreduce(np.ones(6, np.float32), name="grad"),
        lambda c: c.allreduce(np.ones(6, np.int32), name="grad"),
        ["allreduce 'grad'", "float32", "int32"],
    ),
    "op": (
        lambda c: c.allreduce(np.ones(6), "sum", name="grad"),
        lambda c: c.allreduce(np.ones(6), "average", name="grad"),
        ["allreduce 'grad'", "sum", "average"],
    ),
    "operation": (
        lambda c: c.allreduce(np.ones(6), name="x"),
        lambda c: c.broadcast(np.ones(6), name="x"),
        ["'x'", "allreduce", "broadcast"],
    ),
    "root": (
        lambda c: c.broadcast(np.ones(6), 0, name="w"),
        lambda c: c.broadcast(np.ones(6), 1, name="w"),
        ["broadcast 'w'", "root"],
    ),
    "columns of an allgather": (
        lambda c: c.allgather(np.ones((2, 3)), name="rows"),
        lambda c: c.allgather(np.ones((2, 4)), name="rows"),
        ["allgather 'rows'", "*, 3", "*, 4"],
    ),
    "shape of a broadcast": (
        lambda c: c.broadcast(np.ones(6), name="w"),
        lambda c: c.broadcast(np.ones(7), name="w"),
        ["broadcast 'w'", "6", "7"],
    ),
    "shape of a reducescatter": (
        lambda c: c.reducescatter(np.ones((6, 2)), name="s"),
        lambda c: c.reducescatter(np.ones((6, 3)), name="s"),
        ["reducescatter 's'", "6, 2", "6, 3"],
    ),
    "number of tensors in a group": (
        lambda c: c.grouped_allreduce([np.ones(2), np.ones(3)], name="group"),
        lambda c: c.grouped_allreduce([np.ones(2)], name="group"),
        ["'group'"],
    ),
    "scale": (
        lambda c: c.allreduce(np.ones(2), prescale=0.5, name="scaled"),
        lambda c: c.allreduce(np.ones(2), name="scaled"),
        ["'scaled'", "0.5"],
    ),
}


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("size", [2, 3])
def test_every_rank_hears_both_sides_and_the_next_collective_works(transport: str, size: int) -> None:
    """Case 67."""

    def work(comm: Communicator) -> list[str]:
        wrong = []
        for what, (first, others, parts) in DISAGREEMENTS.items():
            try:
                (first if comm.rank == 0 else others)(comm)
                wrong.append(f"{what}: nothing was raised")
            except MismatchError as error:
                missing = [part for part in [*parts, "rank 0", "rank 1"] if part not in str(error)]
                if missing:
                    wrong.append(f"{what}: {missing} not in: {error}")
            if comm.allreduce(1.0, name="afterwards") != size:
                wrong.append(f"{what}: the next collective is wrong")
        return wrong

    assert together(work, size, transport=transport, collective_timeout=20.0) == [[]] * size


def test_the_odd_one_out_is_to_blame() -> None:
    """Rank 2 of 4 disagrees with the others: it is named."""

    def work(comm: Communicator) -> str:
        with pytest.raises(MismatchError) as caught:
            comm.allreduce(np.ones(7 if comm.rank == 2 else 6), name="grad")
        return str(caught.value)

    for message in together(work, 4):
        assert "rank 2" in message
