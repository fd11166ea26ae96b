"""What the ranks of the matrix test do: every cell against NumPy, every failing cell reported.

Each rank knows the inputs of all ranks (they follow from the cell and the rank), so each checks its own
result. Inputs are small whole numbers: sums and products of up to eight of them are exact in every dtype,
bfloat16 included, so that results can be compared for equality whatever the order of the reduction. Averages,
and a further input of random numbers, are compared within the precision of the dtype.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from spark_ring import world
from spark_ring._core import Buffer

DTYPES = ("float32", "float64", "int32", "int64", "float16", "bfloat16")
OPS = ("sum", "average", "min", "max", "product")
SEGMENT_BYTES = 1024
# Nothing, one element, a prime number of them, and several segments that end in the middle of one.
COUNTS = (0, 1, 257, 5 * SEGMENT_BYTES // 4 + 3)
PRECISION = {"float32": 2e-6, "float64": 1e-14, "float16": 2e-3, "bfloat16": 1.6e-2}


class BFloat16:
    """bfloat16 without a library: uint16 bits in NumPy, wrapped for the ring by address."""

    @staticmethod
    def encode(values: np.ndarray) -> np.ndarray:
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).reshape(values.shape)

    @staticmethod
    def decode(bits: np.ndarray) -> np.ndarray:
        return (bits.astype(np.uint32) << 16).view(np.float32).reshape(bits.shape)

    @staticmethod
    def buffer(bits: np.ndarray) -> Buffer:
        return Buffer.from_pointer(bits.ctypes.data, list(bits.shape), "bfloat16", bits)


def check_everything() -> dict[str, Any]:
    """Run all cells; return the failing ones, and what the communicator says of its place."""
    comm = world.current()
    failures = [*_allreduce_cells(), *_random_cells(), *_moving_cells(), *_scatter_cells()]
    comm.barrier()
    return {
        "failures": failures,
        "transport": comm.transport,
        "place": (comm.local_rank, comm.local_size, comm.cross_rank, comm.cross_size),
    }


def _allreduce_cells() -> Iterator[str]:
    for dtype in DTYPES:
        for count in COUNTS:
            for op in OPS:
                for in_place in (False, True):
                    cell = (
                        f"allreduce {dtype} count={count} {op} {'in place' if in_place else 'out of place'}"
                    )
                    inputs = [_whole_numbers(cell, rank, (count,), op) for rank in range(world.size())]
                    result = _allreduce(inputs[world.rank()], dtype, op, in_place, cell)
                    yield from _compare(cell, result, _expected(inputs, dtype, op), dtype, op == "average")


def _allreduce(values: np.ndarray, dtype: str, op: str, in_place: bool, cell: str) -> np.ndarray:
    comm = world.current()
    if dtype != "bfloat16":
        given = values.astype(dtype)
        before = given.copy()
        result = comm.allreduce(given, op, out=given if in_place else None)
        assert (result is given) == in_place, cell
        assert in_place or np.array_equal(given, before), f"{cell}: the input was changed"
        return result
    given = BFloat16.encode(values)
    target = given if in_place else np.empty_like(given)
    comm.core.allreduce([BFloat16.buffer(given)], [BFloat16.buffer(target)], op, "", 1.0, 1.0).wait()
    return BFloat16.decode(target)


def _expected(inputs: list[np.ndarray], dtype: str, op: str) -> np.ndarray:
    stack = np.stack(inputs)
    if op == "average":
        total = stack.sum(axis=0)
        return np.trunc(total / len(inputs)) if dtype.startswith("int") else total / len(inputs)
    reduce = {"sum": stack.sum, "min": stack.min, "max": stack.max, "product": stack.prod}[op]
    return np.asarray(reduce(axis=0))


def _random_cells() -> Iterator[str]:
    """Numbers that round: within the precision of the dtype, and of a size that takes many segments."""
    for dtype in ("float32", "float64"):
        cell = f"allreduce {dtype} of random numbers"
        inputs = [np.random.default_rng([7, rank]).standard_normal(100_003) for rank in range(world.size())]
        result = world.allreduce(inputs[world.rank()].astype(dtype))
        expected = np.sum([values.astype(dtype).astype(np.float64) for values in inputs], axis=0)
        if not np.allclose(result, expected, rtol=PRECISION[dtype], atol=8 * PRECISION[dtype]):
            yield f"{cell}: largest difference {np.abs(result - expected).max()}"


def _moving_cells() -> Iterator[str]:
    size, rank = world.size(), world.rank()
    for dtype in DTYPES[:-1]:
        for count in COUNTS:
            for root in {0, size - 1}:
                cell = f"broadcast {dtype} count={count} root={root}"
                mine = _whole_numbers(cell, rank, (count,), "sum").astype(dtype)
                given = mine.copy()
                assert world.broadcast(given, root) is given, cell
                expected = _whole_numbers(cell, root, (count,), "sum")
                yield from _compare(cell, given, expected, dtype, near=False)
            cell = f"allgather {dtype} count={count}, rows differ"
            # Rank r brings r % 3 rows more, so some bring none when count is 0.
            inputs = [_whole_numbers(cell, r, (count // 16 + r % 3, 2), "sum") for r in range(size)]
            gathered = world.allgather(inputs[rank].astype(dtype))
            yield from _compare(cell, gathered, np.concatenate(inputs), dtype, near=False)


def _scatter_cells() -> Iterator[str]:
    size, rank = world.size(), world.rank()
    for dtype in DTYPES[:-1]:
        for rows in (0, 1, size, 2 * size + 1, 331):
            for op in ("sum", "max"):
                cell = f"reducescatter {dtype} rows={rows} {op}"
                inputs = [_whole_numbers(cell, r, (rows, 3), op) for r in range(size)]
                result = world.reducescatter(inputs[rank].astype(dtype), op)
                expected = np.array_split(_expected(inputs, dtype, op), size)[rank]
                yield from _compare(cell, result, expected, dtype, near=False)


def _whole_numbers(cell: str, rank: int, shape: tuple[int, ...], op: str) -> np.ndarray:
    generator = np.random.default_rng([zlib.crc32(cell.encode()), rank])
    low, high = (1, 3) if op == "product" else (-8, 9)
    return generator.integers(low, high, shape).astype(np.float64)


def _compare(cell: str, result: np.ndarray, expected: np.ndarray, dtype: str, near: bool) -> Iterator[str]:
    if result.shape != expected.shape:
        yield f"{cell}: shape {result.shape}, expected {expected.shape}"
        return
    if dtype != "bfloat16" and result.dtype != np.dtype(dtype):
        yield f"{cell}: dtype {result.dtype}"
    values = result.astype(np.float64)
    if near and dtype in PRECISION:
        well = np.isclose(values, expected, rtol=PRECISION[dtype], atol=PRECISION[dtype])
    else:
        well = values == expected
    if not well.all():
        at = int(np.flatnonzero(~well.ravel())[0])
        yield (
            f"{cell}: {int((~well).sum())} of {well.size} elements are wrong, the first at {at}: "
            f"{values.ravel()[at]}, expected {expected.ravel()[at]}"
        )
