"""From outputs to columns."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spark_ring.artifact import OutputSpec
from spark_ring.artifact.outputs import plan_outputs, to_arrow
from spark_ring.errors import ConfigError

NAMES = {"prediction": "prediction", "probability": "probability", "raw": "rawPrediction"}
NUMBER, THREE = OutputSpec((), "float32"), OutputSpec((3,), "float32")


def plan(*outputs, kind="auto", integer_label=False, labels=(), **names):
    return plan_outputs(outputs, kind=kind, integer_label=integer_label, labels=labels, **{**NAMES, **names})


@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 2, 3), (0,), (0, 3), (1, 1), (2, 3, 4, 5)])
@pytest.mark.parametrize("single", [False, True])
def test_rows_become_numbers_and_nested_lists(shape, single):
    values = np.arange(np.prod(shape), dtype="float32").reshape(shape)
    assert to_arrow(values, single).to_pylist() == values.tolist()


def test_one_number_per_row_is_a_double():
    """Case 50: also for one row."""
    chosen = plan(NUMBER)
    assert [(field.column, field.spark_type) for field in chosen.fields] == [("prediction", "double")]
    assert chosen.arrays([np.float32([0.5])]).to_pylist() == [0.5]
    assert chosen.nothing().to_pylist() == []


def test_several_numbers_per_row_are_an_array_and_several_outputs_are_several_columns():
    assert plan(THREE).spark_type == "array<float>"
    assert plan(OutputSpec((2, 3), "float64")).spark_type == "array<array<double>>"
    chosen = plan(NUMBER, THREE, labels=["a", "b"])
    assert [field.column for field in chosen.fields] == ["prediction_a", "prediction_b"]
    assert chosen.spark_type == "struct<f0: double, f1: array<float>>"
    assert [field.column for field in plan(NUMBER, THREE).fields] == ["prediction_0", "prediction_1"]


@pytest.mark.parametrize(
    ("outputs", "integer_label", "columns"),
    [
        ((THREE,), True, ["rawPrediction", "probability", "prediction"]),
        ((THREE,), False, ["prediction"]),
        ((NUMBER,), True, ["prediction"]),
        ((THREE, NUMBER), True, ["prediction_0", "prediction_1"]),
    ],
)
def test_a_classifier_is_recognised_by_an_integer_label_and_several_scores(outputs, integer_label, columns):
    assert [field.column for field in plan(*outputs, integer_label=integer_label).fields] == columns


def test_logits_of_several_classes():
    logits = np.float32([[1, 3, 2], [800, -800, 0], [0, 0, 0]])
    rows = plan(THREE, kind="logits").arrays([logits]).to_pylist()
    np.testing.assert_array_equal([row["f0"] for row in rows], logits)
    expected = torch.softmax(torch.tensor(logits, dtype=torch.float64), 1)
    np.testing.assert_allclose([row["f1"] for row in rows], expected, atol=1e-12)
    assert [row["f2"] for row in rows] == [1.0, 0.0, 0.0]


def test_one_logit_is_of_class_1_of_two():
    rows = plan(NUMBER, kind="logits").arrays([np.float32([2.0, -1.0])]).to_pylist()
    assert [row["f0"] for row in rows] == [[-2.0, 2.0], [1.0, -1.0]]
    expected = torch.sigmoid(torch.tensor([2.0, -1.0], dtype=torch.float64))
    np.testing.assert_allclose([row["f1"][1] for row in rows], expected)
    np.testing.assert_allclose([sum(row["f1"]) for row in rows], 1.0)
    assert [row["f2"] for row in rows] == [1.0, 0.0]


def test_probabilities_are_taken_as_they_are():
    rows = plan(THREE, kind="probabilities").arrays([np.float64([[0.2, 0.5, 0.3]])]).to_pylist()
    assert rows == [{"f0": [0.2, 0.5, 0.3], "f1": [0.2, 0.5, 0.3], "f2": 1.0}]
    rows = plan(NUMBER, kind="probabilities").arrays([np.float64([0.75])]).to_pylist()
    assert rows == [{"f0": [0.25, 0.75], "f1": [0.25, 0.75], "f2": 1.0}]


def test_no_class_is_best_among_nan():
    for output, values in ((THREE, [[np.nan, 1, 2]]), (NUMBER, [np.nan])):
        (row,) = plan(output, kind="logits").arrays([np.float64(values)]).to_pylist()
        assert np.isnan(row["f2"])


def test_columns_of_a_classifier_can_be_left_out():
    chosen = plan(THREE, kind="logits", probability="", raw="")
    assert [field.column for field in chosen.fields] == ["prediction"]
    assert chosen.arrays([np.float32([[1, 3, 2]])]).to_pylist() == [1.0]


@pytest.mark.parametrize("outputs", [(THREE, NUMBER), (OutputSpec((2, 3), "float32"),)])
def test_outputs_that_cannot_be_scores_of_classes_are_refused(outputs):
    with pytest.raises(ConfigError, match="outputKind='logits'"):
        plan(*outputs, kind="logits")
