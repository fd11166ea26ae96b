"""Batched inference as a Spark expression.

``transform`` must launch no job, work on streaming DataFrames and on Spark Connect, and send nothing but the
features to Python. All of that follows from one choice: predictions are a column, computed by a scalar UDF
over the packed tensor columns that :func:`~spark_ring.spark.columns.tensor_column` builds, the same that a
fit writes. Where Spark has ``arrow_udf`` (4.1 and later) that is used, else ``pandas_udf``; both in the form
that takes an iterator of batches.

Checks that need no data are made here, on the driver, when ``transform`` is called: columns that are missing
or of another kind, and names that are taken. What only the data can tell (nulls, the width of a vector)
fails in the worker with the column's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, cast

import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_ring.artifact import FittedModel
from spark_ring.artifact.outputs import Field, OutputPlan
from spark_ring.data.schema import Contract, SourceColumn, TensorSpec
from spark_ring.errors import ColumnError, ConfigError
from spark_ring.spark.columns import array_depth, quoted, resolve_contract, tensor_column
from spark_ring.spark.scorer import Scorer
from spark_ring.spark.shipping import ship

__all__ = ["add_predictions", "bind", "has_arrow_udf"]

Inputs = str | Sequence[str] | Mapping[str, str | Sequence[str]]

_RESULT = "__spark_ring_result"


def add_predictions(
    dataset: DataFrame,
    model: FittedModel,
    inputs: Inputs,
    plan: OutputPlan,
    *,
    batch_size: int,
    handle_invalid: str,
    arrow: bool | None = None,
) -> DataFrame:
    """Return ``dataset`` with the plan's columns added; nothing is run.

    Args:
        dataset: classic or Connect, batch or streaming.
        model: the fitted model.
        inputs: names of the input columns, arranged as the model was fitted.
        plan: which columns to add.
        batch_size: rows per forward pass.
        handle_invalid: ``"error"``, ``"keep"`` or ``"skip"`` rows with nulls.
        arrow: whether to use ``arrow_udf``; ``None`` does where Spark has it.

    Raises:
        ColumnError: an input column is missing, or of a kind that the model was not fitted on.
        ConfigError: a column to be added exists already.
    """
    connect = type(dataset).__module__.startswith("pyspark.sql.connect")
    _check_free(dataset, [field.column for field in plan.fields])
    contract = bind(model.contract, inputs, dataset)
    scorer = Scorer(
        source=ship(model, dataset.sparkSession, connect=connect),
        key=f"{model.digest}:{contract.to_json()}",
        framework=model.framework,
        contract=contract,
        plan=plan,
        batch_size=batch_size,
        keep_invalid=handle_invalid == "keep",
    )
    tensors = [tensor_column(spec) for spec in contract.inputs]
    valid = reduce(Column.__and__, map(_is_valid, tensors, contract.inputs))
    if handle_invalid == "skip":
        dataset = dataset.filter(valid)
    dataset = _row_based(dataset)
    if has_arrow_udf() if arrow is None else arrow:
        return _take_apart(dataset, _arrow_udf(scorer)(*tensors), plan)
    return _take_apart(dataset, _pandas_udf(scorer)(valid, *tensors), plan, valid)


def bind(contract: Contract, inputs: Inputs, dataset: DataFrame) -> Contract:
    """Return the input side of a contract for this DataFrame: its columns' names and types.

    A tensor of floats takes any number; a tensor of integers takes integers only. Vectors and arrays stand
    for each other. Sizes are those of the fit.

    Raises:
        ColumnError: a column is missing, ambiguous, or of another kind than was fitted.
        ConfigError: another number of columns than was fitted.
    """
    names = _arranged(inputs, contract)
    found = iter(resolve_contract(dataset.schema, [name for group in names for name in group]).inputs)
    return Contract(
        inputs=tuple(
            replace(
                spec,
                columns=tuple(_fitting(old, next(found), spec) for old in spec.columns),
            )
            for spec, _ in zip(contract.inputs, names, strict=True)
        )
    )


def has_arrow_udf() -> bool:
    """Whether this Spark has ``arrow_udf``; asked of Spark itself, since vendors number versions as they
    like.
    """
    return hasattr(F, "arrow_udf")


def _arranged(inputs: Inputs, contract: Contract) -> list[list[str]]:
    """Return the column names of each tensor, after checking that they are arranged as in the contract."""
    if isinstance(inputs, str):
        groups: list[tuple[str | None, list[str]]] = [(None, [inputs])]
    elif isinstance(inputs, Mapping):
        groups = [(key, [names] if isinstance(names, str) else list(names)) for key, names in inputs.items()]
    else:
        groups = [(None, [name]) for name in inputs]
    expected = [(spec.key, len(spec.columns)) for spec in contract.inputs]
    if [(key, len(names)) for key, names in groups] != expected:
        fitted = ", ".join(f"{key or 'a positional argument'}: {count} column(s)" for key, count in expected)
        raise ConfigError(f"the model was fitted on {fitted}; the input columns are now {inputs!r}")
    return [names for _, names in groups]


def _fitting(old: SourceColumn, found: TensorSpec, spec: TensorSpec) -> SourceColumn:
    new = found.columns[0]
    same_depth = array_depth(old.spark_type) == array_depth(new.spark_type)
    if not same_depth or (spec.dtype.startswith("int") and not found.dtype.startswith("int")):
        raise ColumnError(
            f"column {new.name!r} is {new.spark_type}; the model was fitted on {old.spark_type} "
            f"({spec.dtype}{list(spec.shape) if spec.shape else ''}). Cast it before transform",
            column=new.name,
        )
    return replace(old, name=new.name, spark_type=new.spark_type)


def _check_free(dataset: DataFrame, wanted: Sequence[str]) -> None:
    taken = {name.lower(): name for name in dataset.columns}
    for position, name in enumerate(wanted):
        if name.lower() in taken:
            raise ConfigError(
                f"the DataFrame already has a column {taken[name.lower()]!r}, which transform would "
                "add; drop it, or choose another name with setPredictionCol (setProbabilityCol, "
                "setRawPredictionCol)"
            )
        if name.lower() in {other.lower() for other in wanted[:position]}:
            raise ConfigError(f"transform would add two columns {name!r}; give them different names")


def _is_valid(tensor: Column, spec: TensorSpec) -> Column:
    """Whether a row's tensor is not null and holds no null."""
    if spec.shape == () and len(spec.columns) == 1:
        return tensor.isNotNull()
    return tensor.isNotNull() & ~F.exists(tensor, lambda element: element.isNull())


def _row_based(dataset: DataFrame) -> DataFrame:
    """Keep Spark from handing a scan's column batches straight to the UDF where it cannot.

    Spark 4.3 does that for a scan without any other operation, and fails on a column of a user-defined type
    (a vector), whether the UDF uses it or not. A filter that lets every row pass is such an operation, and
    costs nothing that can be measured; the optimizer does not see through it.
    """
    for field in dataset.schema.fields:
        if _has_user_type(field.dataType):
            column = F.col(quoted(field.name))
            return dataset.filter(column.isNull() | column.isNotNull())
    return dataset


def _has_user_type(data_type: T.DataType) -> bool:
    if isinstance(data_type, T.ArrayType):
        return _has_user_type(data_type.elementType)
    if isinstance(data_type, T.MapType):
        return _has_user_type(data_type.keyType) or _has_user_type(data_type.valueType)
    if isinstance(data_type, T.StructType):
        return any(_has_user_type(field.dataType) for field in data_type.fields)
    return isinstance(data_type, T.UserDefinedType)


def _arrow_udf(scorer: Scorer) -> Any:
    def score(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        yield from scorer.score(_tuples(batches), _task_cpus())

    return F.arrow_udf(score, scorer.plan.spark_type)


def _pandas_udf(scorer: Scorer) -> Any:
    single = len(scorer.plan.fields) == 1

    # pandas has no null beside NaN, so whether a row is valid comes in a column of its own.
    def score(batches: Iterator[tuple[pd.Series, ...]]) -> Iterator[Any]:
        arrays = (_from_pandas(batch, scorer.contract) for batch in batches)
        for result in scorer.score(arrays, _task_cpus()):
            yield _to_pandas(result, single)

    # Spark learns from the type hints what comes in and goes out; a struct goes out as a DataFrame.
    given: Any = Iterator[tuple[pd.Series, ...]]
    returned: Any = Iterator[pd.Series] if single else Iterator[pd.DataFrame]
    score.__annotations__.update({"batches": given, "return": returned})
    return F.pandas_udf(score, scorer.plan.spark_type)


def _tuples(batches: Iterator[Any]) -> Iterator[Sequence[pa.Array]]:
    """Spark gives a bare array for one column and a tuple for several."""
    for batch in batches:
        yield batch if isinstance(batch, tuple) else (batch,)


def _from_pandas(batch: tuple[pd.Series, ...], contract: Contract) -> list[pa.Array]:
    invalid = ~batch[0].to_numpy(bool)
    return [
        pa.array(series, _arrow_type(spec), mask=invalid, from_pandas=False)
        for series, spec in zip(batch[1:], contract.inputs, strict=True)
    ]


def _arrow_type(spec: TensorSpec) -> pa.DataType:
    number = pa.from_numpy_dtype(spec.dtype)
    return number if spec.shape == () and len(spec.columns) == 1 else pa.list_(number)


def _to_pandas(result: pa.Array, single: bool) -> Any:
    if single:
        return result.to_pandas()
    return pd.DataFrame({field.name: result.field(i).to_pandas() for i, field in enumerate(result.type)})


def _task_cpus() -> int:
    """CPUs that Spark gave to this task: one, unless ``spark.task.cpus`` says more."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return max(1, context.cpus()) if context is not None else 1


def _take_apart(
    dataset: DataFrame, result: Column, plan: OutputPlan, valid: Column | None = None
) -> DataFrame:
    """Add the plan's columns. Where ``valid`` is true, what pandas turned into null becomes NaN again."""
    holding = dataset.withColumn(_RESULT, result)
    whole = F.col(_RESULT)
    parts = [whole] if len(plan.fields) == 1 else [whole[f"f{i}"] for i in range(len(plan.fields))]
    for field, part in zip(plan.fields, parts, strict=True):
        if valid is not None:
            part = F.when(valid, _nan_for_null(part, len(field.shape)))
        holding = holding.withColumn(field.column, _as_column(part, field))
    return cast(DataFrame, holding.drop(_RESULT))


def _nan_for_null(part: Column, depth: int) -> Column:
    if depth:
        return F.transform(part, lambda element: _nan_for_null(element, depth - 1))
    return F.coalesce(part, F.lit(float("nan")))


def _as_column(part: Column, field: Field) -> Column:
    if len(field.shape) != 1:
        return part
    from pyspark.ml.functions import array_to_vector

    return F.when(part.isNotNull(), array_to_vector(part))
