"""Training steps per second: no communication (the limit), this library, and torch's DDP over gloo.

All three run in one launch, in turns of a few steps, so that other load on the machine hits them alike. What
counts is the share of the limit, not the seconds::

    python benchmarks/training.py                 # an MLP of 10.5 M parameters, 2 workers
    python benchmarks/training.py --model cnn --workers 2 --rounds 12
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch

import spark_ring
import spark_ring.torch as ring

Step = Callable[[], None]


def mlp() -> tuple[torch.nn.Module, torch.Tensor]:
    """10.5 M parameters in three wide layers; 128 rows."""
    layers = [torch.nn.Linear(1024, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 2048), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(2048, 2048)), torch.randn(128, 1024)


def cnn() -> tuple[torch.nn.Module, torch.Tensor]:
    """About 1 M parameters in convolutions; 16 images of 32 × 32."""
    widths = (3, 64, 128, 256, 256)
    layers: list[torch.nn.Module] = []
    for before, after in pairwise(widths):
        layers += [torch.nn.Conv2d(before, after, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
    head = [torch.nn.Flatten(), torch.nn.Linear(256 * 4, 10)]
    return torch.nn.Sequential(*layers, *head), torch.randn(16, 3, 32, 32)


MODELS = {"mlp": mlp, "cnn": cnn}


def step_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer, rows: torch.Tensor) -> Step:
    """Return one training step."""

    def step() -> None:
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()

    return step


def measure(name: str, rounds: int, steps: int, meeting: str) -> dict[str, list[float]]:
    """In each worker: return steps per second of each way, one number a round."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=ring.rank(), world_size=ring.size()
    )
    model, rows = MODELS[name]()
    ways = _ways(model, rows)
    found: dict[str, list[float]] = {way: [] for way in ways}
    for round_number in range(rounds + 1):
        for way, step in ways.items():
            ring.barrier()
            began = time.perf_counter()
            for _ in range(steps):
                step()
            ring.barrier()
            if round_number:  # the first round warms up
                found[way].append(steps / (time.perf_counter() - began))
    torch.distributed.destroy_process_group()
    return found


def _ways(model: torch.nn.Module, rows: torch.Tensor) -> dict[str, Step]:
    def sgd(of: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(of.parameters(), lr=1e-3)

    alone, ours, theirs = (copy.deepcopy(model) for _ in range(3))
    ddp = torch.nn.parallel.DistributedDataParallel(theirs)
    return {
        "no communication": step_of(alone, sgd(alone), rows),
        "spark_ring": step_of(ours, ring.DistributedOptimizer(sgd(ours), ours.named_parameters()), rows),
        "DDP over gloo": step_of(ddp, sgd(ddp), rows),
    }


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=MODELS, default="mlp")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5, help="steps in one turn")
    parser.add_argument("--transport", choices=("auto", "shm", "tcp"), default="auto")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (given.model, given.rounds, given.steps, str(Path(folder) / "meeting"))
        found = spark_ring.run(measure, arguments, np=given.workers, transport=given.transport)[0]
    limit = found["no communication"]
    print(f"{given.model}, {given.workers} workers of one thread, transport {given.transport}")
    print(f"{'':18} {'steps/s':>8} {'share of the limit, median of rounds (least–most)':>52}")
    for way, rates in found.items():
        shares = [rate / bound for rate, bound in zip(rates, limit, strict=True)]
        spread = f"{statistics.median(shares):.2f} ({min(shares):.2f}–{max(shares):.2f})"
        print(f"{way:18} {statistics.median(rates):8.2f} {spread:>52}")


if __name__ == "__main__":
    main()
