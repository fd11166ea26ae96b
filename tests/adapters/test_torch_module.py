"""Weights as safetensors, inputs by the contract, labels in the output's shape."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load as load_safetensors
from torch_batches import contract_of, numbers

from spark_ring.errors import DataError
from spark_ring.torch.module import (
    align_label,
    build_module,
    forward,
    load_weights,
    outputs_of,
    tensor_of,
    weights_bytes,
)


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(7, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.head = torch.nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("halves", torch.ones(3, dtype=torch.bfloat16))
        self.register_buffer("scratch", torch.ones(2), persistent=False)


def test_weights_with_tied_tensors_and_buffers_come_back() -> None:
    torch.manual_seed(1)
    saved, loaded = Tied(), Tied()
    saved.norm.running_mean.fill_(3.0)
    data = weights_bytes(saved)
    assert len([name for name in load_safetensors(data) if "weight" in name]) == 2, (
        "shared weights stored once"
    )
    load_weights(loaded, data)
    for name, tensor in saved.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name]), name
    assert loaded.head.weight is loaded.embed.weight


def test_a_view_of_a_larger_tensor_stores_only_its_own_values() -> None:
    model = torch.nn.Linear(2, 2)
    model.weight.data = torch.arange(1000.0).reshape(500, 2)[3:5].t()
    loaded = torch.nn.Linear(2, 2)
    data = weights_bytes(model)
    load_weights(loaded, data)
    assert torch.equal(loaded.weight, model.weight)
    assert len(data) < 1000


def test_weights_of_another_architecture_are_refused_with_both_shapes() -> None:
    with pytest.raises(DataError, match=r"(?s)do not fit the model Linear.*\[2, 3\].*\[2, 4\]"):
        load_weights(torch.nn.Linear(4, 2), weights_bytes(torch.nn.Linear(3, 2)))


def test_state_that_is_no_tensor_is_refused_by_name() -> None:
    class Extra(torch.nn.Linear):
        def get_extra_state(self) -> object:
            return {"a": 1}

        def set_extra_state(self, state: object) -> None: ...

    with pytest.raises(DataError, match="'_extra_state' in the model's state is a dict"):
        weights_bytes(Extra(1, 1))


def test_a_sequential_is_one_model_and_a_callable_makes_one() -> None:
    """Case 148."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 1))
    assert build_module(model) is model
    assert isinstance(build_module(lambda: torch.nn.Linear(2, 1)), torch.nn.Linear)
    with pytest.raises(DataError, match="returned a list"):
        build_module(lambda: [model])
    with pytest.raises(DataError, match="model is a str"):
        build_module("resnet")


def test_inputs_go_by_position_or_by_keyword() -> None:
    """Case 49."""

    class Two(torch.nn.Module):
        def forward(self, a: torch.Tensor, *, cat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return a, cat

    inputs = {"x0": numbers(3, 2), "x1": np.arange(3)}
    first, second = forward(Two(), contract_of(inputs, {}, keys={"x1": "cat"}), inputs)
    assert np.array_equal(first, inputs["x0"])
    assert second.dtype == torch.int64


def test_floating_inputs_take_the_models_dtype_and_integers_stay() -> None:
    """Cases 17 and 19."""

    class Seen(torch.nn.Linear):
        def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            assert n.dtype == torch.int32
            return super().forward(x)

    inputs = {"x0": numbers(3, 2).astype(np.float64), "x1": np.arange(3, dtype=np.int32)}
    contract = contract_of(inputs, {})
    assert forward(Seen(2, 1), contract, inputs).dtype == torch.float32
    assert forward(Seen(2, 1).double(), contract, inputs).dtype == torch.float64
    assert forward(Seen(2, 1).bfloat16(), contract, inputs).dtype == torch.bfloat16


def test_one_row_is_treated_as_many_are() -> None:
    """Case 50."""
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1).eval()
    x = numbers(21, 2)
    contract = contract_of({"x0": x}, {})
    whole = forward(model, contract, {"x0": x})
    last = forward(model, contract, {"x0": x[20:]})
    assert last.shape == (1, 1)
    assert torch.allclose(whole[20:], last)


def test_a_read_only_array_is_copied_and_a_writable_one_is_not() -> None:
    array = numbers(3)
    assert tensor_of(array).data_ptr() == array.ctypes.data
    array.flags.writeable = False
    tensor = tensor_of(array)
    tensor.add_(1)
    assert not np.array_equal(tensor, array)


def test_outputs_are_a_tuple_whatever_forward_returns() -> None:
    a, b = torch.ones(2), torch.zeros(2)
    assert outputs_of(a) == (a,)
    assert outputs_of([a, b]) == (a, b)
    assert outputs_of({"p": a, "q": b}) == (a, b)
    with pytest.raises(DataError, match="holds a int"):
        outputs_of((a, 1))


@pytest.mark.parametrize(
    ("output", "label", "integer", "expected"),
    [
        ((4, 1), (4,), False, (4, 1)),
        ((4,), (4, 1), False, (4,)),
        ((4, 1), (4,), True, (4, 1)),
        ((1, 1), (1,), False, (1, 1)),
        ((4, 10), (4,), True, (4,)),
        ((4, 10), (4, 1), True, (4,)),
        ((4, 10), (4, 10), False, (4, 10)),
        ((4, 3, 1), (4, 3), False, (4, 3, 1)),
        ((4, 5, 7), (4, 7), True, (4, 7)),
        ((4, 10), (4,), False, (4,)),
    ],
)
def test_a_label_never_broadcasts_against_the_output(
    output: tuple[int, ...], label: tuple[int, ...], integer: bool, expected: tuple[int, ...]
) -> None:
    """Case 14."""
    given = torch.zeros(label, dtype=torch.int64 if integer else torch.float32)
    assert align_label(torch.zeros(output), given).shape == expected
