"""alltoall, gather, scatter, join and Adasum against NumPy: transport × world size × dtype × rows."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from threads import together

from spark_ring.communicator import Communicator
from spark_ring.errors import ConfigError, DataError, MismatchError

TRANSPORTS = ("shm", "tcp", "mixed")
SIZES = (1, 2, 3, 5, 8)
DTYPES = ("float32", "float64", "int8", "int64", "uint16", "bool", "float16")


def _settings(transport: str) -> dict[str, Any]:
    """Small segments, so that messages have several; ``mixed`` pretends two hosts."""
    if transport == "mixed":
        return {"segment_bytes": 256, "host_id": lambda rank: f"pretended-{rank % 2}"}
    return {"segment_bytes": 256, "transport": transport, "socket_buffer_bytes": 4096}


def _rows(rank: int, to: int, salt: int) -> int:
    """How many rows go from one rank to another: also none, and from some ranks none at all."""
    return 0 if (rank + salt) % 4 == 3 else (7 * rank + 3 * to + salt) % 5 * (1 + 20 * (salt % 2))


def _values(rank: int, rows: int, tail: tuple[int, ...], dtype: str) -> np.ndarray:
    values = np.random.default_rng(rank).integers(0, 100, (rows, *tail))
    return values.astype(dtype)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", SIZES)
def test_rows_arrive_where_they_belong(transport: str, size: int) -> None:
    """Also Case 76 (no elements), Case 79 (0-d), Case 80 (world of one)."""
    cases = [(dtype, tail, salt) for dtype in DTYPES for salt, tail in enumerate([(), (3,), (2, 5), (0,)])]

    def work(comm: Communicator) -> None:
        for dtype, tail, salt in cases:
            _check_alltoall(comm, dtype, tail, salt)
            _check_equal_parts(comm, dtype, tail, salt)
            _check_gather(comm, dtype, tail, salt)
            _check_scatter(comm, dtype, tail, salt)
        assert comm.allreduce(np.ones(3)).tolist() == [size] * 3  # everybody is still in step

    together(work, size, **_settings(transport))


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_rows_go_where_the_caller_wants_them(transport: str, size: int) -> None:
    """``out=``: ordinary and shared arrays; part of the input; too short on one rank; not like the input."""

    def work(comm: Communicator) -> None:
        mine = _values(comm.rank, 1000 + comm.rank, (3,), "float32")
        whole = comm.allgather(mine)
        for target in (np.empty_like(whole), comm.empty(whole.shape, "float32")):
            assert comm.allgather(mine, out=target) is target
            np.testing.assert_array_equal(target, whole)
        start = sum(1000 + r for r in range(comm.rank))
        assert comm.allgather(target[start : start + len(mine)], out=target) is target  # its own place
        np.testing.assert_array_equal(target, whole)

        splits = [300 + 10 * r for r in range(size)]
        dealt = _values(comm.rank, sum(splits), (2,), "int16")
        expected, counts = comm.alltoall(dealt, splits)
        found, again = comm.alltoall(dealt, splits, out=np.empty_like(expected))
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(again, counts)

        short = np.empty((len(whole) - (comm.rank == 0), 3), np.float32)
        if comm.rank == 0:
            with pytest.raises(DataError, match=rf"has {len(whole) - 1} rows and {len(whole)} came"):
                comm.allgather(mine, out=short)
        else:
            np.testing.assert_array_equal(comm.allgather(mine, out=short), whole)
        for wrong in (np.empty((len(whole), 2), np.float32), np.empty(whole.shape, np.float64), "text"):
            with pytest.raises(DataError, match="output must"):
                comm.allgather(mine, out=wrong)  # type: ignore[arg-type]
        assert comm.allreduce(np.ones(3)).tolist() == [size] * 3  # everybody is still in step

    together(work, size, **_settings(transport))


def test_large_results_come_in_memory_that_can_be_kept() -> None:
    """Larger than a huge page, kept while others come and go."""

    def work(comm: Communicator) -> None:
        kept = [comm.allgather(np.full(3 << 20, comm.rank + turn, np.uint8)) for turn in range(3)]
        for turn, result in enumerate(kept):
            assert (result.reshape(2, -1) == [[turn], [turn + 1]]).all()

    together(work, 2, transport="shm")


def _check_alltoall(comm: Communicator, dtype: str, tail: tuple[int, ...], salt: int) -> None:
    matrix = [[_rows(r, to, salt) for to in range(comm.size)] for r in range(comm.size)]
    inputs = [_values(r, sum(matrix[r]), tail, dtype) for r in range(comm.size)]
    found, counts = comm.alltoall(inputs[comm.rank], matrix[comm.rank])
    starts = [[sum(row[:to]) for to in range(comm.size)] for row in matrix]
    parts = [
        inputs[r][starts[r][comm.rank] : starts[r][comm.rank] + matrix[r][comm.rank]]
        for r in range(comm.size)
    ]
    assert counts.tolist() == [len(part) for part in parts]
    assert counts.dtype == np.int64
    _equal(found, np.concatenate(parts))


def _check_equal_parts(comm: Communicator, dtype: str, tail: tuple[int, ...], salt: int) -> None:
    inputs = [_values(r, comm.size * salt * 11, tail, dtype) for r in range(comm.size)]
    found = comm.alltoall(inputs[comm.rank], name="equal parts")
    _equal(
        found, np.concatenate([one[comm.rank * salt * 11 : (comm.rank + 1) * salt * 11] for one in inputs])
    )


def _check_gather(comm: Communicator, dtype: str, tail: tuple[int, ...], salt: int) -> None:
    root = salt % comm.size
    inputs = [_values(r, _rows(r, 1, salt), tail, dtype) for r in range(comm.size)]
    found = comm.gather(inputs[comm.rank], root)
    if comm.rank == root:
        _equal(found, np.concatenate(inputs))
    else:
        assert found is None
    scalars = comm.gather(np.array(comm.rank, dtype), root)
    if comm.rank == root:
        _equal(scalars, np.arange(comm.size).astype(dtype))


def _check_scatter(comm: Communicator, dtype: str, tail: tuple[int, ...], salt: int) -> None:
    root = (salt + 1) % comm.size
    splits = [_rows(root, to, salt) for to in range(comm.size)]
    whole = _values(root, sum(splits), tail, dtype)
    found = comm.scatter(whole if comm.rank == root else None, root, splits if comm.rank == root else None)
    start = sum(splits[: comm.rank])
    _equal(found, whole[start : start + splits[comm.rank]])
    plain = _values(root, 2 * comm.size + 1, tail, dtype)
    _equal(
        comm.scatter(plain if comm.rank == root else None, root), np.array_split(plain, comm.size)[comm.rank]
    )


def _equal(found: Any, expected: np.ndarray) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert np.array_equal(found, expected)
    found.fill(0)  # the result is ours to change


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_adasum_equals_its_formula(transport: str, size: int) -> None:
    """Maleki et al. 2020 as a binary tree over the ranks, also for sizes that are no power of two."""
    rng = np.random.default_rng(0)
    cases = {
        dtype: [rng.standard_normal((37, 5)).astype(dtype) for _ in range(size)]
        for dtype in ("float32", "float64", "float16")
    }
    cases["zeros"] = [np.zeros(9, np.float32) if r % 2 else np.full(9, 2.0, np.float32) for r in range(size)]
    cases["alike"] = [np.full(4, 3.0, np.float32)] * size

    def work(comm: Communicator) -> list[bytes]:
        bits = []
        for name, inputs in cases.items():
            found = comm.allreduce(inputs[comm.rank], "adasum", name=name)
            wide = [one.astype(np.float64) for one in inputs]
            tolerance = 2e-2 if found.dtype == np.float16 else 1e-5
            np.testing.assert_allclose(
                found.astype(np.float64), _adasum(wide), rtol=tolerance, atol=tolerance
            )
            scaled = comm.allreduce(inputs[comm.rank], "adasum", prescale=0.5, postscale=2.0)
            np.testing.assert_allclose(scaled, found, rtol=tolerance, atol=tolerance)
            bits.append(found.tobytes())
        grouped = comm.grouped_allreduce([cases["alike"][0], cases["float32"][comm.rank]], "adasum")
        assert grouped[1].tobytes() == bits[0]
        np.testing.assert_allclose(grouped[0], cases["alike"][0])
        return bits

    results = together(work, size, **_settings(transport))
    assert all(bits == results[0] for bits in results), "ranks differ"


def _adasum(values: list[np.ndarray]) -> np.ndarray:
    values = [one.copy() for one in values]
    stride = 1
    while stride < len(values):
        for i in range(0, len(values) - stride, 2 * stride):
            a, b = values[i], values[i + stride]
            aa, bb, ab = (a * a).sum(), (b * b).sum(), (a * b).sum()
            left = 1 - ab / (2 * aa) if aa else 1.0
            right = 1 - ab / (2 * bb) if bb else 1.0
            values[i] = left * a + right * b
        stride *= 2
    return values[0]


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_ranks_that_joined_add_nothing(transport: str, size: int) -> None:
    """Case 58, 61 and 62: rank r has r + 1 batches; the others go on, small tensors fused, all dtypes."""
    ops = {"sum": 0, "average": 0, "min": np.inf, "max": -np.inf, "product": 1}

    def work(comm: Communicator) -> int:
        for step in range(comm.rank + 1):
            working = [r for r in range(size) if r >= step]
            handles = [
                comm.allreduce_async(np.full(3 + i, comm.rank + 1, dtype), op, name=f"{step}.{op}.{dtype}")
                for op in ops
                for i, dtype in enumerate(("float32", "int64", "float16", "uint8"))
            ]
            results = iter([handle.wait(30) for handle in handles])
            values = np.array([r + 1 for r in working])
            expected = {
                "sum": values.sum(),
                "average": values.sum() / size,
                "min": values.min(),
                "max": values.max(),
                "product": values.prod(),
            }
            for op in ops:
                for dtype in ("float32", "int64", "float16", "uint8"):
                    want = int(expected[op]) if dtype in ("int64", "uint8") else expected[op]
                    np.testing.assert_allclose(next(results), want, rtol=1e-3)
            _others_while_some_have_joined(comm, working)
        last = comm.join(timeout=60)
        assert comm.allreduce(np.ones(1)).tolist() == [size], "the ring is usable after a join"
        assert comm.join(timeout=60) in range(size)  # and so is join
        return last

    assert set(together(work, size, **_settings(transport))) == {size - 1}


def _others_while_some_have_joined(comm: Communicator, working: list[int]) -> None:
    rank = comm.rank
    gathered = comm.allgather(np.full((2, 2), rank))
    assert gathered.tolist() == [[r, r] for r in working for _ in range(2)]
    root = working[-1]
    assert comm.broadcast(np.array([float(rank)]), root).tolist() == [float(root)]
    mine = comm.reducescatter(np.ones((comm.size, 3), np.float32))
    assert mine.tolist() == [[float(len(working))] * 3]
    found = comm.gather(np.array([rank]), root)
    assert found is None if rank != root else found.tolist() == working
    part = comm.scatter(np.arange(comm.size) if rank == root else None, root)
    assert part.tolist() == [rank]
    rows, counts = comm.alltoall(np.full(len(working), rank), [int(r in working) for r in range(comm.size)])
    assert rows.tolist() == working
    assert counts.tolist() == [int(r in working) for r in range(comm.size)]
    comm.barrier()
    assert comm.allreduce(np.array(rank == root), "max").tolist() is True
    if len(working) < comm.size:
        with pytest.raises(MismatchError, match=r"rank 0 has joined.*nothing to send as the root"):
            comm.broadcast(np.zeros(2), 0)
        with pytest.raises(MismatchError, match="rank 0 has joined"):
            comm.allreduce(np.ones(2), "max", prescale=-1.0)


def test_join_names_the_last_and_outlives_the_deadline() -> None:
    """The ranks that go on may do so for longer than a collective may take."""
    behind = threading.Event()

    def work(comm: Communicator) -> int:
        if comm.rank == 1:
            for _ in range(8):
                behind.wait(0.2)
                comm.allreduce(np.ones(4))
        return comm.join()

    assert together(work, 2, collective_timeout=0.8) == [1, 1]


def test_what_cannot_be_dealt_is_refused_by_name() -> None:
    """On the rank that asks, before anything is sent."""

    def work(comm: Communicator) -> None:
        with pytest.raises(ConfigError, match="3 rows cannot be divided"):
            comm.alltoall(np.ones(3))
        with pytest.raises(ConfigError, match=r"2 numbers of rows.*found 1 with the sum 3"):
            comm.alltoall(np.ones(3), [3])
        with pytest.raises(ConfigError, match="negative"):
            comm.alltoall(np.ones(3), [4, -1])
        with pytest.raises(DataError, match="splits must be whole numbers"):
            comm.alltoall(np.ones(3), [1.5, 1.5])
        with pytest.raises(DataError, match="0-d"):
            comm.alltoall(np.array(1.0))
        with pytest.raises(ConfigError, match="root 2 is not a rank"):
            comm.gather(np.ones(1), 2)
        with pytest.raises(ConfigError, match="adasum needs a floating dtype, found int64"):
            comm.allreduce(np.ones(2, np.int64), "adasum")
        with pytest.raises(ConfigError, match="no reducescatter"):
            comm.reducescatter(np.ones(2), "adasum")
        assert comm.alltoall(np.arange(2)).tolist() == [comm.rank] * 2

    together(work, 2)


def test_disagreement_about_rows_names_both_sides() -> None:
    """With splits on one rank only, other tails, another root: an error everywhere, and the ring goes on."""

    def work(comm: Communicator) -> None:
        with pytest.raises(MismatchError, match="with splits"):
            comm.alltoall(np.ones(2), [1, 1] if comm.rank else None, name="a")
        with pytest.raises(MismatchError, match=r"\[\*, 3\].*\[\*, 4\]"):
            comm.gather(np.ones((1, 3 + comm.rank)), name="g")
        with pytest.raises(MismatchError, match=r"from root 0.*from root 1"):
            comm.scatter(np.ones(2), root=comm.rank, name="s")
        with pytest.raises(MismatchError, match=r"\[4\].*\[2\]"):
            comm.alltoall(np.ones(4 - 2 * comm.rank), name="t")
        assert comm.alltoall(np.arange(2)).tolist() == [comm.rank] * 2

    together(work, 2)
