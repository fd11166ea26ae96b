"""A model's inputs and outputs as MLflow describes them, from the column contract.

The source columns are the inputs, under their own names. Vectors and arrays are tensors, so MLflow reshapes
an ``array<double>`` column and takes NumPy arrays; plain numbers are columns. MLflow cannot mix the two
kinds, nor can it make a tensor of nested arrays: with any tensor all are tensors, and with a nested array
all are columns.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np

from spark_ring.artifact.outputs import OutputPlan
from spark_ring.data.schema import Contract, SourceColumn, TensorSpec

__all__ = ["example_frame", "model_signature", "source_columns", "value_shape"]

# Spark's element type → NumPy's; MLflow derives its own names from these.
_NUMPY = {
    "tinyint": "int32",
    "smallint": "int32",
    "int": "int32",
    "bigint": "int64",
    "float": "float32",
    "double": "float64",
    "boolean": "bool",
    "vector": "float64",
}


def source_columns(contract: Contract) -> dict[str, tuple[SourceColumn, TensorSpec]]:
    """Return the input columns by name, in order; a column that feeds two tensors is there once."""
    found: dict[str, tuple[SourceColumn, TensorSpec]] = {}
    for spec in contract.inputs:
        for column in spec.columns:
            found.setdefault(column.name, (column, spec))
    return found


def value_shape(column: SourceColumn, spec: TensorSpec) -> tuple[int, ...]:
    """Return the shape of one row's value in a source column: its own, not that of the tensor."""
    if column.spark_type.count("array<") > 1:
        return spec.shape
    if column.spark_type != "vector" and not column.spark_type.startswith("array<"):
        return ()
    return (column.width if len(spec.columns) > 1 else math.prod(spec.shape),)


def model_signature(contract: Contract, plan: OutputPlan) -> Any:
    """Return MLflow's ``ModelSignature``."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema, TensorSpec
    from mlflow.types.schema import Array

    columns = {
        name: (np.dtype(_element(column)), value_shape(column, spec))
        for name, (column, spec) in source_columns(contract).items()
    }
    depth = max(len(shape) for _, shape in columns.values())
    inputs: list[Any]
    if depth == 1:
        inputs = [TensorSpec(dtype, (-1, *shape), name) for name, (dtype, shape) in columns.items()]
    else:
        inputs = [
            ColSpec(_nested(Array, DataType.from_numpy_type(dtype), len(shape)), name)
            for name, (dtype, shape) in columns.items()
        ]
    outputs = [
        ColSpec(_nested(Array, DataType.double, len(field.shape)), field.column) for field in plan.fields
    ]
    return ModelSignature(inputs=Schema(inputs), outputs=Schema(outputs))


def example_frame(rows: Any, contract: Contract) -> Any:
    """Return rows as an input example: a pandas DataFrame of the source columns in JSON's own types.

    Args:
        rows: a pandas DataFrame, for example ``df.select(…).limit(5).toPandas()``; vectors are welcome.
        contract: of the model.
    """
    import pandas as pd

    columns = source_columns(contract)
    return pd.DataFrame(
        {
            name: pd.Series([_plain(value) for value in rows[name]], dtype=object if shape else None)
            for name, shape in ((name, value_shape(*found)) for name, found in columns.items())
        }
    )


def _nested(array: Any, element: Any, depth: int) -> Any:
    return element if depth == 0 else array(_nested(array, element, depth - 1))


def _element(column: SourceColumn) -> str:
    inner = column.spark_type.replace("array<", "").rstrip(">")
    return _NUMPY.get(inner, "float64")  # decimals are the rest


def _plain(value: Any) -> Any:
    if hasattr(value, "toArray"):  # a Spark vector
        value = value.toArray()
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_plain(one) for one in value]
    if isinstance(value, np.generic):
        return value.item()
    return float(value) if isinstance(value, Decimal) else value
