"""The table of reductions: the page says what the ring says, and every cell is right or refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from threads import together

from spark_ring import _core
from spark_ring.arrays import SUPPORTED
from spark_ring.communicator import Communicator
from spark_ring.errors import ConfigError
from spark_ring.ops import ReduceOp

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
OPS = [op.value for op in ReduceOp]
NUMPY = [dtype for dtype in SUPPORTED if dtype != "bfloat16"]  # which NumPy lacks; ring_cells has it


def _table() -> dict[str, dict[str, bool]]:
    rows = [line.strip("|").split("|") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    header = next(row for row in rows if row[0].strip() == "dtype")
    names = [cell.strip() for cell in header[1:]]
    return {
        row[0].strip(): {n: cell.strip() == "yes" for n, cell in zip(names, row[1:], strict=True)}
        for row in rows
        if row[0].strip() in SUPPORTED
    }


def test_the_page_says_what_the_ring_says() -> None:
    table = _table()
    assert set(table) == set(SUPPORTED)
    for dtype, row in table.items():
        assert row.pop("scales") == (not _core.refused_reduction(dtype, "max", True)), dtype
        assert row == {op: not _core.refused_reduction(dtype, op, False) for op in OPS}, dtype


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_every_cell_is_right_or_refused(transport: str, size: int) -> None:
    """Also Case 71: the average of integers is the exact sum divided by the ranks, toward zero."""
    inputs = {
        dtype: [
            np.random.default_rng(r).integers(0 if dtype[0] in "ub" else -4, 2 if dtype == "bool" else 5, 41)
            for r in range(size)
        ]
        for dtype in NUMPY
    }

    def work(comm: Communicator) -> None:
        for dtype in NUMPY:
            mine = inputs[dtype][comm.rank].astype(dtype)
            for op in OPS:
                if _core.refused_reduction(dtype, op, False):
                    with pytest.raises(ConfigError):
                        comm.allreduce(mine, op)
                    continue
                if op == "adasum":
                    continue  # has a reference of its own in test_exchanges.py
                found = comm.allreduce(mine, op)
                assert found.dtype == np.dtype(dtype)
                np.testing.assert_allclose(
                    found.astype(float),
                    _expected(inputs[dtype], dtype, op),
                    rtol=1e-2,
                    err_msg=f"{dtype} {op}",
                )
        assert comm.allreduce(np.ones(1)).tolist() == [size]  # nothing of a refused one was sent

    together(work, size, transport=transport)


def _expected(inputs: list[np.ndarray], dtype: str, op: str) -> np.ndarray:
    stacked = np.stack(inputs)
    if op in ("min", "max"):
        return getattr(stacked, op)(axis=0)
    if op == "product":
        return stacked.prod(axis=0)  # at most 64: nothing wraps
    total = stacked.sum(axis=0)
    if op == "sum":
        return total
    return np.trunc(total / len(inputs)) if np.dtype(dtype).kind in "iu" else total / len(inputs)


def test_integers_wrap() -> None:
    def work(comm: Communicator) -> None:
        assert comm.allreduce(np.array([200], np.uint8)).tolist() == [(200 * 3) % 256]
        assert comm.allreduce(np.array([2**31 - 1], np.int32)).tolist() == [
            int(np.int64(3 * (2**31 - 1)).astype(np.int32))
        ]
        assert comm.allreduce(np.array([120], np.int8), "average").tolist() == [120]

    together(work, 3)
