"""From the columns of a DataFrame to tensors: decide the contract, and build the packed Spark columns.

The contract is decided from the schema alone, before any job:

===========================================  =====================================  =========================
Spark type                                   feature                                label
===========================================  =====================================  =========================
byte, short, int, long                       int64                                  int64
float, double, decimal                       float32                                float32
boolean                                      float32, 0 or 1                        float32, 0 or 1
vector (dense, sparse or mixed)              float32, shape (n,)                    float32, shape (n,)
array, array of arrays, … of the above       by its elements, shape (n,), (n, m)    by its elements
string, binary, date, timestamp, map, …      ColumnError                            ColumnError
===========================================  =====================================  =========================

Columns that are concatenated into one tensor are int64 if all of them are integers, else float32 (integers
beyond 2**24 are then rounded). The row weight is float32. The sizes of vectors and arrays are not part of
a schema: their dimensions are :data:`UNKNOWN` in the contract until materialization has counted them.

In a materialized dataset each tensor is one column: a number, or one flat array in row-major order.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_ring.data.schema import Contract, SourceColumn, TensorSpec
from spark_ring.errors import ColumnError, ConfigError

__all__ = [
    "UNKNOWN",
    "array_depth",
    "quoted",
    "require_column",
    "resolve_contract",
    "source_column",
    "tensor_column",
]

UNKNOWN = -1
"""A dimension that only the data can tell."""

_INTEGERS = {"tinyint", "smallint", "int", "bigint"}
_FLOATS = {"float", "double"}
_CAST = {"float32": "float", "float64": "double", "int64": "bigint", "int32": "int"}

_ADVICE = {
    "string": "index it first (pyspark.ml.feature.StringIndexer), or cast it to a number",
    "char": "index it first (pyspark.ml.feature.StringIndexer), or cast it to a number",
    "varchar": "index it first (pyspark.ml.feature.StringIndexer), or cast it to a number",
    "binary": "decode it into an array of numbers first",
    "date": "turn it into numbers first, for example with functions.dayofweek or functions.unix_date",
    "timestamp": "turn it into numbers first, for example with functions.hour or functions.unix_timestamp",
    "map": "select the entries you need, for example with functions.element_at",
    "struct": "select its fields, for example df.select('s.a', 's.b')",
    "void": "it has no non-null value: cast it to a number and fill it, or leave it out",
    "interval": "turn it into a number first, for example seconds",
    "matrix": "turn it into an array of numbers first",
}


def resolve_contract(
    schema: T.StructType,
    inputs: str | Sequence[str] | Mapping[str, str | Sequence[str]],
    labels: Sequence[str] = (),
    weight: str | None = None,
) -> Contract:
    """Decide which columns become which tensors.

    Args:
        schema: of the user's DataFrame.
        inputs: one column's name (one positional argument); a list of names (one positional argument
            each); or a dict from keyword argument to a name, or to a list of names that are concatenated.
        labels: names of label columns, one tensor each.
        weight: name of the column of row weights.

    Returns:
        The contract; dimensions that only the data can tell are :data:`UNKNOWN`.

    Raises:
        ColumnError: a column is missing, ambiguous, or of a type that cannot become a tensor.
    """
    names = _Names(schema)
    return Contract(
        inputs=tuple(
            _tensor(names, f"x{i}", columns, key, joined)
            for i, (key, columns, joined) in enumerate(_arguments(inputs))
        ),
        labels=tuple(_tensor(names, f"y{i}", [name], None, False) for i, name in enumerate(labels)),
        weight=None if weight is None else _weight(names, weight),
    )


def require_column(schema: T.StructType, name: str) -> Any:
    """Return the Spark type of a column.

    Raises:
        ColumnError: there is no such column (the error gives near matches), or more than one.
    """
    return _Names(schema).spark_type(name)


def tensor_column(spec: TensorSpec) -> Column:
    """Return the Spark column that holds one tensor: a number, or a flat array, in the spec's dtype.

    Nulls stay: a null array makes the whole tensor null, a null number in it a null element. Used alike
    when a dataset is written and when a model scores.
    """
    cast = _CAST[spec.dtype]
    if len(spec.columns) == 1 and spec.shape == ():
        return source_column(spec.columns[0]).cast(cast).alias(spec.name)
    parts = [_flat(column, cast) for column in spec.columns]
    return (parts[0] if len(parts) == 1 else F.concat(*parts)).alias(spec.name)


def source_column(column: SourceColumn) -> Column:
    """Return the user's column, quoted, with vectors as arrays."""
    found = F.col(quoted(column.name))
    if column.spark_type == "vector":
        # The conversion raises on a null vector; it must not see one.
        return F.when(found.isNotNull(), _vector_to_array(found))
    return found


def quoted(name: str) -> str:
    """Return a column's name so that Spark takes dots, spaces and backticks in it literally."""
    return "`" + name.replace("`", "``") + "`"


def array_depth(spark_type: str) -> int:
    """Return how many arrays are nested in a type: 0 for a number, 1 for a vector."""
    return 1 if spark_type == "vector" else spark_type.count("array<")


def _flat(column: SourceColumn, cast: str) -> Column:
    found = source_column(column)
    depth = array_depth(column.spark_type)
    if depth == 0:
        return F.array(found.cast(cast))
    if column.spark_type != "vector" or cast != "float":
        found = found.cast("array<" * depth + cast + ">" * depth)
    for _ in range(depth - 1):
        found = F.flatten(found)
    return found


def _vector_to_array(column: Column) -> Column:
    try:
        from pyspark.ml.functions import vector_to_array
    except ImportError as error:  # pragma: no cover - Spark before 3.0
        raise ConfigError(
            "vector columns need pyspark.ml.functions.vector_to_array (Spark 3.0 or newer)"
        ) from error
    return vector_to_array(column, dtype="float32")


def _arguments(
    inputs: str | Sequence[str] | Mapping[str, str | Sequence[str]],
) -> list[tuple[str | None, list[str], bool]]:
    """Return, per argument of the model, its keyword, its columns, and whether they are concatenated."""
    if isinstance(inputs, str):
        return [(None, [inputs], False)]
    if isinstance(inputs, Mapping):
        return [
            (key, [names] if isinstance(names, str) else list(names), not isinstance(names, str))
            for key, names in inputs.items()
        ]
    return [(None, [name], False) for name in inputs]


def _tensor(names: _Names, tensor: str, columns: list[str], key: str | None, joined: bool) -> TensorSpec:
    found = [names.element(name) for name in columns]
    if joined:
        for name, element in zip(columns, found, strict=True):
            if element.depth > 1:
                raise ColumnError(
                    f"column {name!r} is {element.spark_type}: a nested array cannot be concatenated with "
                    f'others; give it an argument of its own, inputCols={{"{key}": "{name}"}}',
                    column=name,
                )
        shape: tuple[int, ...] = (UNKNOWN if any(element.depth for element in found) else len(found),)
    else:
        shape = (UNKNOWN,) * found[0].depth
    return TensorSpec(
        name=tensor,
        columns=tuple(
            SourceColumn(name, element.spark_type, UNKNOWN if element.depth else 1)
            for name, element in zip(columns, found, strict=True)
        ),
        dtype="int64" if all(element.integer for element in found) else "float32",
        shape=shape,
        key=key,
    )


def _weight(names: _Names, name: str) -> TensorSpec:
    element = names.element(name)
    if element.depth:
        raise ColumnError(
            f"weight column {name!r} is {element.spark_type}; a row's weight is one number", column=name
        )
    return TensorSpec("w", (SourceColumn(name, element.spark_type),), "float32")


@dataclass(frozen=True)
class _Element:
    """What a column's type comes down to."""

    spark_type: str
    depth: int
    integer: bool


class _Names:
    """The columns of a DataFrame, by exact name."""

    def __init__(self, schema: T.StructType) -> None:
        self._fields: dict[str, list[Any]] = {}
        for field in schema.fields:
            self._fields.setdefault(field.name, []).append(field)

    def element(self, name: str) -> _Element:
        """Return what a column holds, or raise ColumnError."""
        return _element(name, self.spark_type(name))

    def spark_type(self, name: str) -> Any:
        """Return a column's Spark type, or raise ColumnError."""
        fields = self._fields.get(name)
        if not fields:
            raise ColumnError(self._missing(name), column=name)
        if len(fields) > 1:
            raise ColumnError(
                f"the DataFrame has {len(fields)} columns named {name!r}; rename or drop all but one",
                column=name,
            )
        return fields[0].dataType

    def _missing(self, name: str) -> str:
        close = difflib.get_close_matches(name.lower(), [known.lower() for known in self._fields], n=3)
        meant = [known for known in self._fields if known.lower() in close]
        if meant:
            return f"the DataFrame has no column {name!r}; did you mean {' or '.join(map(repr, meant))}?"
        if name.split(".")[0] in self._fields:
            return (
                f"the DataFrame has no column {name!r}; a struct's field must be selected first, "
                f'for example df.withColumn("{name.split(".")[-1]}", functions.col("{name}"))'
            )
        shown = sorted(self._fields)
        more = f", … ({len(shown)} in all)" if len(shown) > 20 else ""
        return f"the DataFrame has no column {name!r}; it has {', '.join(shown[:20])}{more}"


def _element(name: str, spark_type: Any) -> _Element:
    text = spark_type.simpleString()
    if text == "vector":
        return _Element(text, depth=1, integer=False)
    inner, depth = spark_type, 0
    while isinstance(inner, T.ArrayType):
        inner, depth = inner.elementType, depth + 1
    kind = inner.simpleString()
    if kind not in _INTEGERS | _FLOATS | {"boolean"} and not isinstance(inner, T.DecimalType):
        raise ColumnError(
            f"column {name!r} is {text}, which cannot become a tensor of numbers: {_advice(kind)}",
            column=name,
        )
    return _Element(text, depth, kind in _INTEGERS)


def _advice(kind: str) -> str:
    for start, advice in _ADVICE.items():
        if kind.startswith(start) or (start == "interval" and start in kind):
            return advice
    return "cast it to a number, a vector or an array of numbers"
