"""Arrays in memory that ranks share: the same bits as with ordinary ones; made, full, freed, outlived."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from threads import together

from spark_ring.communicator import Communicator
from spark_ring.errors import ClosedError, CommunicatorError, ConfigError

TRANSPORTS = ("shm", "mixed", "tcp")
PAGE = 4096


def _settings(transport: str, **more: Any) -> dict[str, Any]:
    """Small segments, so that arrays have several blocks; ``mixed`` pretends two hosts."""
    if transport == "mixed":
        return {"segment_bytes": 1024, "host_id": lambda rank: f"pretended-{rank % 2}", **more}
    return {"segment_bytes": 1024, "transport": transport, **more}


def _values(rank: int, elements: int, dtype: str, salt: int) -> np.ndarray:
    values = np.random.default_rng([rank, salt]).integers(0, 50, elements)
    return values.astype(dtype)


def _made(comm: Communicator, values: np.ndarray, shared: bool) -> np.ndarray:
    made = comm.empty(values.shape, values.dtype) if shared else np.empty_like(values)
    made[...] = values
    return made


def _shares(rank: int, case: int) -> tuple[bool, bool]:
    """Whether this rank's input and its output are shared arrays, in one of many mixtures."""
    return [(True, True), (rank % 2 == 0,) * 2, (rank % 2 == 1, True), (True, rank != 0), (False, True)][case]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_sums_are_the_same_wherever_the_arrays_are(transport: str, size: int) -> None:
    """Every mixture of shared and ordinary, in place and not, on sizes around blocks and slices."""

    def work(comm: Communicator) -> None:
        for salt, elements in enumerate([0, 1, 15, 2500, 9001, 40_003]):
            for dtype, op in [
                ("float32", "average"),
                ("float16", "sum"),
                ("int64", "average"),
                ("bool", "max"),
            ]:
                mine = _values(comm.rank, elements, dtype, salt)
                expected = comm.allreduce(mine, op)
                for case in range(5):
                    source_shared, target_shared = _shares(comm.rank, case)
                    source = _made(comm, mine, source_shared)
                    target = _made(comm, mine, target_shared)
                    assert comm.allreduce(source, op, out=target) is target
                    np.testing.assert_array_equal(target, expected)
                    np.testing.assert_array_equal(source, mine)
                    comm.allreduce(source, op, out=source)
                    np.testing.assert_array_equal(source, expected)

    together(work, size, **_settings(transport))


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_everything_else_takes_shared_arrays_too(transport: str, size: int) -> None:
    def work(comm: Communicator) -> None:
        for case, rows in enumerate([12, 13 * size, 999 * size]):
            mine = np.stack([_values(comm.rank, 5, "float64", row) for row in range(rows)])
            source = _made(comm, mine, _shares(comm.rank, case)[0])
            even = rows // size * size
            np.testing.assert_array_equal(comm.reducescatter(source), comm.reducescatter(mine))
            own = slice(0, rows - comm.rank)  # ranks differ in their rows
            np.testing.assert_array_equal(comm.allgather(source[own]), comm.allgather(mine[own]))
            root = case % size
            np.testing.assert_array_equal(
                comm.broadcast(_made(comm, mine, True), root), comm.broadcast(mine.copy(), root)
            )
            for a, b in zip(comm.alltoall(source[:even]), comm.alltoall(mine[:even]), strict=True):
                np.testing.assert_array_equal(a, b)
            splits = [3 + r for r in range(size)]
            splits[-1] += rows - sum(splits)
            for a, b in zip(comm.alltoall(source, splits), comm.alltoall(mine, splits), strict=True):
                np.testing.assert_array_equal(a, b)
            np.testing.assert_array_equal(source, mine)

    together(work, size, **_settings(transport))


@pytest.mark.parametrize("size", [2, 3])
def test_many_views_of_one_array_are_reduced_together(size: int) -> None:
    """Also more tensors than a notice has room for, and groups of which some are shared and some are not."""

    def work(comm: Communicator) -> None:
        extents = np.random.default_rng(1).integers(0, 90, 700)
        flat = comm.empty(int(extents.sum()), "float32")
        flat[:] = np.random.default_rng(comm.rank).standard_normal(flat.size, np.float32)
        views = np.split(flat, np.cumsum(extents)[:-1])
        for some in (views, views[:161], [*views[:50], views[50].copy(), *views[51:60]]):
            plain = [view.copy() for view in some]
            expected = comm.grouped_allreduce(plain)
            comm.grouped_allreduce(some, out=some)
            for found, wanted in zip(some, expected, strict=True):
                np.testing.assert_array_equal(found, wanted)

    together(work, size, **_settings("shm", fusion_bytes=1 << 20))


def test_nothing_is_copied_when_all_arrays_are_shared() -> None:
    def work(comm: Communicator) -> list[str]:
        names = []
        for shared in (True, comm.rank == 0, False):
            array = _made(comm, np.ones(50_000, np.float32), shared)
            comm.statistics(reset=True)
            comm.allreduce(array, out=array)
            names += [line["algorithm"] for line in comm.statistics()["table"]]
        return names

    assert together(work, 2, transport="shm") == [["slices in place", "two ranks", "two ranks"]] * 2
    for rank, names in enumerate(together(work, 3, transport="shm")):
        assert names == ["slices in place", "slices in place" if rank == 0 else "slices", "slices"]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plan=st.lists(st.tuples(st.booleans(), st.integers(0, 5 * PAGE), st.integers(0, 30)), max_size=60))
def test_arrays_never_overlap_and_room_comes_back(plan: list[tuple[bool, int, int]]) -> None:
    """Random making and dropping; what was dropped is there again, as zeros."""
    room = 24 * PAGE

    def work(comm: Communicator) -> None:
        alive: list[tuple[int, np.ndarray]] = []
        for turn, (make, extent, which) in enumerate(plan):
            if make or not alive:
                try:
                    array = comm.empty(extent, "uint8")
                except ConfigError:
                    continue
                assert not array.any()
                array[:] = turn + 1
                alive.append((turn + 1, array))
            else:
                alive.pop(which % len(alive))
            for mark, array in alive:
                assert (array == mark).all()
        alive.clear()
        array = None
        assert comm.empty(room, "uint8").sum() == 0  # everything in one piece again

    together(work, 2, transport="shm", arena_bytes=room)


def test_more_than_there_is_is_refused_and_says_how_much_is_taken() -> None:
    def work(comm: Communicator) -> None:
        kept = comm.empty((3, PAGE), "uint8")
        with pytest.raises(
            ConfigError, match=rf"no {6 * PAGE} contiguous bytes.*{8 * PAGE} bytes, of which {3 * PAGE}"
        ):
            comm.empty(6 * PAGE, "uint8")
        assert comm.empty(5 * PAGE, "uint8").size == 5 * PAGE
        del kept

    together(work, 2, transport="shm", arena_bytes=8 * PAGE)


def test_arrays_outlive_their_communicator() -> None:
    def work(comm: Communicator) -> np.ndarray:
        array = comm.empty(1000, "int32")
        array[:] = comm.rank
        comm.allreduce(array, out=array)
        comm.close()
        with pytest.raises(ClosedError, match="closed"):
            comm.empty(1)
        return array

    for array in together(work, 3, transport="shm"):
        assert (array == 3).all()
        array += 1  # its memory is still there to be written
    del array
    gc.collect()


def test_nothing_is_made_after_a_failure() -> None:
    """A late peer may still write where it was told to."""

    def work(comm: Communicator) -> None:
        array = comm.empty(50_000)
        comm.barrier()
        if comm.rank == 1:
            comm.abort("enough")
        with pytest.raises(CommunicatorError, match="enough"):
            comm.allreduce(array, out=array)
        with pytest.raises(CommunicatorError, match="enough"):
            comm.empty(1)

    together(work, 2, transport="shm")


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_where_nothing_is_shared_arrays_are_ordinary(transport: str) -> None:
    def work(comm: Communicator) -> None:
        array = comm.empty((2, 3), "float64")
        assert (array.shape, array.dtype) == ((2, 3), np.float64)
        assert not array.any()
        assert array.flags.carray
        assert comm.empty((0, 3)).shape == (0, 3)
        assert comm.empty(()).shape == ()
        array[:] = 1
        assert (comm.allreduce(array, out=array) == comm.size).all()

    together(work, 2, transport=transport, arena_bytes=0 if transport == "shm" else PAGE)
    together(work, 1, transport=transport)


def test_absurd_room_is_refused() -> None:
    with pytest.raises(ConfigError, match="arena_bytes"):
        together(lambda comm: None, 2, transport="shm", arena_bytes=1 << 62)


RANK = """
import os, resource, sys, time
from dataclasses import replace
import numpy as np
from spark_ring.communicator import Communicator
from spark_ring.config import Settings
rank, folder = int(sys.argv[1]), sys.argv[2]
def exchange(text):
    with open(f"{folder}/{rank}.part", "w") as file: file.write(text)
    os.rename(f"{folder}/{rank}.part", f"{folder}/{rank}")
    while not all(os.path.exists(f"{folder}/{r}") for r in range(2)): time.sleep(0.01)
    return [open(f"{folder}/{r}").read() for r in range(2)]
if rank == 1:
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
with Communicator.connect(rank, 2, exchange, b"s" * 32, Settings()) as comm:
    array = comm.empty(1 << 20)
    array[:] = rank + 1
    comm.allreduce(array, out=array)
    assert (array == 3).all()
    print(comm.transport, comm.statistics()["table"][0]["algorithm"])
"""


def test_a_rank_without_room_for_the_addresses_keeps_shared_memory(tmp_path: Path) -> None:
    """One rank's limit of address space is below what the others map."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(r), str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        for r in range(2)
    ]
    for rank in ranks:
        out, _ = rank.communicate(timeout=60)
        assert rank.returncode == 0
        assert out.split(maxsplit=1) == ["shm", "two ranks\n"]
