"""A contract as MLflow describes a model."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from pyspark.ml.linalg import Vectors

from spark_ring.artifact import OutputSpec
from spark_ring.artifact.outputs import plan_outputs
from spark_ring.data.schema import Contract, SourceColumn, TensorSpec
from spark_ring.tracking.signature import example_frame, model_signature, source_columns, value_shape


def contract(*columns, shape=(), dtype="float32"):
    return Contract((TensorSpec("x0", tuple(SourceColumn(*column) for column in columns), dtype, shape),))


def signature(of, *outputs, kind="value"):
    plan = plan_outputs(
        outputs or [OutputSpec((), "float32")],
        kind=kind,
        integer_label=False,
        prediction="prediction",
        probability="probability",
        raw="rawPrediction",
    )
    made = model_signature(of, plan)
    return str(made.inputs), str(made.outputs)


@pytest.mark.parametrize(
    ("columns", "shape", "described"),
    [
        (
            [("a b", "double"), ("n", "int"), ("t", "boolean")],
            (3,),
            ["'a b': double", "'n': integer", "'t': boolean"],
        ),
        ([("big", "bigint"), ("d", "decimal(18,2)")], (2,), ["'big': long", "'d': double"]),
        ([("f", "vector", 3)], (3,), ["'f': Tensor('float64', (-1, 3))"]),
        ([("f", "array<float>", 784)], (28, 28), ["'f': Tensor('float32', (-1, 784))"]),
        (
            [("f", "vector", 2), ("n", "int")],
            (3,),
            ["'f': Tensor('float64', (-1, 2))", "'n': Tensor('int32', (-1,))"],
        ),
        ([("m", "array<array<double>>", 6)], (2, 3), ["'m': Array(Array(double))"]),
    ],
)
def test_inputs_are_the_source_columns(columns, shape, described):
    found, _ = signature(contract(*columns, shape=shape))
    for text in described:
        assert text in found


def test_outputs_are_the_columns_that_transform_adds():
    of = contract(("f", "vector", 3), shape=(3,))
    assert "'prediction': double" in signature(of)[1]
    assert "'prediction': Array(double)" in signature(of, OutputSpec((4,), "float32"))[1]
    _, classes = signature(of, OutputSpec((4,), "float32"), kind="logits")
    for text in ("'rawPrediction': Array(double)", "'probability': Array(double)", "'prediction': double"):
        assert text in classes


def test_a_column_that_feeds_two_tensors_is_one_input():
    column = SourceColumn("a", "double")
    both = Contract(
        (TensorSpec("x0", (column,), "float32"), TensorSpec("x1", (column, column), "float32", (2,)))
    )
    assert list(source_columns(both)) == ["a"]


def test_the_shape_of_a_value_is_that_of_its_column_not_of_the_tensor():
    spec = TensorSpec("x0", (SourceColumn("v", "vector", 3), SourceColumn("n", "int")), "float32", (4,))
    assert [value_shape(column, spec) for column in spec.columns] == [(3,), ()]


def test_an_example_is_made_of_jsons_own_types():
    rows = pd.DataFrame(
        {
            "v": [Vectors.dense(1.0, 2.0), Vectors.sparse(2, [1], [3.0])],
            "d": [Decimal("1.5"), Decimal("2")],
            "n": np.array([1, 2], "int32"),
            "unused": ["x", "y"],
        }
    )
    frame = example_frame(
        rows, contract(("v", "vector", 2), ("d", "decimal(18,2)"), ("n", "int"), shape=(4,))
    )
    assert frame.to_dict("list") == {"v": [[1.0, 2.0], [0.0, 3.0]], "d": [1.5, 2.0], "n": [1, 2]}
