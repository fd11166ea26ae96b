"""What MLflow hands to a pyfunc model, scored."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from spark_ring.artifact import FittedModel
from spark_ring.artifact.outputs import plan_outputs
from spark_ring.data.schema import Contract, SourceColumn, TensorSpec
from spark_ring.errors import ColumnError, DataError
from spark_ring.tracking.frames import FrameModel

VECTOR = Contract((TensorSpec("x0", (SourceColumn("f", "vector", 3),), "float32", (3,)),))
MIXED = Contract(
    (
        TensorSpec(
            "x0", (SourceColumn("n", "int"), SourceColumn("v", "vector", 2)), "float32", (3,), "dense"
        ),
        TensorSpec("x1", (SourceColumn("item", "bigint"),), "int64", (), "item"),
    )
)


class Sum(nn.Module):
    def forward(self, x):
        return x.flatten(1).sum(1)


class Mixed(nn.Module):
    def forward(self, *, dense, item):
        assert item.dtype == torch.int64
        return dense.sum(1) + 100 * item


def frame_model(module, contract, kind="value", keep=False):
    model = FittedModel.of("torch", module, contract)
    plan = plan_outputs(
        model.outputs, kind=kind, integer_label=False, prediction="p", probability="q", raw="r"
    )
    return FrameModel(model, plan, keep_invalid=keep)


@pytest.mark.parametrize(
    "given",
    [
        pd.DataFrame({"f": [[1, 2, 3], [4, 5, 6]]}, index=[7, 9]),
        pd.DataFrame({"f": [np.array([1.0, 2, 3]), np.array([4.0, 5, 6])], "when": ["x", "y"]}),
        {"f": np.array([[1.0, 2, 3], [4, 5, 6]]), "more": np.zeros(5)},
        np.array([[1, 2, 3], [4, 5, 6]]),
    ],
    ids=["lists", "arrays and an unused column", "dict", "array"],
)
def test_every_form_of_input(given):
    """Cases 166, 167."""
    assert frame_model(Sum(), VECTOR).predict(given).tolist() == [6.0, 15.0]


def test_columns_are_put_together_in_order_and_keep_their_kind():
    rows = pd.DataFrame({"item": [1, 2], "v": [[1.0, 2.0], [3.0, 4.0]], "n": np.array([5, 6], "int32")})
    assert frame_model(Mixed(), MIXED).predict(rows).tolist() == [108.0, 213.0]


def test_a_flat_array_is_reshaped_row_by_row():
    """Case 166: 784 numbers to 28 x 28."""

    class Corner(nn.Module):
        def forward(self, x):
            assert x.shape[1:] == (28, 28)
            return x[:, 1, 0]

    square = Contract((TensorSpec("x0", (SourceColumn("f", "array<double>", 784),), "float32", (28, 28)),))
    row = np.arange(784.0)
    assert frame_model(Corner(), square).predict(pd.DataFrame({"f": [row, row * 2]})).tolist() == [28.0, 56.0]


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        (pd.DataFrame({"f": [[1.0, 2.0]]}), ColumnError, "'f' holds values of length 2; the model takes 3"),
        (pd.DataFrame({"f": [[1.0, 2.0, 3.0], [1.0]]}), ColumnError, "'f' holds values of length 1, 3"),
        (np.ones((2, 4)), ColumnError, "'f' holds values of length 4"),
        (pd.DataFrame({"g": [1]}), ColumnError, "no column 'f'"),
        (pd.DataFrame({"f": [["a", "b", "c"]]}), ColumnError, "'f' holds <U1"),
        (
            pd.DataFrame({"f": [[1.0, 2.0, 3.0], None]}),
            ColumnError,
            "'f' is null, or holds a null, in 1 of 2",
        ),
        (pd.DataFrame({"f": [[1.0, None, 3.0]]}), ColumnError, "'f' is null, or holds a null, in 1 of 1"),
    ],
)
def test_what_does_not_fit_is_named(given, error, match):
    """Case 166."""
    with pytest.raises(error, match=match):
        frame_model(Sum(), VECTOR).predict(given)


def test_an_array_for_a_model_of_several_columns_is_refused():
    with pytest.raises(DataError, match="takes 3 columns: n, v, item"):
        frame_model(Mixed(), MIXED).predict(np.ones((2, 3)))


def test_a_row_with_a_null_gives_nan_when_kept():
    """Case 167."""
    rows = pd.DataFrame({"f": [[1.0, 2.0, 3.0], None, [4.0, None, 6.0], [7.0, 8.0, 9.0]]})
    found = frame_model(Sum(), VECTOR, keep=True).predict(rows)
    np.testing.assert_array_equal(found, [6.0, np.nan, np.nan, 24.0])
    found = frame_model(Sum(), VECTOR, keep=True).predict(rows[1:3])
    np.testing.assert_array_equal(found, [np.nan, np.nan])


def test_several_columns_come_as_a_frame():
    model = frame_model(nn.Sequential(nn.Linear(3, 2)), VECTOR, kind="logits", keep=True)
    found = model.predict(pd.DataFrame({"f": [[1.0, 2.0, 3.0], None]}))
    assert list(found) == ["r", "q", "p"]
    assert found["p"][0] == np.argmax(found["r"][0])
    assert sum(found["q"][0]) == pytest.approx(1)
    assert np.isnan(found["p"][1])


def test_no_rows_and_decimals():
    """Case 31."""
    assert frame_model(Sum(), VECTOR).predict(np.empty((0, 3))).shape == (0,)
    price = Contract((TensorSpec("x0", (SourceColumn("d", "decimal(9,2)"),), "float32"),))
    rows = pd.DataFrame({"d": [Decimal("1.25"), Decimal("-2")]})
    assert frame_model(nn.Identity(), price).predict(rows).tolist() == [1.25, -2.0]
