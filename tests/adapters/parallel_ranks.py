"""What each rank does in the tests of torch's parallel wrappers over the ring; runs in worker processes.

Each check trains the same model from the same seed on a gloo group and on a ring group and returns what
should then be equal.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from distributed_ranks import default_group
from torch.nn.parallel import DistributedDataParallel

import spark_ring.torch as ring

STEPS = 4


def wrappers(folder: str) -> str:
    """Run every check over gloo and over the ring and compare."""
    torch.set_num_threads(1)
    done: dict[str, dict[str, list[torch.Tensor]]] = {}
    for backend in ("gloo", "spark_ring"):
        with default_group(backend):
            assert dist.get_backend() == backend
            done[backend] = {name: check(Path(folder) / backend) for name, check in CHECKS.items()}
    for name in CHECKS:
        for mine, theirs in zip(done["spark_ring"][name], done["gloo"][name], strict=True):
            torch.testing.assert_close(
                mine, theirs, rtol=1e-5, atol=1e-6, msg=lambda text, n=name: f"{n}: {text}"
            )
    return "well"


def _net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16), torch.nn.Linear(16, 4)
    )


def _rows(step: int) -> torch.Tensor:
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(100 * step + ring.rank()))


def _weights(model: torch.nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def _train(model: torch.nn.Module, optimizer: Any, steps: int = STEPS) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        model(_rows(step)).square().mean().backward()
        optimizer.step()


def _ddp(_: Path, **options: Any) -> list[torch.Tensor]:
    model = DistributedDataParallel(_net(), bucket_cap_mb=0.0005, **options)
    _train(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    return _weights(model)


def _static_graph(folder: Path) -> list[torch.Tensor]:
    return _ddp(folder, static_graph=True, gradient_as_bucket_view=True)


class _TwoHeads(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.heads = _net(), torch.nn.ModuleList([torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)])

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.heads[ring.rank() % 2](self.body(rows))  # each rank leaves one head without gradient


def _unused(_: Path) -> list[torch.Tensor]:
    model = DistributedDataParallel(_TwoHeads(), find_unused_parameters=True)
    _train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return _weights(model)


def _no_sync(_: Path) -> list[torch.Tensor]:
    model = DistributedDataParallel(_net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        with model.no_sync():
            model(_rows(step)).square().mean().backward()
        model(_rows(step + 50)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return _weights(model)


def _join(_: Path) -> list[torch.Tensor]:
    model = DistributedDataParallel(_net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        _train(model, optimizer, steps=2 + 2 * ring.rank())
    return _weights(model)


def _hook(_: Path) -> list[torch.Tensor]:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    model = DistributedDataParallel(_net())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    _train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    other = DistributedDataParallel(_net())
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    other.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    _train(other, torch.optim.SGD(other.parameters(), lr=0.1))
    return _weights(other)


def _zero(_: Path) -> list[torch.Tensor]:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(_net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    _train(model, optimizer)
    return _weights(model)


def _fully_sharded(folder: Path) -> list[torch.Tensor]:
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (ring.size(),))
    model = _net()
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    _train(model, optimizer)
    total = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    state = get_model_state_dict(model)
    checkpoint.save(state, checkpoint_id=str(folder / "fsdp"))
    fresh = _net()
    for layer in fresh:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(fresh, mesh=mesh)
    loaded = get_model_state_dict(fresh)
    checkpoint.load(loaded, checkpoint_id=str(folder / "fsdp"))
    set_model_state_dict(fresh, loaded)
    whole = [p.full_tensor().detach() for p in model.parameters()]
    for mine, again in zip(whole, (p.full_tensor().detach() for p in fresh.parameters()), strict=True):
        assert torch.equal(mine, again)
    return [*whole, total.full_tensor()]


def _dtensor(_: Path) -> list[torch.Tensor]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (ring.size(),))
    torch.manual_seed(1)
    whole = torch.randn(7, 5)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    product = sharded.t() @ sharded
    assert torch.allclose(sharded.redistribute(mesh, [Replicate()]).to_local(), whole)
    other = sharded.redistribute(mesh, [Shard(1)]).full_tensor()
    return [product.full_tensor(), other, sharded.sum().full_tensor()]


def _functional(_: Path) -> list[torch.Tensor]:
    import torch.distributed._functional_collectives as functional

    group = dist.group.WORLD
    tensor = torch.arange(float(2 * ring.size())) + ring.rank()
    summed = functional.all_reduce(tensor, "sum", group)
    gathered = functional.all_gather_tensor(tensor, 0, group)
    scattered = functional.reduce_scatter_tensor(tensor, "sum", 0, group)
    return [summed + 0, gathered + 0, scattered + 0]


CHECKS: dict[str, Callable[[Path], list[torch.Tensor]]] = {
    "ddp": _ddp,
    "static_graph": _static_graph,
    "find_unused_parameters": _unused,
    "no_sync": _no_sync,
    "join": _join,
    "hooks": _hook,
    "zero": _zero,
    "fully_shard": _fully_sharded,
    "dtensor": _dtensor,
    "functional": _functional,
}
