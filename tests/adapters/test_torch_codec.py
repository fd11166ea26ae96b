"""State as bytes: every type comes back as it was, and what is code is refused."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import pytest
import torch

from spark_ring.errors import DataError
from spark_ring.torch import codec

DTYPES = [
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
    *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool),
]


def back(value: Any) -> Any:
    return codec.unpack(codec.pack(value))


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, False, 0, -(2**70), 1.0, 0.1, math.inf, -math.inf, "", "ünïcode"),
        *([], (), {}, [1, [2.0, (True, None)]], (1,), {"a": {1: 2, (3, "x"): [4]}, None: 5}),
        *(OrderedDict(b=1, a=2), Counter({3: 2}), torch.float16, torch.device("cpu"), np.float32(0.1)),
    ],
)
def test_plain_values_keep_value_and_type(value: Any) -> None:
    result = back(value)
    assert result == value
    assert type(result) is type(value)


def test_a_bool_stays_a_bool_and_one_stays_an_integer() -> None:
    result = back({"amsgrad": True, "step": 1, "lr": 1.0, "betas": (0.9, 0.999)})
    assert [type(value) for value in result.values()] == [bool, int, float, tuple]


def test_nan_survives() -> None:
    assert math.isnan(back([math.nan])[0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (1, 0, 2), (3, 5)], ids=str)
def test_tensors_keep_dtype_shape_and_bits(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    count = math.prod(shape)
    tensor = torch.arange(count).to(dtype).reshape(shape) if dtype != torch.bool else torch.ones(shape) > 0
    result = back({"t": tensor, "again": [tensor]})
    for found in (result["t"], result["again"][0]):
        assert found.dtype == dtype
        assert found.shape == tensor.shape
        assert torch.equal(found, tensor)


def test_a_view_is_stored_by_its_values() -> None:
    tensor = torch.arange(12.0).reshape(3, 4).t()[1:]
    assert torch.equal(back(tensor), tensor)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [0, print]}, r"state\['a'\]\[1\]"),
        ({"a": object()}, r"state\['a'\]"),
        (torch.eye(2).to_sparse(), "sparse"),
        (type("Mine", (dict,), {})(), "plain dict"),
    ],
)
def test_what_cannot_travel_is_refused_by_its_path(value: Any, path: str) -> None:
    with pytest.raises(DataError, match=path):
        codec.pack(value)


def test_bytes_that_name_anything_but_data_are_refused() -> None:
    """Case 178."""
    header = json.dumps({"value": {"reduce": ["os.system", "true"]}, "tensors": []}).encode()
    with pytest.raises(DataError, match="unknown tag 'reduce'"):
        codec.unpack(len(header).to_bytes(8, "little") + header)


def make(kind: type, model: torch.nn.Module) -> torch.optim.Optimizer:
    params = list(model.parameters())
    return kind(params, lr=0.01) if kind is not torch.optim.LBFGS else kind(params)


OPTIMIZERS = sorted(
    {
        value
        for value in vars(torch.optim).values()
        if isinstance(value, type)
        and issubclass(value, torch.optim.Optimizer)
        and value not in (torch.optim.Optimizer, torch.optim.SparseAdam)
        and value.__name__ != "Muon"  # takes matrices only; it is tried below
    },
    key=lambda kind: kind.__name__,
)


@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: kind.__name__)
def test_the_state_of_every_torch_optimizer_survives(kind: type) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = make(kind, model)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(4, 3)).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    _same(back(optimizer.state_dict()), optimizer.state_dict())


def test_the_state_of_muon_survives() -> None:
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    weight = torch.nn.Parameter(torch.ones(3, 2))
    optimizer = torch.optim.Muon([weight], lr=0.01)
    weight.square().sum().backward()
    optimizer.step()
    _same(back(optimizer.state_dict()), optimizer.state_dict())


SCHEDULERS = torch.optim.lr_scheduler


@pytest.mark.parametrize(
    "make_scheduler",
    [
        lambda o: SCHEDULERS.StepLR(o, 2),
        lambda o: SCHEDULERS.MultiStepLR(o, [1, 1, 3]),
        lambda o: SCHEDULERS.ExponentialLR(o, 0.9),
        lambda o: SCHEDULERS.CosineAnnealingLR(o, 10),
        lambda o: SCHEDULERS.CosineAnnealingWarmRestarts(o, 3),
        lambda o: SCHEDULERS.LambdaLR(o, lambda epoch: 0.5**epoch),
        lambda o: SCHEDULERS.LinearLR(o),
        lambda o: SCHEDULERS.PolynomialLR(o),
        lambda o: SCHEDULERS.OneCycleLR(o, 0.1, total_steps=20),
        lambda o: SCHEDULERS.CyclicLR(o, 0.01, 0.1),
        lambda o: SCHEDULERS.ReduceLROnPlateau(o, patience=0),
        lambda o: SCHEDULERS.SequentialLR(
            o, [SCHEDULERS.LinearLR(o), SCHEDULERS.ExponentialLR(o, 0.9)], milestones=[2]
        ),
        lambda o: SCHEDULERS.ChainedScheduler([SCHEDULERS.LinearLR(o), SCHEDULERS.ExponentialLR(o, 0.9)]),
    ],
)
def test_a_restored_scheduler_goes_on_with_the_same_rates(make_scheduler: Any) -> None:
    def rates(cut: int | None) -> list[float]:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1, momentum=0.9)
        scheduler = make_scheduler(optimizer)
        found = []
        for epoch in range(6):
            if epoch == cut:
                state = back({"o": optimizer.state_dict(), "s": scheduler.state_dict()})
                optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1, momentum=0.9)
                scheduler = make_scheduler(optimizer)
                optimizer.load_state_dict(state["o"])
                scheduler.load_state_dict(state["s"])
            optimizer.step()
            scheduler.step(*([1.0] if isinstance(scheduler, SCHEDULERS.ReduceLROnPlateau) else []))
            found.append(optimizer.param_groups[0]["lr"])
        return found

    assert rates(cut=3) == rates(cut=None)


def _same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            _same(found[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for left, right in zip(found, expected, strict=True):
            _same(left, right)
    else:
        assert found == expected
