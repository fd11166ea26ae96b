"""The short road of a blocking allreduce (csrc/engine/express.h): results, errors and statistics are those of
the general road, also when the ranks take different roads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from threads import together

from spark_ring.communicator import Communicator
from spark_ring.errors import AbortedError, CollectiveTimeoutError, MismatchError

TRANSPORTS = ("shm", "tcp")
COUNTS = (1, 7, 1000, 20_000, 300_001)  # below and above what travels with the exchange


def _input(rank: int, count: int, dtype: str) -> Any:
    return (np.random.default_rng(rank).random(count) * 50).astype(dtype)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_short_road_gives_the_bits_of_the_general_one(transport: str, size: int) -> None:
    def work(c: Communicator) -> None:
        for dtype in ("float32", "float16", "int32"):
            for count in COUNTS:
                mine = _input(c.rank, count, dtype)
                expected = c.allreduce_async(mine, "average").wait()
                assert c.allreduce(mine, "average").tobytes() == expected.tobytes()
                assert c.allreduce(mine, "average", out=mine) is mine
                assert mine.tobytes() == expected.tobytes()

    together(work, size, transport=transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_ranks_on_different_roads_meet(transport: str) -> None:
    def work(c: Communicator) -> None:
        for i in range(400):
            mine = np.full(9 if i % 2 else 40_000, float(c.rank + 1), np.float32)
            name = f"grad.{i}" if i % 3 else None
            other = None
            if c.rank == i % c.size:  # something else is pending here, which the others start later
                other = c.allreduce_async(np.ones(3), name=f"other.{i}")
            if c.rank % 2:
                result = c.allreduce(mine, name=name)
            else:
                result = c.allreduce_async(mine, name=name).wait()
            assert (result == 6).all()
            if other is None:
                assert (c.allreduce(np.ones(3), name=f"other.{i}") == 3).all()
            else:
                assert (other.wait() == 3).all()

    together(work, 3, transport=transport, collective_timeout=30.0)


def test_disagreement_on_the_short_road_names_both_sides_and_the_next_call_works() -> None:
    def work(c: Communicator) -> None:
        for _ in range(20):
            with pytest.raises(MismatchError, match=r"(?s)rank 0 has .*\[5\].*rank 1 has .*\[6\]"):
                c.allreduce(np.ones(5 + c.rank, np.float32), name="grad")
            assert c.allreduce(np.ones(4)).sum() == 8

    together(work, 2)


def test_statistics_count_the_short_road() -> None:
    def work(c: Communicator) -> None:
        before = c.statistics()
        for _ in range(10):
            c.allreduce(np.ones(8, np.float64))
        c.allreduce(np.ones(100_000, np.float64))
        after = c.statistics()
        grown = {
            key: after[key] - before[key] for key in ("operations", "bytes", "carried", "rounds", "buckets")
        }
        assert grown == {"operations": 11, "bytes": 800_640, "carried": 10, "rounds": 11, "buckets": 1}

    together(work, 2, transport="shm")


def test_a_deadline_on_the_short_road_names_the_rank_that_did_not_come() -> None:
    def work(c: Communicator) -> None:
        if c.rank == 0:
            with pytest.raises(CollectiveTimeoutError, match="rank 1, which did not take part") as caught:
                c.allreduce(np.ones(4), name="grad", timeout=0.2)
            assert caught.value.rank == 1
        else:
            with pytest.raises(AbortedError):
                c.recv(None, 0)  # ends when rank 0 gives up

    together(work, 2)


def test_what_is_not_plain_takes_the_general_road_and_means_the_same() -> None:
    def work(c: Communicator) -> None:
        express = c.core.express
        wide = np.ones((4, 6), np.float32)
        swapped = np.ones(3, np.dtype(np.float32).newbyteorder())
        for unusual in (wide[:, ::2], swapped, [1.0, 2.0], 3.0):
            assert express(unusual, None, "sum", None, 1.0, 1.0, None) is None
            assert (np.asarray(c.allreduce(unusual)) == 2 * np.asarray(unusual)).all()
        assert express(wide[:2], wide[1:3], "sum", None, 1.0, 1.0, None) is None  # overlap
        assert express(wide, np.ones((6, 4), np.float32), "sum", None, 1.0, 1.0, None) is None
        assert express(wide, wide, "SUM", None, 1.0, 1.0, None) is None
        assert c.allreduce(wide, "SUM", prescale=2).sum() == 96  # an integer scale

    together(work, 2)


def test_a_new_array_has_the_shape_and_dtype_of_the_input() -> None:
    def work(c: Communicator) -> None:
        for shape in ((), (1,), (2, 3), (1, 1, 4)):
            for dtype in ("float16", "float32", "float64", "int8", "uint64"):
                made = c.allreduce(np.ones(shape, dtype))
                assert type(made) is np.ndarray
                assert (made.shape, made.dtype) == (shape, np.dtype(dtype))
                assert (made == 2).all()
                assert made.flags.owndata
                assert made.flags.writeable

    together(work, 2)
