"""More than 2^31 elements and more than 2 GiB, for real: every collective, both transports. Case 77."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from threads import together

from spark_ring.communicator import Communicator

COUNT = (1 << 31) + 6  # elements of one byte
MARKS = [0, 1, (1 << 31) - 1, 1 << 31, COUNT - 1]  # where values are; zeros elsewhere


def _marked(comm: Communicator, count: int = COUNT) -> np.ndarray:
    data = np.zeros(count, np.int8)
    for mark in MARKS:
        data[mark * count // COUNT] = 10 * (comm.rank + 1) + MARKS.index(mark)
    return data


def _of(rank: int) -> list[int]:
    return [10 * (rank + 1) + index for index in range(len(MARKS))]


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_counts_and_bytes_beyond_31_bits(transport: str) -> None:
    def work(comm: Communicator) -> None:
        data = _marked(comm)
        comm.allreduce(data, "sum", out=data)
        assert data[MARKS].tolist() == [a + b for a, b in zip(_of(0), _of(1), strict=True)]
        assert not data[2:1000].any()
        assert not data[-(1 << 20) : -1000].any()

        data[MARKS] = _of(comm.rank)
        comm.broadcast(data, root=1)
        assert data[MARKS].tolist() == _of(1)

        data[MARKS] = _of(comm.rank)
        half = comm.reducescatter(data)
        assert half.size == COUNT // 2
        found = {
            mark: int(half[mark - comm.rank * half.size]) for mark in MARKS if mark // half.size == comm.rank
        }
        assert found == {mark: _of(0)[i] + _of(1)[i] for i, mark in enumerate(MARKS) if mark in found}
        assert len(found) == (2 if comm.rank == 0 else 3)
        del half

        dealt, counts = comm.alltoall(data, [COUNT - 5, 5] if comm.rank == 0 else [5, COUNT - 5])
        assert counts.tolist() == ([COUNT - 5, 5] if comm.rank == 0 else [5, COUNT - 5])
        assert dealt.size == COUNT
        assert dealt[0] == (10 if comm.rank == 0 else 0)
        assert dealt[-1] == (0 if comm.rank == 0 else 24)
        del dealt, data
        gc.collect()

        mine = _marked(comm, (1 << 30) + 1 + comm.rank)  # together more than 2 GiB
        whole = comm.allgather(mine)
        assert whole.size == (1 << 31) + 3
        assert whole[0] == 11
        assert whole[(1 << 30) + 1] == 21
        assert whole[-1] == 24

    together(work, 2, transport=transport)
