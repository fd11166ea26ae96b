"""What each rank does in the tests of the torch verbs; runs in worker processes and checks itself."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable
from typing import Any

import torch

import spark_ring.torch as ring
from spark_ring import world
from spark_ring.errors import DataError, MismatchError

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)


def verbs() -> str:
    """Every verb on every dtype, in place and not, on odd shapes."""
    size, rank = ring.size(), ring.rank()
    total = float(sum(range(1, size + 1)))
    for dtype in (*FLOATS, *INTEGERS):
        for shape in ((), (1,), (3, 5), (0,), (1, 0, 2)):
            given = torch.full(shape, rank + 1, dtype=dtype)
            summed = ring.allreduce(given, op=ring.Sum)
            assert summed.dtype == dtype
            assert summed.shape == given.shape
            assert torch.equal(summed, torch.full(shape, total).to(dtype))
            assert torch.equal(given, torch.full(shape, rank + 1, dtype=dtype)), "the input was changed"
            assert torch.equal(ring.allreduce(given, op=ring.Max), torch.full(shape, size, dtype=dtype))
            assert ring.allreduce_(given, op=ring.Min) is given
            assert torch.equal(given, torch.ones(shape, dtype=dtype))
    for dtype in FLOATS:
        mean = ring.allreduce(torch.full((4,), float(rank), dtype=dtype))
        assert torch.allclose(mean.float(), torch.full((4,), (size - 1) / 2))
    big = torch.full((3,), 40000.0, dtype=torch.float16)
    assert torch.equal(ring.allreduce(big), big), "float16 overflowed"
    return _movers(size, rank)


def _movers(size: int, rank: int) -> str:
    for dtype in (*FLOATS, *INTEGERS, torch.bool, torch.int16):
        given = torch.full((2, 3), rank, dtype=dtype)
        copied = ring.broadcast(given, root_rank=size - 1)
        assert torch.equal(copied, torch.full((2, 3), size - 1, dtype=dtype))
        assert torch.equal(given, torch.full((2, 3), rank, dtype=dtype))
        ring.broadcast_(given, root_rank=0)
        assert torch.equal(given, torch.zeros(2, 3, dtype=dtype))
        rows = torch.full((rank, 2), rank, dtype=dtype)
        gathered = ring.allgather(rows)
        assert torch.equal(gathered, torch.cat([torch.full((r, 2), r, dtype=dtype) for r in range(size)]))
        gathered.add_(0) if dtype != torch.bool else gathered.logical_not_()  # the result is ours to change
    assert ring.allgather(torch.tensor(float(rank))).tolist() == [float(r) for r in range(size)]
    scattered = ring.reducescatter(torch.arange(2.0 * size + 1).repeat(3, 1).t(), op=ring.Sum)
    expected = torch.arange(2.0 * size + 1).repeat(3, 1).t().tensor_split(size)[rank] * size
    assert torch.equal(scattered, expected)
    strided = torch.arange(12.0).reshape(3, 4).t()
    assert torch.equal(ring.allreduce(strided), strided)
    assert ring.allreduce_(strided.mul_(rank + 1), op=ring.Sum) is strided
    assert torch.equal(strided, torch.arange(12.0).reshape(3, 4).t() * sum(range(1, size + 1)))
    group = ring.grouped_allreduce([torch.ones(2), torch.ones(3, 1)], op=ring.Sum)
    assert [part.tolist() for part in group] == [[size] * 2, [[size]] * 3]
    in_place = [torch.ones(2), torch.ones(3)]
    assert ring.grouped_allreduce_(in_place, op=ring.Sum)[1] is in_place[1]
    assert in_place[0].tolist() == [size, size]
    handles = [ring.allreduce_async(torch.full((5,), float(i)), name=f"t{i}", op=ring.Sum) for i in range(50)]
    for i, handle in reversed(list(enumerate(handles))):
        assert ring.synchronize(handle).tolist() == [float(i * size)] * 5
        assert ring.poll(handle)
    assert ring.broadcast_object({"a": [rank, None, 1.5]}, root_rank=size - 1) == {"a": [size - 1, None, 1.5]}
    assert ring.allgather_object("x" * rank) == ["x" * r for r in range(size)]
    ring.barrier()
    return "well"


def gradients() -> str:
    """Backward through collectives: the gradient of the sum of all ranks' losses."""
    size, rank = ring.size(), ring.rank()
    scales = [float(r + 1) for r in range(size)]
    for op, factor in ((ring.Sum, 1.0), (ring.Average, 1.0 / size)):
        x = torch.full((3,), float(rank), requires_grad=True)
        (ring.allreduce(x, op=op, name=f"x.{op}") * scales[rank]).sum().backward()
        assert torch.allclose(x.grad, torch.full((3,), sum(scales) * factor)), x.grad
        y = torch.ones(size + 1, 2, requires_grad=True)
        (ring.reducescatter(y, op=op) * scales[rank]).sum().backward()
        parts = torch.arange(size + 1).tensor_split(size)
        expected = torch.cat([torch.full((len(p), 2), scales[r] * factor) for r, p in enumerate(parts)])
        assert torch.allclose(y.grad, expected), y.grad
    x = torch.full((rank + 1, 2), 1.0, requires_grad=True)
    gathered = ring.allgather(x)
    (gathered * torch.arange(float(len(gathered)))[:, None] * scales[rank]).sum().backward()
    before = sum(range(1, rank + 1))
    rows = torch.arange(before, before + rank + 1, dtype=torch.float32)
    assert torch.allclose(x.grad, (rows * sum(scales))[:, None].expand(-1, 2)), x.grad
    x = torch.full((3,), float(rank), requires_grad=True)
    (ring.broadcast(x, root_rank=1 % size) * scales[rank]).sum().backward()
    assert torch.allclose(x.grad, torch.full((3,), sum(scales) if rank == 1 % size else 0.0)), x.grad
    if size > 1:
        refused(lambda: ring.allreduce(torch.ones(1, requires_grad=True), op=ring.Max), "no gradient")
    return "well"


def refusals() -> str:
    """What cannot be used is refused on the rank that asks, by name, before anything is sent."""
    refused(lambda: ring.allreduce(torch.ones(2, dtype=torch.int64), name="n"), "'n'.*average of torch.int64")
    refused(lambda: ring.allreduce(torch.ones(2, dtype=torch.bool), op=ring.Sum), "torch.bool")
    refused(lambda: ring.allreduce(torch.eye(2).to_sparse()), "dense")
    refused(lambda: ring.allreduce(torch.ones(2, device="meta")), "on meta")
    refused(lambda: ring.allreduce([1.0]), "list")
    refused(lambda: ring.broadcast(torch.ones(1), root_rank=ring.size()), "root_rank")
    refused(lambda: ring.reducescatter(torch.tensor(1.0)), "0-d")
    assert ring.allreduce(torch.ones(1), op=ring.Sum).item() == ring.size()
    return "well"


def refused(call: Callable[[], Any], message: str, kind: type[Exception] = DataError) -> None:
    """``pytest.raises`` without pytest, whose import would cost every rank a second."""
    raised = None
    try:
        call()
    except kind as error:
        raised = str(error)
    assert raised is not None, f"not refused: {message}"
    assert re.search(message, raised), raised


def model_of(seed: int) -> torch.nn.Module:
    """A small network with weights of its own."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))


def parameters() -> str:
    """broadcast_parameters, and what happens when ranks have different models."""
    model, expected = model_of(ring.rank()), model_of(ring.size() - 1)
    ring.broadcast_parameters(model.state_dict(), root_rank=ring.size() - 1)
    for name, tensor in expected.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
    ring.broadcast_parameters(model_of(1).named_parameters(), root_rank=0)
    complex_one = {"c": torch.full((2,), ring.rank() + 1j), "none": None, "b": torch.tensor(ring.rank() == 0)}
    ring.broadcast_parameters(complex_one)
    assert complex_one["c"].tolist() == [1j, 1j]
    assert bool(complex_one["b"])
    if ring.size() > 1:
        shape = (2, 3) if ring.rank() == 1 else (3, 2)
        refused(
            lambda: ring.broadcast_parameters({"w": torch.zeros(shape)}),
            r"rank 1 has w \(float32, \(2, 3\)\) where rank 0 has w \(float32, \(3, 2\)\)",
            MismatchError,
        )
    assert ring.allreduce(torch.ones(1), op=ring.Sum).item() == ring.size()
    return "well"


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=None),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.8, 0.99), amsgrad=True, foreach=False),
    "adamw": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1), amsgrad=True, capturable=False),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.5, centered=True),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "rprop": lambda p: torch.optim.Rprop(p, etas=(0.4, 1.3)),
    "nadam": lambda p: torch.optim.NAdam(p),
    "lbfgs": lambda p: torch.optim.LBFGS(p, max_iter=3),
}


def optimizer_states() -> str:
    """Only the root has stepped and has other options; afterwards all are equal, types and all."""
    for name, make in OPTIMIZERS.items():
        for steps in (0, 3):
            for root in {0, ring.size() - 1}:
                _one_state(name, make, steps, root)
    return "well"


def _made(name: str, make: Any) -> torch.optim.Optimizer:
    model = model_of(3)
    groups = [{"params": list(model[0].parameters())}, {"params": list(model[2].parameters())}]
    made: torch.optim.Optimizer = make(list(model.parameters()) if name == "lbfgs" else groups)
    return made


def _one_state(name: str, make: Any, steps: int, root: int) -> None:
    optimizer, expected = _made(name, make), _made(name, make)
    for chosen in (optimizer, expected):
        if chosen is expected or ring.rank() == root:
            _step_some(chosen, steps)
    ring.broadcast_optimizer_state(optimizer, root_rank=root)
    found, wanted = optimizer.state_dict(), expected.state_dict()
    of_all = ring.allgather_object(repr(found))
    assert len(set(of_all)) == 1, f"{name}: ranks differ"
    _same_types(found, wanted, name)
    _step_some(optimizer, 1)


def _step_some(optimizer: torch.optim.Optimizer, steps: int) -> None:
    optimizer.param_groups[-1]["weight_decay" if "weight_decay" in optimizer.defaults else "lr"] = 0.0625

    def closure() -> torch.Tensor:
        loss = torch.zeros(())
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = parameter.detach() * 0.1 + 1.0
                loss = loss + parameter.detach().square().sum()
        return loss

    for _ in range(steps):
        optimizer.step(closure)


def _same_types(found: Any, wanted: Any, path: str) -> None:
    assert type(found) is type(wanted), f"{path}: {type(found)} is not {type(wanted)}"
    if isinstance(wanted, dict):
        assert list(found) == list(wanted), path
        for key in wanted:
            _same_types(found[key], wanted[key], f"{path}[{key!r}]")
    elif isinstance(wanted, (list, tuple)):
        assert len(found) == len(wanted), path
        for index, pair in enumerate(zip(found, wanted, strict=True)):
            _same_types(*pair, f"{path}[{index}]")
    elif isinstance(wanted, torch.Tensor):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), path
    else:
        assert found == wanted, f"{path}: {found} is not {wanted}"


def unknown_state() -> str:
    """State that is neither data nor tensor is refused on every rank, and the ring goes on."""
    model = model_of(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if ring.rank() == 0:
        optimizer.param_groups[0]["hook"] = print
    refused(lambda: ring.broadcast_optimizer_state(optimizer), "'hook'.*nothing is pickled")
    assert ring.allreduce(torch.ones(1), op=ring.Sum).item() == ring.size()
    return "well"


def digest(model: torch.nn.Module) -> str:
    """Return a digest of all weights."""
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in model.state_dict().values())).hexdigest()


def _batch(step: int, rank: int) -> torch.Tensor:
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(1000 * step + rank))


def steps_are_those_of_all_data() -> str:
    """Average of gradients: equal to one process with the rows of all ranks."""
    size = ring.size()
    model, alone = model_of(0), model_of(0)
    model[1], alone[1] = torch.nn.Identity(), torch.nn.Identity()  # its statistics are a rank's own
    optimizer = ring.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model.named_parameters()
    )
    reference = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    for step in range(10):
        for chosen, net, ranks in ((optimizer, model, [ring.rank()]), (reference, alone, range(size))):
            chosen.zero_grad()
            net(torch.cat([_batch(step, rank) for rank in ranks])).square().mean().backward()
            chosen.step()
    assert len(set(ring.allgather_object(digest(model)))) == 1
    for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-7)
    return "well"


def optimizers_of_all_kinds() -> str:
    """Ways to use the optimizer that went wrong elsewhere."""
    _two_with_the_same_names()
    _missing_gradients()
    _accumulation_with_leftovers()
    _ranks_that_differ_in_passes()
    _clipping()
    _closures()
    _schedulers()
    _predivision()
    _refused_uses()
    return "well"


def _fit(model: torch.nn.Module, optimizer: Any, rows: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(rows).square().mean().backward()
    optimizer.step()


def _agreed(*models: torch.nn.Module) -> None:
    for model in models:
        assert len(set(ring.allgather_object(digest(model)))) == 1, "ranks differ"


def _plain(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))


def _two_with_the_same_names() -> None:
    models = [_plain(seed) for seed in (0, 1)]
    before = [digest(model) for model in models]
    optimizers = [
        ring.DistributedOptimizer(torch.optim.SGD(m.parameters(), lr=0.1), m.named_parameters())
        for m in models
    ]
    rows = _batch(0, ring.rank())
    for model, optimizer in zip(models, optimizers, strict=True):
        optimizer.zero_grad()
        model(rows).square().mean().backward()
    for optimizer in reversed(optimizers):
        optimizer.step()
    _agreed(*models)
    assert all(digest(model) != old for model, old in zip(models, before, strict=True))


def _missing_gradients() -> None:
    """Each rank uses another head; one head nobody uses; the last rank sometimes has no rows at all."""
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({f"h{i}": torch.nn.Linear(4, 1) for i in range(ring.size() + 1)})
    model["frozen"] = torch.nn.Linear(4, 1).requires_grad_(False)
    optimizer = ring.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    for step in range(4):
        optimizer.zero_grad()
        if step % 2 == 0 or ring.rank() < ring.size() - 1:
            model[f"h{ring.rank()}"](_batch(step, ring.rank())).square().mean().backward()
        optimizer.step()
        if step == 2:
            model["frozen"].requires_grad_(True)  # thawed on every rank: it takes part from now on
    assert model["frozen"].weight.grad is not None
    _agreed(model)


def _accumulation_with_leftovers() -> None:
    """Ten passes, a step after each fourth, twice: two passes are left over each time and carried on."""
    model, alone = _plain(), _plain()
    optimizer = ring.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), backward_passes_per_step=4
    )
    reference = torch.optim.SGD(alone.parameters(), lr=0.1)
    for _ in range(2):
        for number in range(10):
            model(_batch(number, ring.rank())).square().mean().backward()
            for rank in range(ring.size()):
                (alone(_batch(number, rank)).square().mean() / ring.size()).backward()
            if (number + 1) % 4 == 0:
                for chosen in (optimizer, reference):
                    chosen.step()
                    chosen.zero_grad()
    _agreed(model)
    for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-7)


def _ranks_that_differ_in_passes() -> None:
    """From none to more than a step has: each rank's gradient is that of all its passes."""
    for passes_of in (lambda rank: rank, lambda rank: 2 + rank, lambda rank: 3 - min(rank, 3)):
        model, alone = _plain(), _plain()
        optimizer = ring.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), backward_passes_per_step=2
        )
        reference = torch.optim.SGD(alone.parameters(), lr=0.1)
        for _ in range(2):
            for number in range(passes_of(ring.rank())):
                model(_batch(number, ring.rank())).square().mean().backward()
            for rank in range(ring.size()):
                for number in range(passes_of(rank)):
                    (alone(_batch(number, rank)).square().mean() / ring.size()).backward()
            for chosen in (optimizer, reference):
                chosen.step()
                chosen.zero_grad()
        optimizer.release()
        _agreed(model)
        for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-7)


def _clipping() -> None:
    for skip in (False, True):
        model = _plain()
        optimizer = ring.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
        before = [p.detach().clone() for p in model.parameters()]
        model(_batch(0, ring.rank()) * 100).square().mean().backward()
        optimizer.synchronize()
        reduced = world.current().statistics()["operations"]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        if skip:
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
        assert world.current().statistics()["operations"] == reduced, "gradients were reduced twice"
        moved = torch.cat([(p - b).flatten() for p, b in zip(model.parameters(), before, strict=True)])
        assert abs(float(moved.detach().norm()) - 0.5) < 1e-4, "the step did not use the clipped gradient"
        _agreed(model)


def _closures() -> None:
    model = _plain()
    optimizer = ring.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(_batch(0, ring.rank())).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        assert optimizer.step(closure) > 0
    _agreed(model)


def _schedulers() -> None:
    """A scheduler made before or after, hooks and state: all still there, and the class still what it was."""
    for before in (True, False):
        model = _plain()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        seen: list[int] = []
        optimizer.register_step_post_hook(lambda *_, seen=seen: seen.append(1))
        _fit(model, optimizer, _batch(0, 0))
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1) if before else None
        wrapped = ring.DistributedOptimizer(optimizer, model.named_parameters())
        assert wrapped is optimizer
        assert isinstance(wrapped, torch.optim.SGD)
        assert "momentum_buffer" in wrapped.state[model[0].weight]
        scheduler = scheduler or torch.optim.lr_scheduler.StepLR(optimizer, 1)
        for step in range(2):
            _fit(model, wrapped, _batch(step, ring.rank()))
            scheduler.step()
        assert len(seen) == 3, "a step hook was lost or ran twice"
        assert abs(wrapped.param_groups[0]["lr"] - 0.001) < 1e-9
        wrapped.load_state_dict(wrapped.state_dict())
        _fit(model, wrapped, _batch(9, ring.rank()))
        assert len(seen) == 4
        _agreed(model)


def _predivision() -> None:
    models = [_plain(), _plain()]
    for model, factor in zip(models, (1.0, 4.0), strict=True):
        optimizer = ring.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), gradient_predivide_factor=factor
        )
        _fit(model, optimizer, _batch(0, ring.rank()))
    for mine, theirs in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(mine, theirs)


def _refused_uses() -> None:
    model = _plain()
    optimizer = ring.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    rows = _batch(0, ring.rank())
    model(rows).square().mean().backward()
    refused(optimizer.zero_grad, "being reduced and would be lost", RuntimeError)
    refused(lambda: model(rows).square().mean().backward(), "backward_passes_per_step", RuntimeError)
    with optimizer.skip_synchronize():
        refused(optimizer.step, r"call synchronize\(\)", RuntimeError)
    optimizer.step()
    optimizer.zero_grad()


class _WaitsForTheRing(torch.autograd.Function):
    """In backward, stands still until an operation is done that backward itself has started."""

    done: Callable[[], bool]

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        deadline = time.monotonic() + 30
        while not _WaitsForTheRing.done():
            assert time.monotonic() < deadline, "no gradient was reduced while backward ran"
            time.sleep(0.001)
        return gradient


def overlap() -> str:
    """The last layer's gradient is reduced, by all ranks, while backward has not reached the first layer."""
    first, last = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)
    model = torch.nn.ModuleList([first, last])
    optimizer = ring.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    pending = optimizer._reducer._pending
    _WaitsForTheRing.done = lambda: last.weight in pending and pending[last.weight].handle.poll()
    last(_WaitsForTheRing.apply(first(_batch(0, ring.rank())))).square().mean().backward()
    optimizer.step()
    return "well"


def fusion() -> dict[str, Any]:
    """Many small gradients: return what the engine says it fused."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(40)))
    optimizer = ring.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters()
    )
    ring.barrier()
    before = world.current().statistics()
    for step in range(5):
        optimizer.zero_grad()
        model(torch.randn(4, 8, generator=torch.Generator().manual_seed(step))).square().mean().backward()
        optimizer.step()
    _agreed(model)
    after = world.current().statistics()
    # A rank is nothing to subtract; None if nobody was waited for.
    del after["slowest_rank"]
    return {key: after[key] - before[key] for key in after if isinstance(after[key], (int, float))}
