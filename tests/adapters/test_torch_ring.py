"""The torch verbs over the real ring. What each rank checks is in ``torch_ranks``."""

from __future__ import annotations

import pytest
import torch
import torch_ranks

import spark_ring
import spark_ring.torch as ring
from spark_ring.communicator import Communicator
from spark_ring.errors import ConfigError, WorkerError

CHECKS = [
    torch_ranks.verbs,
    torch_ranks.gradients,
    torch_ranks.refusals,
    torch_ranks.parameters,
    torch_ranks.optimizer_states,
    torch_ranks.unknown_state,
    torch_ranks.steps_are_those_of_all_data,
    torch_ranks.optimizers_of_all_kinds,
    torch_ranks.overlap,
]


def every_check() -> list[str]:
    """In each rank: run all checks; a failing one raises with its own traceback."""
    torch.set_num_threads(1)
    return [check() for check in CHECKS]


@pytest.mark.parametrize(("size", "transport"), [(1, "auto"), (2, "shm"), (2, "tcp"), (3, "shm"), (4, "tcp")])
def test_verbs_parameters_and_optimizers(size: int, transport: str) -> None:
    """Cases 58, 70, 71, 74, 76, 79, 80, 83, 85, 86, 88, 89 and 106."""
    results = spark_ring.run(every_check, np=size, transport=transport)
    assert results == [["well"] * len(CHECKS)] * size


def test_small_gradients_travel_fused() -> None:
    """Case 62."""
    for counts in spark_ring.run(torch_ranks.fusion, np=2):
        assert counts["fused_tensors"] > 0, counts


def diverge() -> None:
    """Rank 1 leaves out a parameter; the others must hear which."""
    model = torch_ranks.model_of(0)
    if ring.rank() == 1:
        model[0].weight = torch.nn.Parameter(torch.zeros(8, 5)[:, :4].clone().double())
    optimizer = ring.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def test_gradients_that_differ_between_ranks_are_named() -> None:
    """Case 67."""
    with pytest.raises(WorkerError, match=r"0\.weight.*float(32|64)"):
        spark_ring.run(diverge, np=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"op": "max"}, "Average or Sum"),
        ({"op": "mean"}, "no reduction named"),
        ({"backward_passes_per_step": 0}, "at least 1"),
        ({"gradient_predivide_factor": 0.0}, "must be positive"),
        ({"gradient_predivide_factor": 2.0, "op": "sum"}, "op=Average only"),
        ({"named_parameters": []}, "lacks 2 of the optimizer's 2"),
        ({"named_parameters": [("a", torch.ones(1)), ("a", torch.ones(1))]}, "'a' twice"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(
    alone: Communicator, options: dict[str, object], message: str
) -> None:
    """Case 83."""
    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
    with pytest.raises(ConfigError, match=message):
        ring.DistributedOptimizer(optimizer, **options)  # type: ignore[arg-type]
    assert type(optimizer) is torch.optim.SGD


def test_an_optimizer_is_distributed_once(alone: Communicator) -> None:
    optimizer = ring.DistributedOptimizer(torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1))
    with pytest.raises(ConfigError, match="already distributed"):
        ring.DistributedOptimizer(optimizer)


def test_sparse_gradients_are_refused_by_name(alone: Communicator) -> None:
    model = torch.nn.Embedding(3, 2, sparse=True)
    optimizer = ring.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    with pytest.raises(Exception, match=r"gradient of 'weight'.*dense"):
        model(torch.tensor([1])).sum().backward()
    optimizer.zero_grad()


def test_exported_names_are_what_they_say() -> None:
    for name in ring.__all__:
        assert getattr(ring, name) is not None
    assert ring.rank is spark_ring.rank
    assert ring.Sum is spark_ring.Sum
