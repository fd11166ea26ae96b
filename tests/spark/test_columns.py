"""The column contract and the packed columns."""

from __future__ import annotations

import pytest
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import types as T

from spark_ring.errors import ColumnError
from spark_ring.spark.columns import UNKNOWN, quoted, resolve_contract, tensor_column

NUMBERS = T.StructType(
    [
        T.StructField("b", T.BooleanType()),
        T.StructField("i", T.IntegerType()),
        T.StructField("l", T.LongType()),
        T.StructField("f", T.FloatType()),
        T.StructField("d", T.DoubleType()),
        T.StructField("m", T.DecimalType(18, 2)),
        T.StructField("v", VectorUDT()),
        T.StructField("a", T.ArrayType(T.DoubleType())),
        T.StructField("ai", T.ArrayType(T.IntegerType())),
        T.StructField("aa", T.ArrayType(T.ArrayType(T.ShortType()))),
        T.StructField("s", T.StringType()),
        T.StructField("t", T.TimestampType()),
        T.StructField("st", T.StructType([T.StructField("x", T.DoubleType())])),
        T.StructField("n", T.NullType()),
    ]
)


@pytest.mark.parametrize(
    ("column", "dtype", "shape"),
    [
        ("b", "float32", ()),
        ("i", "int64", ()),
        ("l", "int64", ()),
        ("f", "float32", ()),
        ("d", "float32", ()),
        ("m", "float32", ()),
        ("v", "float32", (UNKNOWN,)),
        ("a", "float32", (UNKNOWN,)),
        ("ai", "int64", (UNKNOWN,)),
        ("aa", "int64", (UNKNOWN, UNKNOWN)),
    ],
)
def test_each_type_has_one_dtype_as_feature_and_as_label(column, dtype, shape):
    """Cases 2, 16, 17, 22: the same rule for features and labels; integers stay integers."""
    contract = resolve_contract(NUMBERS, column, [column])
    for spec in (*contract.inputs, *contract.labels):
        assert (spec.dtype, spec.shape) == (dtype, shape)


def test_a_list_gives_positional_and_a_dict_keyword_arguments():
    """Case 49: five columns as five arguments, or as one tensor."""
    five = ["b", "i", "l", "f", "d"]
    assert [(t.name, t.key, t.shape) for t in resolve_contract(NUMBERS, five).inputs] == [
        (f"x{i}", None, ()) for i in range(5)
    ]
    (one,) = resolve_contract(NUMBERS, {"x": five}).inputs
    assert (one.key, one.shape, one.dtype) == ("x", (5,), "float32")
    dense, item, one_wide = resolve_contract(
        NUMBERS, {"dense": ["d", "v"], "item": "i", "wide": ["l"]}
    ).inputs
    assert (dense.key, dense.shape, dense.dtype) == ("dense", (UNKNOWN,), "float32")
    assert (item.key, item.shape, item.dtype) == ("item", (), "int64")
    assert (one_wide.shape, one_wide.dtype) == ((1,), "int64")


@pytest.mark.parametrize(
    ("column", "advice"),
    [
        ("s", "StringIndexer"),
        ("t", "unix_timestamp"),
        ("st", "select its fields"),
        ("n", "no non-null value"),
    ],
)
def test_a_type_without_numbers_is_refused_with_advice(column, advice):
    """Cases 5, 8, 47: the error names column and type, and says what to do."""
    with pytest.raises(ColumnError, match=advice) as caught:
        resolve_contract(NUMBERS, column)
    assert caught.value.column == column
    assert repr(column) in str(caught.value)


def test_a_missing_column_is_refused_with_near_matches():
    schema = T.StructType([T.StructField("arr_delay", T.DoubleType()), T.StructField("s", T.StructType())])
    with pytest.raises(ColumnError, match=r"did you mean 'arr_delay'\?"):
        resolve_contract(schema, "Arr_Delay")
    with pytest.raises(ColumnError, match="must be selected first"):
        resolve_contract(schema, "s.zzzzz")
    with pytest.raises(ColumnError, match="it has arr_delay, s"):
        resolve_contract(schema, "qqqqqqqq")


def test_an_ambiguous_column_is_refused():
    schema = T.StructType([T.StructField("x", T.DoubleType()), T.StructField("x", T.LongType())])
    with pytest.raises(ColumnError, match="2 columns named 'x'"):
        resolve_contract(schema, "x")


def test_a_matrix_cannot_be_concatenated_and_a_weight_is_one_number():
    with pytest.raises(ColumnError, match="nested array cannot be concatenated"):
        resolve_contract(NUMBERS, {"x": ["d", "aa"]})
    with pytest.raises(ColumnError, match="one number"):
        resolve_contract(NUMBERS, "d", weight="v")


def test_a_name_is_quoted():
    assert quoted("sepal.width") == "`sepal.width`"
    assert quoted("a`b") == "`a``b`"


@pytest.mark.spark
def test_packed_columns_hold_the_data_whatever_the_names(spark):
    """Cases 10, 11, 25: dots, spaces, backticks; sparse equals dense, a zero that is not stored is 0."""
    sparse, zero = Vectors.sparse(3, [1], [2.5]), Vectors.sparse(3, [], [])
    schema = T.StructType(
        [
            T.StructField("sepal.width", T.DoubleType()),
            T.StructField("with space", VectorUDT()),
            T.StructField("back`tick", T.ArrayType(T.ArrayType(T.IntegerType()))),
            T.StructField("flag", T.BooleanType()),
            T.StructField("money", T.DecimalType(38, 10)),
        ]
    )
    rows = [
        (1.5, sparse, [[1, 2], [3, 4]], True, None),
        (-0.5, Vectors.dense(0.0, 2.5, 0.0), [[5, 6], None], False, None),
        (0.0, zero, [[7, 8], [9, None]], None, None),
        (None, None, None, True, None),
    ]
    df = spark.createDataFrame(rows, schema)
    contract = resolve_contract(
        df.schema, {"a": ["sepal.width", "with space", "flag", "money"], "b": "back`tick", "c": "with space"}
    )
    written = df.select(*map(tensor_column, contract.inputs))
    assert [field.dataType.simpleString() for field in written.schema.fields] == [
        "array<float>",
        "array<bigint>",
        "array<float>",
    ]
    found = [tuple(row) for row in written.collect()]
    assert found == [
        ([1.5, 0.0, 2.5, 0.0, 1.0, None], [1, 2, 3, 4], [0.0, 2.5, 0.0]),
        ([-0.5, 0.0, 2.5, 0.0, 0.0, None], None, [0.0, 2.5, 0.0]),
        ([0.0, 0.0, 0.0, 0.0, None, None], [7, 8, 9, None], [0.0, 0.0, 0.0]),
        (None, None, None),
    ]
    # The test's own DataFrame is not in the way of others' columns.
    assert df.withColumn("p", tensor_column(contract.inputs[0])).columns == [*df.columns, "p"]
