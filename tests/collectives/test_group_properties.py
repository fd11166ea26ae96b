"""Random operations on random groups from several threads of every rank, against NumPy, with tiny segments
and socket buffers; the same bits on every rank and from run to run; disagreements in between.
"""

from __future__ import annotations

import hashlib
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from threads import together

from spark_ring.communicator import Communicator
from spark_ring.errors import MismatchError

SIZE = 4
DTYPES = ["float16", "float32", "float64", "int8", "int32", "int64", "uint8", "uint64"]
VERBS = ["allreduce", "grouped", "broadcast", "allgather", "reducescatter", "alltoall", "gather", "disagree"]

OPERATION = st.fixed_dictionaries(
    {
        "verb": st.sampled_from(VERBS),
        "dtype": st.sampled_from(DTYPES),
        "op": st.sampled_from(["sum", "min", "max"]),
        "rows": st.integers(0, 30),
        "columns": st.integers(1, 5),
        "root": st.integers(0, SIZE - 1),
        "seed": st.integers(0, 2**20),
    }
)
# Of each group: its members in their order, and what each of its threads does.
GROUP = st.tuples(
    st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=SIZE, unique=True),
    st.lists(st.lists(OPERATION, min_size=1, max_size=5), min_size=1, max_size=2),
)


def _input(step: dict[str, Any], rank: int, more_rows: int = 0) -> np.ndarray:
    """Small integers, so that sums are exact in every dtype and in every order."""
    generator = np.random.default_rng([step["seed"], rank])
    return generator.integers(0, 8, (step["rows"] + more_rows, step["columns"])).astype(step["dtype"])


def _reduced(step: dict[str, Any], inputs: list[np.ndarray]) -> np.ndarray:
    stack = np.stack(inputs)
    if not stack.size:
        return stack[0]
    reduced: np.ndarray = getattr(stack, step["op"])(axis=0)
    return reduced.astype(stack.dtype)


def _start(comm: Communicator, step: dict[str, Any], name: str) -> tuple[Any, Any]:
    """Start an operation; return its handle and what NumPy gives."""
    size, rank, verb = comm.size, comm.rank, step["verb"]
    inputs = [_input(step, each) for each in range(size)]
    uneven = [_input(step, each, more_rows=each) for each in range(size)]
    root = step["root"] % size
    if verb == "allreduce":
        return comm.allreduce_async(inputs[rank], step["op"], name=name), _reduced(step, inputs)
    if verb == "grouped":
        handle = comm.grouped_allreduce_async([inputs[rank], inputs[rank][:1]], step["op"], name=name)
        return handle, [_reduced(step, inputs), _reduced(step, [one[:1] for one in inputs])]
    if verb == "broadcast":
        return comm.broadcast_async(inputs[rank].copy(), root, name=name), inputs[root]
    if verb == "allgather":
        return comm.allgather_async(uneven[rank], name=name), np.concatenate(uneven)
    if verb == "reducescatter":
        handle = comm.reducescatter_async(inputs[rank], step["op"], name=name)
        return handle, np.array_split(_reduced(step, inputs), size)[rank]
    if verb == "alltoall":
        parts = [np.array_split(one, size) for one in uneven]
        splits = [len(part) for part in parts[rank]]
        handle = comm.alltoall_async(uneven[rank], splits, name=name)
        return handle, np.concatenate([part[rank] for part in parts])
    if verb == "gather":
        handle = comm.gather_async(uneven[rank], root, name=name)
        return handle, np.concatenate(uneven) if rank == root else None
    shape = (3, 2 + (rank == size - 1)) if size > 1 else (3, 2)  # the last rank disagrees
    return comm.allreduce_async(np.ones(shape), name=name), MismatchError if size > 1 else np.ones((3, 2))


def _value(got: Any) -> Any:
    return got[0] if isinstance(got, tuple) else got  # alltoall also tells the splits


def _check(comm: Communicator, step: dict[str, Any], handle: Any, expected: Any) -> None:
    if expected is MismatchError:
        with pytest.raises(MismatchError) as caught:
            handle.wait(30)
        assert "[3, 2]" in str(caught.value), step
        assert "[3, 3]" in str(caught.value), step
        return
    result = _value(handle.wait(30))
    if expected is None:
        return
    for got, want in zip(
        *([[result], [expected]] if not isinstance(expected, list) else [result, expected]), strict=True
    ):
        assert got.dtype == want.dtype, step
        assert np.array_equal(got, want), (comm.rank, step, got, want)


def _run_thread(comm: Communicator, number: int, script: list[dict[str, Any]], errors: list[Any]) -> None:
    """Each rank starts a thread's operations in an order of its own, and waits for them in another."""
    try:
        generator = np.random.default_rng([number, comm.rank, len(script)])
        started = []
        for place in generator.permutation(len(script)):
            step = script[place]
            started.append((step, *_start(comm, step, f"thread {number}.{place}")))
        for place in generator.permutation(len(started)):
            step, handle, expected = started[place]
            _check(comm, step, handle, expected)
    except BaseException as error:
        errors.append(error)


def _play(world: Communicator, plan: list[Any]) -> None:
    groups = [(world.group(members, f"g{number}"), threads) for number, (members, threads) in enumerate(plan)]
    errors: list[BaseException] = []
    running = []
    for group, scripts in groups:
        if group is None:
            continue
        for number, script in enumerate(scripts):
            running.append(threading.Thread(target=_run_thread, args=(group, number, script, errors)))
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if errors:
        raise errors[0]
    for group, _ in groups:  # all of them are usable after whatever was disagreed about
        if group is not None:
            assert group.allreduce(1.0) == group.size
            group.close()
    assert world.allreduce(1.0) == SIZE


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    plan=st.lists(GROUP, min_size=1, max_size=3),
    transport=st.sampled_from(["shm", "tcp", "auto"]),
    segment_bytes=st.sampled_from([64, 1024]),
    fusion_bytes=st.sampled_from([0, 4096]),
)
def test_any_operations_on_any_groups_from_any_threads_are_right(
    plan: list, transport: str, segment_bytes: int, fusion_bytes: int
) -> None:
    """``auto`` pretends two hosts of two ranks."""
    together(
        lambda comm: _play(comm, plan),
        SIZE,
        transport=transport,
        segment_bytes=segment_bytes,
        fusion_bytes=fusion_bytes,
        socket_buffer_bytes=4096,
        host_id=lambda rank: f"pretended-{rank // 2}" if transport == "auto" else "",
        collective_timeout=30.0,
    )


FLOATS = st.lists(
    st.tuples(
        st.sampled_from(["float16", "float32", "float64"]), st.integers(1, 3000), st.integers(0, 2**20)
    ),
    min_size=1,
    max_size=5,
)


def _bits(comm: Communicator, tensors: list[Any]) -> list[str]:
    handles = []
    for number, (dtype, count, seed) in enumerate(tensors):
        values = np.random.default_rng([seed, comm.rank]).standard_normal(count).astype(dtype)
        handles.append(comm.allreduce_async(values, name=f"t{number}"))
    return [hashlib.sha256(handle.wait().tobytes()).hexdigest() for handle in handles]


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(tensors=FLOATS, transport=st.sampled_from(["shm", "tcp", "auto"]))
def test_sums_that_round_have_the_same_bits_on_every_rank_and_in_every_run(
    tensors: list, transport: str
) -> None:
    def run() -> list[Any]:
        return together(
            lambda comm: _bits(comm, tensors),
            SIZE,
            transport=transport,
            segment_bytes=256,
            fusion_bytes=0,
            socket_buffer_bytes=4096,
            host_id=lambda rank: f"pretended-{rank // 2}" if transport == "auto" else "",
        )

    first = run()
    assert first == [first[0]] * SIZE
    assert run() == first
