"""Torch models as files and back, and the answers of a saved model."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch import nn

from spark_ring.data.schema import Contract, SourceColumn, TensorSpec
from spark_ring.errors import DataError
from spark_ring.torch.module import weights_bytes
from spark_ring.torch.saved import CODE_FILES, pack, predictor, unpack


class Net(nn.Module):
    """A user's class: shared weights, a buffer outside the state dict, a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.first.bias.requires_grad_(False)
        self.register_buffer("shift", torch.arange(3.0), persistent=False)

    def forward(self, x):
        return self.second(torch.relu(self.first(x))) + self.shift


def inputs(*shapes, dtype="float32", keys=None):
    specs = []
    for number, shape in enumerate(shapes):
        column = SourceColumn(f"c{number}", "vector")
        specs.append(TensorSpec(f"x{number}", (column,), dtype, shape, keys[number] if keys else None))
    return Contract(tuple(specs))


ROWS = np.random.default_rng(0).normal(size=(7, 3)).astype("float32")


def test_code_is_kept_apart_from_weights():
    files = pack(Net())
    assert set(files) == {"weights.safetensors", "module.pkl"}
    assert set(files) & CODE_FILES == {"module.pkl"}
    wide = pack(nn.ModuleDict({"net": nn.Sequential(nn.Linear(1000, 1000), Net())}))
    assert len(wide["weights.safetensors"]) > 4_000_000
    assert len(wide["module.pkl"]) < 10_000


def test_a_module_comes_back_with_its_weights_and_what_it_shares():
    net = Net().train()
    again = unpack(pack(net))
    assert not again.training
    assert net.training  # the user's own is as it was
    assert again.first.weight is again.second.weight
    assert not again.first.bias.requires_grad
    assert torch.equal(again.shift, net.shift)
    assert torch.equal(again(torch.from_numpy(ROWS)), net.eval()(torch.from_numpy(ROWS)))


def test_trained_weights_take_the_place_of_the_modules_own():
    trained, fresh = Net(), Net()
    again = unpack(pack(fresh, weights_bytes(trained)))
    assert torch.equal(again.first.weight, trained.first.weight)


def test_a_model_may_be_given_as_a_callable():
    assert isinstance(unpack(pack(lambda: nn.Linear(2, 2))), nn.Linear)
    with pytest.raises(DataError):
        pack(lambda: 3)


def test_weights_of_another_architecture_are_refused():
    with pytest.raises(DataError, match="do not fit"):
        unpack({**pack(nn.Linear(2, 2)), "weights.safetensors": weights_bytes(nn.Linear(3, 2))})


def test_a_module_that_cannot_be_pickled_is_named():
    net = Net()
    net.generator = (value for value in ())
    with pytest.raises(DataError, match=r"Net.*cannot be pickled"):
        pack(net)


def test_a_missing_module_is_told_with_what_to_do():
    """Case 160: the error says to ship the module."""
    code = pickle.dumps(nn.Identity()).replace(b"torch.nn.modules.linear", b"torch.nn.modules.lineax")
    with pytest.raises(DataError, match=r"lineax.*pyfile=True"):
        unpack({**pack(Net()), "module.pkl": code})


def test_eval_mode_and_no_gradients():
    """Case 92: predictions are deterministic."""
    net = nn.Sequential(nn.Linear(3, 50), nn.BatchNorm1d(50), nn.Dropout(0.5), nn.Linear(50, 1)).train()
    answer = predictor(unpack(pack(net)), inputs((3,)))
    (first,), (second,) = answer({"x0": ROWS}), answer({"x0": ROWS})
    assert np.array_equal(first, second)


@pytest.mark.parametrize("squeezes", [False, True])
@pytest.mark.parametrize("width", [1, 3])
def test_a_batch_of_one_row_gives_the_same_value(width, squeezes):
    """Case 50."""
    layer = nn.Linear(3, width)

    class Squeezing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x).squeeze() if squeezes else self.layer(x)

    answer = predictor(unpack(pack(Squeezing())), inputs((3,)))
    (whole,) = answer({"x0": ROWS})
    (last,) = answer({"x0": ROWS[-1:]})
    assert whole.shape == ((7,) if width == 1 else (7, 3))
    assert last.shape == whole[-1:].shape
    np.testing.assert_allclose(last, whole[-1:], rtol=1e-6)


def test_a_scalar_input_and_a_scalar_output():
    """Case 50."""

    class Half(nn.Module):
        def forward(self, x):
            return x / 2

    answer = predictor(unpack(pack(Half())), inputs(()))
    for rows in (7, 1):
        np.testing.assert_array_equal(answer({"x0": ROWS[:rows, 0]})[0], ROWS[:rows, 0] / 2)


def test_positional_and_keyword_inputs_and_several_outputs():
    class Many(nn.Module):
        def forward(self, x, *, item):
            return {"sum": x.sum(1) + item, "item": item, "rows": x.to(torch.bfloat16)}

    contract = Contract(
        (
            TensorSpec("x0", (SourceColumn("a", "vector"),), "float32", (3,)),
            TensorSpec("x1", (SourceColumn("b", "bigint"),), "int64", (), "item"),
        )
    )
    total, item, rows = predictor(unpack(pack(Many())), contract)({"x0": ROWS, "x1": np.arange(7)})
    np.testing.assert_allclose(total, ROWS.sum(1) + np.arange(7), rtol=1e-6)
    assert item.dtype == np.int64
    assert rows.dtype == np.float32
    assert rows.shape == (7, 3)


def test_a_model_that_works_in_place_does_not_touch_the_input():
    class InPlace(nn.Module):
        def forward(self, x):
            return x.mul_(2)

    rows = ROWS.copy()
    rows.flags.writeable = False
    (doubled,) = predictor(unpack(pack(InPlace())), inputs((3,)))({"x0": rows})
    np.testing.assert_array_equal(rows, ROWS)
    np.testing.assert_array_equal(doubled, ROWS * 2)


def test_an_output_that_is_not_one_per_row_is_an_error():
    class Mean(nn.Module):
        def forward(self, x):
            return x.mean()

    with pytest.raises(DataError, match=r"shape \(\) for 7 rows"):
        predictor(unpack(pack(Mean())), inputs((3,)))({"x0": ROWS})
