"""Asynchronous handles, matching by name, groups and fusion."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from threads import together

from spark_ring.communicator import Communicator
from spark_ring.config import Settings
from spark_ring.errors import CommunicatorError, ConfigError, DataError

TRANSPORTS = pytest.mark.parametrize("transport", ["shm", "tcp"])


@TRANSPORTS
def test_a_handle_gives_its_result_as_often_as_asked(transport: str) -> None:
    def work(comm: Communicator) -> None:
        target = np.empty(5)
        reduced = comm.allreduce_async(np.arange(5.0), out=target)
        gathered = comm.allgather_async(np.full((comm.rank + 1, 2), comm.rank))
        scattered = comm.reducescatter_async(np.ones((4, 2)))
        moved = comm.broadcast_async(target.copy() if comm.rank else np.arange(5.0))
        assert reduced.wait() is target
        assert reduced.wait() is target
        assert reduced.poll()
        assert gathered.wait() is gathered.wait()
        assert gathered.wait().tolist() == [[0, 0], [1, 1], [1, 1]]
        assert scattered.wait().tolist() == [[2.0, 2.0], [2.0, 2.0]]
        assert moved.wait().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
        assert target.tolist() == [0.0, 2.0, 4.0, 6.0, 8.0]

    together(work, 2, transport=transport)


@TRANSPORTS
def test_a_callback_comes_once_the_result_is_there(transport: str) -> None:
    def work(comm: Communicator) -> None:
        called = threading.Event()
        handle = comm.allreduce_async(np.ones(10))
        handle.add_done_callback(called.set)
        assert called.wait(20)
        assert handle.poll()
        late = threading.Event()
        handle.add_done_callback(late.set)
        assert late.wait(20)
        assert handle.wait().tolist() == [2.0] * 10

    together(work, 2, transport=transport)


@TRANSPORTS
def test_a_callback_may_start_but_not_wait(transport: str) -> None:
    """It runs on the thread that drives the ring: waiting there would wait for itself."""

    def work(comm: Communicator) -> None:
        seen: list[object] = []
        called = threading.Event()

        def callback() -> None:
            for refused in (lambda: comm.allreduce(np.ones(3), name="inner"), comm.close):
                try:
                    refused()
                except ConfigError as error:
                    seen.append(str(error))
            seen.append(comm.allreduce_async(np.ones(3), name="started inside"))
            called.set()

        comm.allreduce_async(np.ones(10)).add_done_callback(callback)
        assert called.wait(20)
        assert "inside a done-callback" in str(seen[0])
        assert "inside a done-callback" in str(seen[1])
        assert seen[2].wait().tolist() == [2.0] * 3  # type: ignore[attr-defined]

    together(work, 2, transport=transport)


def test_the_last_reference_may_go_inside_a_callback() -> None:
    """The communicator's own thread cannot wait for its own end; another one does."""

    def work(comm: Communicator) -> None:
        called = threading.Event()
        own = Communicator.connect(0, 1, lambda text: [text], b"secret", Settings())
        held = [own]
        handle = own.allreduce_async(np.ones(3))
        del own

        def callback() -> None:
            held.clear()
            called.set()

        handle.add_done_callback(callback)
        del handle
        assert called.wait(20)

    together(work, 1)


@TRANSPORTS
@pytest.mark.parametrize("size", [2, 3, 4])
def test_named_operations_match_whatever_the_order_on_each_rank(transport: str, size: int) -> None:
    """Gradients become ready in another order on every rank."""

    def work(comm: Communicator) -> None:
        names = [f"grad.{index}" for index in range(40)]
        order = np.random.default_rng(comm.rank).permutation(len(names))
        handles = {i: comm.allreduce_async(np.full(i + 1, float(i)), name=names[i]) for i in order.tolist()}
        for i, handle in handles.items():
            assert handle.wait(30).tolist() == [float(i * size)] * (i + 1)

    together(work, size, transport=transport)


@TRANSPORTS
def test_kinds_of_operations_in_two_orders_match_by_name(transport: str) -> None:
    """Case 68: allreduce "a" then allgather "b" on one rank, the other order on another."""

    def work(comm: Communicator) -> None:
        submit = {
            "a": lambda: comm.allreduce_async(np.ones(3), name="a"),
            "b": lambda: comm.allgather_async(np.full(2, comm.rank), name="b"),
        }
        handles = {name: submit[name]() for name in ("ab" if comm.rank == 0 else "ba")}
        assert handles["a"].wait(30).tolist() == [2.0] * 3
        assert handles["b"].wait(30).tolist() == [0, 0, 1, 1]

    together(work, 2, transport=transport)


@TRANSPORTS
def test_different_operations_without_names_are_named_on_both_ranks(transport: str) -> None:
    """Case 68: each waits for a partner that never comes; the deadline's error tells what the other has."""

    def work(comm: Communicator) -> None:
        verb = comm.allreduce if comm.rank == 0 else comm.allgather
        with pytest.raises(CommunicatorError) as caught:
            verb(np.ones(3))
        assert "allreduce" in str(caught.value)
        assert "allgather" in str(caught.value)

    together(work, 2, transport=transport, collective_timeout=1.0)


@TRANSPORTS
@pytest.mark.parametrize("in_place", [True, False])
def test_a_group_is_reduced_as_one(transport: str, in_place: bool) -> None:
    shapes = [(), (3,), (2, 5), (0, 4), (1000,)]

    def work(comm: Communicator) -> None:
        arrays = [np.full(shape, index + 1.0, np.float32) for index, shape in enumerate(shapes)]
        results = comm.grouped_allreduce(arrays, "average", out=arrays if in_place else None, name="group")
        for index, (given, result) in enumerate(zip(arrays, results, strict=True)):
            assert (result is given) == in_place
            assert result.shape == shapes[index]
            assert (result == index + 1).all()

    together(work, 3, transport=transport)


def test_a_group_needs_as_many_outputs_as_inputs() -> None:
    def work(comm: Communicator) -> None:
        with pytest.raises(DataError, match="2 inputs and 1 outputs"):
            comm.grouped_allreduce([np.ones(1), np.ones(1)], out=[np.ones(1)])

    together(work, 1)


@TRANSPORTS
def test_many_small_tensors_are_fused_and_no_bucket_is_too_large(transport: str) -> None:
    """Case 62: mixed dtypes, right values, and the counts show that fusion happened."""
    tensors, fusion_bytes = 400, 16 * 1024
    dtypes = ("float32", "float64", "int32", "float16")

    def work(comm: Communicator) -> dict:
        arrays = [np.full(7 + index % 90, index % 50, dtypes[index % 4]) for index in range(tensors)]
        gate = np.ones(16 << 20, np.float32)
        comm.barrier()
        before = comm.statistics()
        # While the gate is under way, the small ones gather behind it.
        handles = [comm.allreduce_async(gate, out=gate, name="gate")]
        handles += [comm.allreduce_async(array, name=f"t{index}") for index, array in enumerate(arrays)]
        for array, handle in zip(arrays, handles[1:], strict=True):
            result = handle.wait(30)
            assert result.dtype == array.dtype
            assert (result == array * 3).all()
        after = comm.statistics()
        counts = {name: after[name] - before[name] for name in ("fused_tensors", "buckets")}
        return {**counts, "bytes": sum(array.nbytes for array in arrays)}

    for counts in together(work, 3, transport=transport, fusion_bytes=fusion_bytes):
        assert counts["fused_tensors"] > tensors / 2, counts
        assert counts["bytes"] / fusion_bytes < counts["buckets"] < tensors / 4, counts
    for counts in together(work, 3, transport=transport, fusion_bytes=0):
        assert counts["fused_tensors"] == 0, counts
        assert counts["buckets"] >= tensors, counts
