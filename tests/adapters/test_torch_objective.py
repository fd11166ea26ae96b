"""Losses, row weights and metrics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch_batches import batch_of, contract_of, numbers, one

from spark_ring.errors import ConfigError, DataError
from spark_ring.torch.objective import Objective


def objective(loss: Any, contract: Any, **payload: Any) -> Objective:
    return Objective({"loss": loss, **payload}, contract)


def test_one_loss_gets_output_and_label_in_the_same_shape() -> None:
    """Case 14."""
    contract, batch = one(numbers(4, 3), numbers(4, seed=1))
    made = objective(functional.mse_loss, contract)
    output = torch.zeros(4, 1)
    expected = float(np.square(batch.labels["y0"]).mean())
    assert float(made.loss(output, made.labels(batch))) == pytest.approx(expected)


def test_a_list_of_losses_is_matched_to_outputs_and_labels_and_weighted() -> None:
    labels = {"y0": numbers(4), "y1": np.array([0, 2, 1, 1])}
    contract = contract_of({"x0": numbers(4, 2)}, labels)
    batch = batch_of({"x0": numbers(4, 2)}, labels)
    losses = [functional.mse_loss, torch.nn.CrossEntropyLoss()]
    made = objective(losses, contract, loss_weights=[1.0, 0.5])
    output = (torch.zeros(4, 1), torch.zeros(4, 3))
    expected = float(np.square(labels["y0"]).mean()) + 0.5 * float(np.log(3.0))
    assert float(made.loss(output, made.labels(batch))) == pytest.approx(expected)
    with pytest.raises(DataError, match="returned 1 tensors and loss is a list for 2 labels"):
        made.loss(output[0], made.labels(batch))


def test_one_callable_for_several_labels_gets_them_all() -> None:
    labels = {"y0": numbers(4), "y1": numbers(4, seed=1)}
    contract, batch = contract_of({}, labels), batch_of({"x0": numbers(4, 2)}, labels)
    seen = []

    def both(output: Any, label: Any) -> torch.Tensor:
        seen.append((output[0].shape, label[0].shape, len(label)))
        return output[0].mean()

    made = objective(both, contract)
    made.loss((torch.zeros(4, 1), torch.zeros(4)), made.labels(batch))
    assert seen == [((4, 1), (4, 1), 2)]


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (functional.mse_loss, [1.0, 4.0]),
        (torch.nn.L1Loss(), [1.0, 2.0]),
        (torch.nn.KLDivLoss(reduction="batchmean"), [0.0, 2 * np.log(2.0) * 2]),
    ],
)
def test_the_loss_of_each_row_is_had_without_reduction(loss: Any, expected: list[float]) -> None:
    """Case 56."""
    y = np.array([[1.0, 1.0], [2.0, 2.0]], np.float32)
    contract, batch = one(numbers(2, 2), y, weight=[1.0, 1.0])
    made = objective(loss, contract)
    rows = made.row_losses(torch.zeros(2, 2), made.labels(batch))
    assert rows.tolist() == pytest.approx(expected)


def test_a_custom_loss_with_a_reduction_argument_takes_weights() -> None:
    def mine(output: Any, label: Any, reduction: str = "mean") -> torch.Tensor:
        error = (output - label).abs()
        return error if reduction == "none" else error.mean()

    contract, batch = one(numbers(2, 2), np.array([1.0, 3.0], np.float32), weight=[1.0, 1.0])
    made = objective(mine, contract)
    assert made.row_losses(torch.zeros(2), made.labels(batch)).tolist() == [1.0, 3.0]


def test_weights_with_a_loss_that_only_gives_a_mean_are_refused() -> None:
    """Case 56."""
    contract, _ = one(numbers(2, 2), numbers(2), weight=[1.0, 1.0])
    with pytest.raises(ConfigError, match=r"weightCol needs the loss of each row.*reduction"):
        objective(lambda output, label: (output - label).square().mean(), contract)


def test_only_the_metrics_asked_for_are_computed() -> None:
    """Case 149."""
    contract, batch = one(numbers(3, 2), numbers(3))
    assert objective(functional.mse_loss, contract).metrics(torch.zeros(3), []) == {}
    made = objective(functional.mse_loss, contract, metrics={"mae": functional.l1_loss})
    assert made.metric_names == ("mae",)
    found = made.metrics(torch.zeros(3, 1), made.labels(batch))
    assert found == {"mae": pytest.approx(float(np.abs(batch.labels["y0"]).mean()))}


@pytest.mark.parametrize("value", [torch.zeros(3), "good"])
def test_a_metric_that_is_no_number_is_named(value: Any) -> None:
    contract, batch = one(numbers(3, 2), numbers(3))
    made = objective(functional.mse_loss, contract, metrics={"odd": lambda output, label: value})
    with pytest.raises(DataError, match="the metric 'odd' returned"):
        made.metrics(torch.zeros(3), made.labels(batch))


def test_booleans_become_integers_and_decided_dtypes_are_used() -> None:
    """Case 22."""
    contract, batch = one(numbers(2, 2), np.array([True, False]))
    assert objective(functional.mse_loss, contract).labels(batch)[0].tolist() == [1, 0]
    made = objective(functional.mse_loss, contract, label_dtypes=["float32"])
    assert made.labels(batch)[0].dtype == torch.float32


class Scale(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return ((output - label) * self.scale).square().mean()


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"loss": [functional.mse_loss] * 2}, "list of 2 and there are 1 label"),
        ({"loss": functional.mse_loss, "loss_weights": [1.0, 2.0]}, "1 losses and 2 loss weights"),
        ({"loss": "mse"}, "loss is a str"),
        ({"loss": functional.mse_loss, "metrics": {"mae": 3}}, "mae is a int"),
        ({"loss": torch.nn.MSELoss(reduction="sum")}, "reduction='sum'"),
        ({"loss": Scale()}, "parameters of its own"),
        ({"loss": functional.mse_loss, "label_dtypes": ["int64"] * 2}, "2 label dtypes for 1 labels"),
    ],
)
def test_a_payload_that_does_not_fit_is_refused(payload: dict[str, Any], message: str) -> None:
    contract, _ = one(numbers(2, 2), numbers(2))
    with pytest.raises(ConfigError, match=message):
        Objective(payload, contract)


def test_a_loss_that_is_no_mean_is_refused_by_name() -> None:
    contract, batch = one(numbers(2, 2), numbers(2))

    def each_row(output: Any, label: Any) -> torch.Tensor:
        return output - label

    made = objective(each_row, contract)
    with pytest.raises(DataError, match=r"each_row returned shape \(2,\)"):
        made.loss(torch.zeros(2), made.labels(batch))
