"""Random sequences of operations, the same on every rank, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from threads import together

from spark_ring.communicator import Communicator

SIZE = 3
STEPS = st.lists(
    st.fixed_dictionaries(
        {
            "verb": st.sampled_from(
                ["allreduce", "broadcast", "allgather", "reducescatter", "barrier", "group"]
            ),
            "dtype": st.sampled_from(["float32", "float64", "int32", "int64", "uint8"]),
            "op": st.sampled_from(["sum", "min", "max"]),
            "rows": st.integers(0, 40),
            "columns": st.integers(0, 9),
            "root": st.integers(0, SIZE - 1),
            "wait_at_once": st.booleans(),
            "seed": st.integers(0, 2**31),
        }
    ),
    min_size=1,
    max_size=12,
)


def _input(step: dict[str, Any], rank: int, extra_rows: int = 0) -> np.ndarray:
    generator = np.random.default_rng([step["seed"], rank])
    shape = (step["rows"] + extra_rows, step["columns"])
    return generator.integers(0, 40, shape).astype(step["dtype"])


def _reduced(inputs: list[np.ndarray], op: str) -> np.ndarray:
    stack = np.stack(inputs)
    return {"sum": stack.sum, "min": stack.min, "max": stack.max}[op](axis=0).astype(stack.dtype)


def _submit(comm: Communicator, step: dict[str, Any]) -> tuple[Any, Any]:
    """Start one operation; return its handle (or None) and the result that NumPy gives."""
    inputs = [_input(step, rank) for rank in range(SIZE)]
    mine, op = inputs[comm.rank], step["op"]
    if step["verb"] == "allreduce":
        return comm.allreduce_async(mine, op), _reduced(inputs, op) if mine.size else mine
    if step["verb"] == "group":
        expected = _reduced(inputs, op) if mine.size else mine
        return comm.grouped_allreduce_async([mine, mine[:1]], op), [expected, expected[:1]]
    if step["verb"] == "broadcast":
        return comm.broadcast_async(mine.copy(), step["root"]), inputs[step["root"]]
    if step["verb"] == "allgather":
        uneven = [_input(step, rank, extra_rows=rank) for rank in range(SIZE)]
        return comm.allgather_async(uneven[comm.rank]), np.concatenate(uneven)
    if step["verb"] == "reducescatter":
        expected = _reduced(inputs, op) if mine.size else mine
        return comm.reducescatter_async(mine, op), np.array_split(expected, SIZE)[comm.rank]
    comm.barrier()
    return None, None


def _play(comm: Communicator, scripts: list[list[dict[str, Any]]]) -> None:
    for script in scripts:
        pending = []
        for step in script:
            handle, expected = _submit(comm, step)
            if handle is not None:
                pending.append((step, handle, expected))
            if step["wait_at_once"]:
                _settle(pending)
        _settle(pending)


def _settle(pending: list[tuple[dict[str, Any], Any, Any]]) -> None:
    while pending:
        step, handle, expected = pending.pop()
        result = handle.wait(30)
        results, wanted = (result, expected) if isinstance(result, list) else ([result], [expected])
        for got, want in zip(results, wanted, strict=True):
            assert got.dtype == want.dtype, step
            assert np.array_equal(got, want), step


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    scripts=st.lists(STEPS, min_size=1, max_size=4),
    transport=st.sampled_from(["shm", "tcp", "auto"]),
    segment_bytes=st.sampled_from([64, 256, 65536]),
    fusion_bytes=st.sampled_from([0, 512, 1 << 20]),
)
def test_any_sequence_of_operations_is_right(
    scripts: list, transport: str, segment_bytes: int, fusion_bytes: int
) -> None:
    """``auto`` pretends that rank 2 is on another host."""
    together(
        lambda comm: _play(comm, scripts),
        SIZE,
        transport=transport,
        segment_bytes=segment_bytes,
        fusion_bytes=fusion_bytes,
        host_id=lambda rank: f"pretended-{rank // 2}" if transport == "auto" else "",
        collective_timeout=30.0,
    )
