"""The check on the driver: finds what training would trip over, and changes nothing."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch_batches import batch_of, contract_of, numbers, one

from spark_ring.errors import ConfigError, PreflightError
from spark_ring.torch.probe import ProbeResult, probe


def sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


def run(model: Any, loss: Any, x: Any, y: Any, weight: Any = None, **payload: Any) -> ProbeResult:
    contract, batch = one(x, y, weight)
    return probe({"model": model, "loss": loss, "optimizer": sgd, **payload}, contract, batch)


def test_shapes_dtypes_and_loss_are_found() -> None:
    result = run(torch.nn.Linear(3, 1), functional.mse_loss, numbers(5, 3), numbers(5))
    assert result.output_shapes == ((1,),)
    assert result.output_dtypes == ("float32",)
    assert result.label_dtypes == ("float32",)
    assert result.parameters == 4
    assert result.loss > 0


INTEGERS = np.array([0, 1, 1, 0, 1])


@pytest.mark.parametrize(
    ("loss", "outputs", "expected"),
    [
        (functional.cross_entropy, 2, "int64"),
        (torch.nn.CrossEntropyLoss(), 3, "int64"),
        (functional.multi_margin_loss, 2, "int64"),
        (functional.binary_cross_entropy_with_logits, 1, "float32"),
        (functional.huber_loss, 1, "float32"),
        (lambda output, label: functional.binary_cross_entropy(output.sigmoid(), label), 1, "float32"),
    ],
)
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.bool_])
def test_integer_labels_stay_integers_where_the_loss_takes_them(
    loss: Any, outputs: int, expected: str, dtype: Any
) -> None:
    """Cases 17 and 22."""
    model = torch.nn.Linear(3, outputs)
    assert run(model, loss, numbers(5, 3), INTEGERS.astype(dtype)).label_dtypes == (expected,)


def test_floating_labels_take_the_models_dtype() -> None:
    """Case 17."""
    x, y = numbers(5, 3).astype(np.float64), numbers(5).astype(np.float64)
    assert run(torch.nn.Linear(3, 1), functional.mse_loss, x, y).label_dtypes == ("float32",)
    assert run(torch.nn.Linear(3, 1).double(), functional.mse_loss, x, y).label_dtypes == ("float64",)


def test_labels_of_a_list_of_losses_are_decided_each_for_itself() -> None:
    class Heads(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(3, 1), torch.nn.Linear(3, 4)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.a(x), self.b(x)

    inputs, labels = {"x0": numbers(5, 3)}, {"y0": INTEGERS, "y1": INTEGERS}
    payload = {
        "model": Heads(),
        "loss": [functional.binary_cross_entropy_with_logits, functional.cross_entropy],
        "optimizer": sgd,
    }
    result = probe(payload, contract_of(inputs, labels), batch_of(inputs, labels))
    assert result.label_dtypes == ("float32", "int64")
    assert result.output_shapes == ((1,), (4,))


def test_one_row_is_enough_even_for_batch_norm() -> None:
    """Case 50."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1))
    assert run(model, functional.mse_loss, numbers(1, 3), numbers(1)).output_shapes == ((1,),)


def test_the_model_its_mode_and_the_generators_are_as_before() -> None:
    """Case 92."""
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5), torch.nn.Linear(3, 1)).eval()
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    run(model, functional.mse_loss, numbers(5, 3), numbers(5))
    assert torch.equal(torch.rand(3), expected)
    assert not any(part.training for part in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


class FiveInputs(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor, e: torch.Tensor
    ) -> torch.Tensor:
        return (a + b + c + d + e) * self.scale


def five_columns() -> tuple[Any, Any]:
    inputs = {f"x{i}": numbers(4, seed=i) for i in range(5)}
    labels = {"y0": numbers(4)}
    return contract_of(inputs, labels), batch_of(inputs, labels)


def test_five_columns_fit_a_model_of_five_inputs() -> None:
    """Case 49."""
    contract, batch = five_columns()
    payload = {"model": FiveInputs(), "loss": functional.mse_loss, "optimizer": sgd}
    assert probe(payload, contract, batch).output_shapes == ((),)


def test_five_columns_and_a_model_of_one_input_are_explained() -> None:
    """Case 49."""
    contract, batch = five_columns()
    payload = {"model": torch.nn.Linear(5, 1), "loss": functional.mse_loss, "optimizer": sgd}
    with pytest.raises(PreflightError) as caught:
        probe(payload, contract, batch)
    assert "Linear.forward(input)" in str(caught.value)
    assert "5 tensors were given and forward takes 1" in str(caught.value)
    assert "VectorAssembler" in str(caught.value)
    assert "x3 float32 (4,)" in str(caught.value)


def test_one_vector_and_a_model_of_five_inputs_are_explained() -> None:
    """Case 49."""
    with pytest.raises(PreflightError, match=r"1 tensor was given and forward takes 5.*inputCols"):
        run(FiveInputs(), functional.mse_loss, numbers(4, 5), numbers(4))


def test_a_vector_of_the_wrong_width_shows_both_widths() -> None:
    with pytest.raises(PreflightError, match=r"x0 float32 \(4, 3\).*4x3 and 5x1"):
        run(torch.nn.Linear(5, 1), functional.mse_loss, numbers(4, 3), numbers(4))


def test_a_scalar_column_for_a_matrix_layer_is_explained() -> None:
    with pytest.raises(PreflightError, match=r"arrives as shape \(rows,\)"):
        run(torch.nn.Linear(1, 1), functional.mse_loss, numbers(4), numbers(4))


@pytest.mark.parametrize(
    "loss",
    [
        functional.mse_loss,
        torch.nn.BCEWithLogitsLoss(),
        lambda output, label: functional.l1_loss(output, label),
        lambda output, label: (output - label).square().mean(),
    ],
)
@pytest.mark.parametrize("rows", [2, 3, 5, 10])
def test_a_label_of_another_size_is_refused_with_both_sizes(loss: Any, rows: int) -> None:
    """Case 14."""
    with pytest.raises(PreflightError, match=r"The model gives 3 per row and the label has 1\."):
        run(torch.nn.Linear(3, 3), loss, numbers(rows, 3), numbers(rows))
    with pytest.raises(PreflightError, match=r"The model gives 3 per row and the label has 10\."):
        run(torch.nn.Linear(3, 3), loss, numbers(rows, 3), numbers(rows, 10))


def test_one_hot_labels_of_the_outputs_size_fit() -> None:
    """Case 14."""
    y = np.eye(10, dtype=np.float32)
    assert run(torch.nn.Linear(3, 10), functional.cross_entropy, numbers(10, 3), y).loss > 0


def test_an_output_that_loses_its_rows_is_refused() -> None:
    class Squeezed(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).mean()

    with pytest.raises(PreflightError, match="its first dimension must be the rows"):
        run(Squeezed(3, 1), functional.mse_loss, numbers(4, 3), numbers(4))


class Detached(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).detach()


def broken_metric(output: Any, label: Any) -> float:
    raise ValueError("no such class")


@pytest.mark.parametrize(
    ("model", "payload", "message"),
    [
        (Detached(3, 1), {}, "no gradient"),
        (torch.nn.Linear(3, 1), {"metrics": {"m": broken_metric}}, "metric failed.*no such class"),
        (torch.nn.Linear(3, 1).requires_grad_(False), {}, "nothing to train"),
        (torch.nn.Linear(3, 1), {"optimizer": torch.optim.LBFGS}, "needs no closure"),
        (torch.nn.Linear(3, 1), {"optimizer": torch.optim.SGD([torch.zeros(1)], lr=1.0)}, "give a callable"),
        (torch.nn.Linear(3, 1), {"optimizer": lambda params: None}, "returned a NoneType"),
        (torch.nn.Linear(3, 1), {"scheduler": lambda optimizer: 3}, "returned a int"),
        (torch.nn.Linear(3, 1), {"clip_norm": -1}, "clip_norm is -1"),
        (torch.nn.Linear(3, 1), {"learning_rate": 0.1}, "unknown key 'learning_rate'"),
        (torch.nn.Linear(3, 1), {"loss": None}, "lacks 'loss'"),
    ],
)
def test_what_would_fail_in_training_fails_on_the_driver(
    model: Any, payload: dict[str, Any], message: str
) -> None:
    contract, batch = one(numbers(4, 3), numbers(4))
    whole = {"model": model, "loss": functional.mse_loss, "optimizer": sgd, **payload}
    with pytest.raises((PreflightError, ConfigError), match=message):
        probe(whole, contract, batch)


def test_nan_in_the_first_rows_is_named_before_training() -> None:
    """Case 7."""
    x = numbers(4, 3)
    x[2, 1] = np.nan
    with pytest.raises(PreflightError, match="is nan before any training"):
        run(torch.nn.Linear(3, 1), functional.mse_loss, x, numbers(4))


def test_row_weights_need_a_loss_of_each_row() -> None:
    """Case 56."""
    arguments = torch.nn.Linear(3, 1), numbers(4, 3), numbers(4)
    assert run(arguments[0], torch.nn.MSELoss(), *arguments[1:], weight=np.ones(4)).loss > 0
    with pytest.raises(ConfigError, match="weightCol needs the loss of each row"):
        run(arguments[0], lambda output, label: output.mean(), *arguments[1:], weight=np.ones(4))


def test_a_model_that_cannot_be_copied_is_explained() -> None:
    model = torch.nn.Linear(3, 1)
    model.cache = model.weight * 2
    with pytest.raises(PreflightError, match=r"cannot be copied.*callable"):
        run(model, functional.mse_loss, numbers(4, 3), numbers(4))


def test_lazy_layers_are_explained() -> None:
    with pytest.raises(ConfigError, match="lazy layers"):
        run(torch.nn.LazyLinear(1), functional.mse_loss, numbers(4, 3), numbers(4))
