"""What one pass over the data counts, and what must hold before any worker starts.

The counts are aggregates that Spark computes while it writes the dataset (an ``Observation``), so only a few
numbers per tensor reach the driver, whatever the size of the data::

    rows                      of each split
    per tensor                nulls, null elements, NaN or infinite rows, smallest and largest value
    per array or vector       shortest and longest length, at each level of nesting

A tensor that fails a check and is made of several columns gets a second, exact count per source column: that
costs another pass, but only where fit fails anyway. Then the error names the user's column.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_ring.data.schema import Contract, SourceColumn, TensorSpec
from spark_ring.errors import ColumnError, DataError
from spark_ring.spark.columns import UNKNOWN, array_depth, quoted, source_column, tensor_column
from spark_ring.spark.split import VALIDATION, Split

__all__ = ["check", "completed", "observed", "source_helpers", "summary", "with_helpers"]

_SPLIT, _MISFIT = "split", "misfit"


def source_helpers(contract: Contract, split: Split) -> list[Column]:
    """Return columns over the user's DataFrame that are counted and not written.

    The lengths that a packed tensor no longer shows: of the arrays that were concatenated or flattened into
    it; and whether the validation indicator is neither 0 nor 1.
    """
    found = [split.misfit().alias(_MISFIT)]
    for spec in contract.tensors:
        if _shows_its_length(spec):
            continue
        for i, column in enumerate(spec.columns):
            for level, (shortest, longest) in enumerate(_lengths(column)):
                found.append(shortest.alias(f"{spec.name}.{i}.{level}.shortest"))
                found.append(longest.alias(f"{spec.name}.{i}.{level}.longest"))
    return found


def with_helpers(packed: DataFrame, contract: Contract) -> DataFrame:
    """Add what is counted of the packed arrays, computed once per row and in compiled code."""
    helpers = []
    for spec in contract.tensors:
        if not _is_scalar(spec):
            for name, value in _of_array(F.col(spec.name), spec.dtype).items():
                helpers.append(value.alias(f"{spec.name}.{name}"))
    return packed.select("*", *helpers)


def observed(contract: Contract, split: Split) -> list[Column]:
    """Return the aggregates, each with its name, over tensors and helper columns."""
    found = [F.count(F.lit(1)).alias("rows"), _count(F.col(_MISFIT)).alias("misfits")]
    if split.wanted:
        found.append(_count(F.col(_SPLIT) == F.lit(VALIDATION)).alias("val_rows"))
    for spec in contract.tensors:
        parts = _of_number(F.col(spec.name)) if _is_scalar(spec) else _helpers_of(spec)
        for name, value in _measures(parts, spec.dtype).items():
            found.append(value.alias(f"{spec.name}.{name}"))
        for i, column in enumerate(spec.columns):
            for level in range(array_depth(column.spark_type)):
                name = f"{spec.name}.{i}.{level}"
                shortest, longest = (f"{name}.shortest", f"{name}.longest")
                if _shows_its_length(spec):
                    shortest = longest = f"{spec.name}.length"
                found.append(F.min(F.col(quoted(shortest))).alias(f"{name}.shortest"))
                found.append(F.max(F.col(quoted(longest))).alias(f"{name}.longest"))
    if contract.weight is not None:
        found.append(F.sum(F.col(contract.weight.name).cast("double")).alias("w.sum"))
    return found


def check(counts: Mapping[str, Any], contract: Contract, split: Split, df: DataFrame) -> None:
    """Raise what is wrong with the data.

    Args:
        counts: what :func:`observed` gave.
        contract: the contract without sizes.
        split: how rows are divided.
        df: the user's DataFrame, read again only to say more about an error.

    Raises:
        DataError: there are no rows to train on.
        ColumnError: a column holds nulls, NaN, infinite values or arrays of unequal length.
    """
    rows = counts["rows"]
    if rows == 0:
        raise DataError("the DataFrame has no rows; training needs at least one")
    if counts["misfits"]:
        assert split.indicator is not None
        raise ColumnError(
            f"validation indicator column {split.indicator!r} is null or neither 0 nor 1 in "
            f"{counts['misfits']} of {rows} rows; it must be 1 for validation, 0 for training",
            column=split.indicator,
        )
    if counts.get("val_rows", 0) == rows:
        raise DataError(f"all {rows} rows are marked for validation; training needs at least one row")
    for spec in contract.tensors:
        _check_tensor(counts, spec, rows, df)
    if contract.weight is not None:
        _check_weight(counts, contract.weight.columns[0].name)


def completed(contract: Contract, counts: Mapping[str, Any]) -> Contract:
    """Return the contract with every dimension known; the data have passed :func:`check`."""

    def tensor(spec: TensorSpec) -> TensorSpec:
        lengths = [_found_lengths(counts, spec, i) for i in range(len(spec.columns))]
        widths = [math.prod(found) for found in lengths]
        if UNKNOWN in spec.shape:
            shape = (sum(widths),) if len(spec.columns) > 1 or len(spec.shape) == 1 else tuple(lengths[0])
        else:
            shape = spec.shape
        columns = tuple(replace(column, width=w) for column, w in zip(spec.columns, widths, strict=True))
        return replace(spec, columns=columns, shape=shape)

    return Contract(
        inputs=tuple(map(tensor, contract.inputs)),
        labels=tuple(map(tensor, contract.labels)),
        weight=None if contract.weight is None else tensor(contract.weight),
    )


def summary(counts: Mapping[str, Any], contract: Contract) -> dict[str, Any]:
    """Return what is worth keeping with the dataset: smallest and largest value per tensor."""
    return {
        spec.name: {"min": counts[f"{spec.name}.min"], "max": counts[f"{spec.name}.max"]}
        for spec in contract.tensors
    }


def _of_number(value: Column) -> dict[str, Column]:
    """Return what is counted of a number."""
    return {"null": value.isNull(), "low": value, "high": value}


def _of_array(packed: Column, dtype: str) -> dict[str, Column]:
    """Return what is counted of one packed array."""
    if dtype.startswith("float"):
        # Looking for a value gives null when it is not found and some element is null.
        hole = F.array_contains(packed, F.lit(float("nan")).cast("float")).isNull()
    else:
        hole = F.exists(packed, lambda element: element.isNull())
    return {
        "null": packed.isNull(),
        "low": F.array_min(packed),
        "high": F.array_max(packed),
        "hole": packed.isNotNull() & hole,
        "length": F.when(packed.isNotNull(), F.size(packed)),
    }


def _helpers_of(spec: TensorSpec) -> dict[str, Column]:
    names = ("null", "low", "high", "hole", "length")
    return {name: F.col(quoted(f"{spec.name}.{name}")) for name in names}


def _measures(parts: Mapping[str, Column], dtype: str) -> dict[str, Column]:
    """Return the aggregates of one tensor (or of one source column in the same form)."""
    low, high = parts["low"], parts["high"]
    measures = {"nulls": _count(parts["null"]), "min": F.min(low), "max": F.max(high)}
    if "hole" in parts:
        measures["holes"] = _count(parts["hole"])
    if dtype.startswith("float"):
        # Spark orders NaN above every number, infinity included.
        inf = float("inf")
        measures["bad"] = _count(F.isnan(high) | (high == F.lit(inf)) | (low == F.lit(-inf)))
    return measures


def _lengths(column: SourceColumn) -> list[tuple[Column, Column]]:
    """Return, per level of nesting, the shortest and longest length within a row."""
    depth = array_depth(column.spark_type)
    if depth == 0:
        return []
    found = source_column(column)
    outer = F.when(found.isNotNull(), F.size(found))
    pairs = [(outer, outer)]
    for _ in range(depth - 1):
        inner = F.transform(found, lambda element: F.when(element.isNotNull(), F.size(element)))
        pairs.append((F.array_min(inner), F.array_max(inner)))
        found = F.flatten(found)
    return pairs


def _check_tensor(counts: Mapping[str, Any], spec: TensorSpec, rows: int, df: DataFrame) -> None:
    for i, column in enumerate(spec.columns):
        if counts[f"{spec.name}.nulls"] == rows and len(spec.columns) == 1:
            break  # nothing has a length; reported below
        _check_lengths(counts, spec, i, column, df)
    found = {name: counts.get(f"{spec.name}.{name}", 0) for name in ("nulls", "holes", "bad")}
    if not any(found.values()):
        return
    if len(spec.columns) == 1:
        _report(spec.columns[0], found, rows, spec.dtype)
    for column in spec.columns:
        alone = _shaped_alone(spec, column)
        packed = tensor_column(alone)
        parts = _of_number(packed) if _is_scalar(alone) else _of_array(packed, alone.dtype)
        measures = _measures(parts, alone.dtype)
        row = df.agg(*(value.alias(name) for name, value in measures.items())).collect()[0].asDict()
        _report(column, row, rows, spec.dtype)
    raise ColumnError(
        f"columns {', '.join(repr(column.name) for column in spec.columns)} hold nulls or NaN in "
        f"{max(found.values())} of {rows} rows; fill or drop them",
        column=spec.columns[0].name,
    )


def _report(column: SourceColumn, found: Mapping[str, Any], rows: int, dtype: str) -> None:
    what = f"column {column.name!r} ({column.spark_type})"
    inner = ", or holds a null array," if array_depth(column.spark_type) > 1 else ""
    if found["nulls"] == rows:
        raise ColumnError(
            f"{what} has no non-null value in {rows} rows; leave it out or fill it", column=column.name
        )
    if found["nulls"]:
        raise ColumnError(
            f"{what} is null{inner} in {found['nulls']} of {rows} rows; fill the nulls (df.fillna, "
            f"pyspark.ml.feature.Imputer) or drop the rows, df.dropna(subset=[{quoted(column.name)!r}])",
            column=column.name,
        )
    if found.get("holes"):
        raise ColumnError(
            f"{what} has null elements in {found['holes']} of {rows} rows; every element must be a number",
            column=column.name,
        )
    if found.get("bad"):
        raise ColumnError(
            f"{what} is NaN or infinite as {dtype} in {found['bad']} of {rows} rows; training would "
            "give NaN. Fill or drop them",
            column=column.name,
        )


def _check_lengths(
    counts: Mapping[str, Any], spec: TensorSpec, i: int, column: SourceColumn, df: DataFrame
) -> None:
    for level in range(array_depth(column.spark_type)):
        short = counts[f"{spec.name}.{i}.{level}.shortest"]
        long = counts[f"{spec.name}.{i}.{level}.longest"]
        what = f"column {column.name!r} ({column.spark_type})"
        where = "" if level == 0 else f" at nesting level {level + 1}"
        if short is None:  # every row is null, or empty at the level above
            return
        if short != long:
            lengths = _seen_lengths(df, column) if level == 0 else f"{short} to {long}"
            raise ColumnError(
                f"{what} has arrays of different length{where}: {lengths}; every row of a tensor has "
                "the same length: pad or cut them first",
                column=column.name,
            )
        if long == 0:
            raise ColumnError(f"{what} has only empty arrays{where}", column=column.name)


def _seen_lengths(df: DataFrame, column: SourceColumn) -> str:
    length = F.size(source_column(column)).alias("length")
    found = df.where(F.col(quoted(column.name)).isNotNull()).groupBy(length).count()
    seen = found.orderBy(F.col("count").desc(), F.col("length")).limit(6).collect()
    listed = ", ".join(f"{row['length']} ({row['count']} rows)" for row in seen[:5])
    return listed + (", …" if len(seen) > 5 else "")


def _check_weight(counts: Mapping[str, Any], name: str) -> None:
    if counts["w.min"] < 0:
        raise ColumnError(
            f"weight column {name!r} goes down to {counts['w.min']:g}; weights are >= 0", column=name
        )
    if counts["w.sum"] == 0:
        raise ColumnError(f"weight column {name!r} is 0 in every row; nothing would be learned", column=name)


def _found_lengths(counts: Mapping[str, Any], spec: TensorSpec, i: int) -> list[int]:
    levels = range(array_depth(spec.columns[i].spark_type))
    return [int(counts[f"{spec.name}.{i}.{level}.longest"]) for level in levels]


def _shaped_alone(spec: TensorSpec, column: SourceColumn) -> TensorSpec:
    depth = array_depth(column.spark_type)
    return replace(spec, columns=(column,), shape=(UNKNOWN,) * depth)


def _shows_its_length(spec: TensorSpec) -> bool:
    """Whether the packed array's length is the source's: one column, not nested."""
    return len(spec.columns) == 1 and array_depth(spec.columns[0].spark_type) == 1


def _is_scalar(spec: TensorSpec) -> bool:
    return len(spec.columns) == 1 and spec.shape == ()


def _count(condition: Column) -> Column:
    """Count rows where a condition holds; 0, not null, where there are none."""
    return F.count(F.when(condition, F.lit(1)))
