"""What each rank does in the tests of the torch.distributed backend; runs in worker processes.

Every collective is called twice with the same values, on a gloo group and on a ring group of the same ranks,
and must leave the same in every tensor.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch_ranks import refused

import spark_ring.torch as ring
from spark_ring.errors import DataError

TIMEOUT = timedelta(seconds=60)
MOVED = (torch.float32, torch.int64, torch.bool, torch.complex64, torch.bfloat16, torch.uint8)
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@contextmanager
def default_group(backend: str) -> Iterator[None]:
    """Make the default group of torch.distributed out of the ranks that the launcher started."""
    folder = Path(ring.broadcast_object(tempfile.mkdtemp()))
    store = dist.FileStore(str(folder / "store"), ring.size())
    dist.init_process_group(backend, store=store, rank=ring.rank(), world_size=ring.size(), timeout=TIMEOUT)
    try:
        yield
    finally:
        dist.destroy_process_group()


def collectives() -> str:
    """Run every collective on both groups."""
    with default_group("gloo"):
        groups = {name: dist.new_group(backend=name, timeout=TIMEOUT) for name in ("gloo", "spark_ring")}
        for name, check in CHECKS.items():
            expected, found = (check(groups[backend]) for backend in ("gloo", "spark_ring"))
            _same(found, expected, name)
        _only_ours(groups["spark_ring"])
    return "well"


def _same(found: list[torch.Tensor], expected: list[torch.Tensor], name: str) -> None:
    assert len(found) == len(expected), name
    for i, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        assert mine.dtype == theirs.dtype, f"{name}[{i}]"
        torch.testing.assert_close(mine, theirs, msg=lambda text, i=i: f"{name}[{i}]: {text}")


def _mine(*shape: int, dtype: torch.dtype = torch.float32, salt: int = 0) -> torch.Tensor:
    """Values of this rank that every dtype can hold."""
    generator = torch.Generator().manual_seed(100 * ring.rank() + salt)
    values = torch.randint(0, 2 if dtype == torch.bool else 5, shape, generator=generator)
    return values.to(dtype)


def _reductions(group: Any) -> list[torch.Tensor]:
    done = []
    ops = (dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT)
    for dtype in (*FLOATS, torch.int32, torch.int64, torch.uint8, torch.int8):
        for op in ops:
            for shape in ((), (7,), (3, 5)):
                tensor = _mine(*shape, dtype=dtype)
                dist.all_reduce(tensor, op=op, group=group)
                done.append(tensor)
    for op in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):
        tensor = _mine(6, dtype=torch.int32)
        dist.all_reduce(tensor, op=op, group=group)
        done.append(tensor)
    strided = _mine(4, 6).t()
    dist.all_reduce(strided, group=group)
    whole = _mine(5, dtype=torch.complex64)
    dist.all_reduce(whole, group=group)
    return [*done, strided, whole]


def _reduced_to_one(group: Any) -> list[torch.Tensor]:
    done = []
    for root in range(ring.size()):
        tensor = _mine(9, salt=root)
        dist.reduce(tensor, dst=root, group=group)
        done.append(tensor if ring.rank() == root else torch.zeros(9))  # the others' are not defined
    return done


def _broadcasts(group: Any) -> list[torch.Tensor]:
    done = []
    for dtype in MOVED:
        for root in range(ring.size()):
            tensor = _mine(3, 2, dtype=dtype, salt=root)
            dist.broadcast(tensor, src=root, group=group)
            done.append(tensor)
    return done


def _gathers_to_all(group: Any) -> list[torch.Tensor]:
    done = []
    for dtype in MOVED:
        parts = [torch.empty(2, 3, dtype=dtype) for _ in range(ring.size())]
        dist.all_gather(parts, _mine(2, 3, dtype=dtype), group=group)
        done += parts
    flat = torch.empty(ring.size() * 4)
    dist.all_gather_into_tensor(flat, _mine(4), group=group)
    parts = [torch.empty(0) for _ in range(ring.size())]
    dist.all_gather(parts, torch.empty(0), group=group)
    return [*done, flat, *parts]


def _scattered_reductions(group: Any) -> list[torch.Tensor]:
    output = torch.empty(3)
    dist.reduce_scatter_tensor(output, _mine(ring.size() * 3), group=group)
    listed = torch.empty(2, 2)
    dist.reduce_scatter(listed, [_mine(2, 2, salt=i) for i in range(ring.size())], group=group)
    return [output, listed]


def _objects(group: Any) -> list[torch.Tensor]:
    everybody: list[Any] = [None] * ring.size()
    dist.all_gather_object(everybody, {"rank": ring.rank(), "text": "x" * ring.rank()}, group=group)
    shared = [ring.rank(), "root"] if ring.rank() == 0 else [None, None]
    dist.broadcast_object_list(shared, src=0, group=group)
    return [torch.tensor([len(one["text"]) for one in everybody]), torch.tensor(len(shared[1]))]


def _to_one_each(group: Any) -> list[torch.Tensor]:
    size, rank = ring.size(), ring.rank()
    done = []
    for dtype in (torch.float32, torch.int64, torch.uint8):  # what gloo gathers
        for root in range(size):
            parts = [torch.empty(2, 3, dtype=dtype) for _ in range(size)] if rank == root else None
            dist.gather(_mine(2, 3, dtype=dtype), parts, dst=root, group=group)
            done += parts or []
            mine = torch.empty(4, dtype=dtype)
            dist.scatter(
                mine,
                [_mine(4, dtype=dtype, salt=i) for i in range(size)] if rank == root else None,
                src=root,
                group=group,
            )
            done.append(mine)
        flat = torch.empty(2 * size, 2, dtype=dtype)
        dist.all_to_all_single(flat, _mine(2 * size, 2, dtype=dtype), group=group)
        splits = [(rank + r) % 3 for r in range(size)]  # the same from r to rank as from rank to r
        rows = torch.empty(sum(splits), 2, dtype=dtype)
        dist.all_to_all_single(rows, _mine(sum(splits), 2, dtype=dtype), splits, splits, group=group)
        done += [flat, rows]
    listed: list[Any] = [None] * size if rank == 0 else []
    dist.gather_object(("x" * rank, rank), listed or None, dst=0, group=group)
    one: list[Any] = [None]
    dist.scatter_object_list(one, [{"to": r} for r in range(size)], src=0, group=group)
    return [*done, torch.tensor([len(text) for text, _ in listed]), torch.tensor(one[0]["to"])]


def _messages(group: Any) -> list[torch.Tensor]:
    size, rank = ring.size(), ring.rank()
    if size == 1:
        return []
    after, before = (rank + 1) % size, (rank - 1) % size
    found = torch.empty(5, 2)
    work = dist.isend(_mine(5, 2), after, group=group)
    dist.recv(found, before, group=group)
    work.wait()
    both = torch.empty(3, dtype=torch.int64)
    operations = [
        dist.P2POp(dist.isend, _mine(3, dtype=torch.int64), before, group),
        dist.P2POp(dist.irecv, both, after, group),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return [found, both]


def _asynchronous(group: Any) -> list[torch.Tensor]:
    tensors = [_mine(50, salt=i) for i in range(20)]
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    assert all(work.is_completed() for work in works)
    return tensors


CHECKS: dict[str, Callable[[Any], list[torch.Tensor]]] = {
    "all_reduce": _reductions,
    "reduce": _reduced_to_one,
    "broadcast": _broadcasts,
    "all_gather": _gathers_to_all,
    "reduce_scatter": _scattered_reductions,
    "objects": _objects,
    "gather, scatter, all_to_all": _to_one_each,
    "send, recv": _messages,
    "async_op": _asynchronous,
}


def _told_every_time(group: Any) -> None:
    """A result that does not fit its output fails whoever waits, the future too."""
    work = group.all_to_all_single(torch.empty(1), torch.ones(2 * ring.size()))
    for _ in range(2):
        refused(work.wait, "all_to_all_single: the output has 1 elements")
    assert isinstance(work.exception(), DataError)
    refused(work.get_future().wait, "the output has 1 elements", Exception)


def _only_ours(group: Any) -> None:
    """What gloo has not: averages, futures with values, lists of unequal parts, refusals."""
    mean = torch.full((3,), float(ring.rank()))
    dist.all_reduce(mean, op=dist.ReduceOp.AVG, group=group)
    assert mean.tolist() == [(ring.size() - 1) / 2] * 3
    tensor = torch.ones(4)
    future = dist.all_reduce(tensor, group=group, async_op=True).get_future()
    assert future.then(lambda done: done.value()[0] * 2).wait().tolist() == [2.0 * ring.size()] * 4
    parts = [torch.full((r + 1,), 1.0) for r in range(ring.size())]
    mine = torch.empty(ring.rank() + 1)
    dist.reduce_scatter(mine, parts, group=group)
    assert mine.tolist() == [float(ring.size())] * (ring.rank() + 1)
    stacked = torch.empty(ring.size(), 2)
    dist.all_gather_into_tensor(stacked, torch.full((2,), float(ring.rank())), group=group)
    assert stacked.tolist() == [[float(r)] * 2 for r in range(ring.size())]
    dist.barrier(group=group)
    _told_every_time(group)
    for wrong in (torch.eye(2).to_sparse(), torch.ones(2, device="meta")):
        refused(lambda wrong=wrong: group.allreduce([wrong]), "all_reduce.*(dense|on meta)")
