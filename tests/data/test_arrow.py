"""Arrow arrays to NumPy tensors."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from numbered_rows import tensor

from spark_ring.data.arrow import check_type, source_names, to_tensor
from spark_ring.data.schema import SourceColumn, TensorSpec
from spark_ring.errors import ColumnError

F32, I32, I64 = pa.float32(), pa.int32(), pa.int64()
LISTS = {
    "list": lambda kind, width: pa.list_(kind),
    "large_list": lambda kind, width: pa.large_list(kind),
    "fixed_size_list": lambda kind, width: pa.list_(kind, width),
}


def same(found: np.ndarray, expected: list, dtype: str) -> None:
    np.testing.assert_array_equal(found, np.asarray(expected, dtype))
    assert found.dtype == dtype
    assert found.shape == np.asarray(expected, dtype).shape
    assert found.flags.c_contiguous


@pytest.mark.parametrize("form", LISTS)
def test_arrays_keep_their_shape(form: str) -> None:
    """Case 46: array<float> of length 10 becomes (batch, 10)."""
    rows = [[float(10 * row + i) for i in range(10)] for row in range(4)]
    array = pa.array(rows, LISTS[form](F32, 10))
    same(to_tensor(array, tensor("x0", "float32", (10,))), rows, "float32")


@pytest.mark.parametrize("form", LISTS)
@pytest.mark.parametrize(("start", "length"), [(1, 2), (2, 2), (3, 1), (4, 0)])
def test_sliced_arrays_give_their_own_rows(form: str, start: int, length: int) -> None:
    rows = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]
    array = pa.array(rows, LISTS[form](F32, 2)).slice(start, length)
    expected = np.asarray(rows[start : start + length], "float32").reshape(-1, 2)
    np.testing.assert_array_equal(to_tensor(array, tensor("x0", "float32", (2,))), expected)


@pytest.mark.parametrize("form", LISTS)
def test_nested_arrays_become_matrices(form: str) -> None:
    """Case 47: array<array<int>> is a 2-D tensor, sliced or not."""
    rows = [[[row * 6 + 3 * i + j for j in range(3)] for i in range(2)] for row in range(5)]
    array = pa.array(rows, LISTS[form](LISTS[form](I32, 3), 2))
    same(to_tensor(array, tensor("x0", "int32", (2, 3))), rows, "int32")
    same(to_tensor(array.slice(2, 2), tensor("x0", "int32", (2, 3))), rows[2:4], "int32")


def test_one_flat_list_may_stand_for_a_matrix() -> None:
    array = pa.array([[1, 2, 3, 4], [5, 6, 7, 8]], pa.list_(I64))
    same(to_tensor(array, tensor("x0", "int64", (2, 2))), [[[1, 2], [3, 4]], [[5, 6], [7, 8]]], "int64")


def test_scalars() -> None:
    array = pa.array([1.5, 2.5, 3.5], F32)
    same(to_tensor(array, tensor("y0", "float32")), [1.5, 2.5, 3.5], "float32")
    same(to_tensor(array, tensor("x0", "float32", (1,))), [[1.5], [2.5], [3.5]], "float32")


def test_several_chunks_and_none() -> None:
    spec = tensor("x0", "float32", (2,))
    kind = pa.list_(F32)
    chunks = [pa.array([[1, 2]], kind), pa.array([], kind), pa.array([[3, 4], [5, 6]], kind).slice(1)]
    same(to_tensor(pa.chunked_array(chunks), spec), [[1, 2], [5, 6]], "float32")
    assert to_tensor(pa.chunked_array([], kind), spec).shape == (0, 2)
    assert to_tensor(pa.array([], kind), spec).shape == (0, 2)


def test_numbers_are_not_copied_when_they_fit() -> None:
    array = pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(F32))
    found = to_tensor(array, tensor("x0", "float32", (2,)))
    values = array.flatten().to_numpy()
    assert np.shares_memory(found, values)


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "bool"])
def test_booleans_are_zero_and_one(dtype: str) -> None:
    """Case 22."""
    same(to_tensor(pa.array([True, False, True, True]).slice(1), tensor("y0", dtype)), [0, 1, 1], dtype)


@pytest.mark.parametrize(
    ("array", "dtype", "expected"),
    [
        (pa.array([1.5, 2.5], pa.float64()), "float32", [1.5, 2.5]),
        (pa.array([1.5, 2.5], pa.float32()), "float64", [1.5, 2.5]),
        (pa.array(np.array([1.5, 2.5], np.float16)), "float32", [1.5, 2.5]),
        (pa.array([-1, 2], pa.int8()), "int64", [-1, 2]),
        (pa.array([1, 200], pa.int64()), "uint8", [1, 200]),
        (pa.array([1, 2], pa.uint16()), "int64", [1, 2]),
        (pa.array([float("nan"), float("inf")], pa.float64()), "float32", [np.nan, np.inf]),
    ],
)
def test_numbers_of_one_kind_change_width(array: pa.Array, dtype: str, expected: list) -> None:
    same(to_tensor(array, tensor("x0", dtype)), expected, dtype)


@pytest.mark.parametrize(
    ("array", "dtype", "message"),
    [
        (pa.array([1, 2], I64), "float32", "has type int64, which is never turned into float32"),
        (pa.array([1.0], F32), "int64", "has type float, which is never turned into int64"),
        (pa.array([1, 2**40], I64), "int32", f"integers from 1 to {2**40}, which do not all fit int32"),
        (pa.array([-1], I64), "uint8", "integers from -1 to -1, which do not all fit uint8"),
        (pa.array([1e300, 1.0]), "float32", r"1 finite number\(s\) too large for float32"),
        (pa.array(["a"]), "float32", "has type string, which is never turned into float32"),
        (pa.array([1], pa.timestamp("us")), "int64", "never turned into int64"),
        (pa.array([1], pa.decimal128(10, 2)), "float32", "never turned into float32"),
    ],
)
def test_other_casts_are_errors_with_the_column(array: pa.Array, dtype: str, message: str) -> None:
    """Case 2: an integer column never becomes a float column silently, nor the reverse."""
    with pytest.raises(ColumnError, match=f"column 'dep.delay' .*{message}") as caught:
        to_tensor(array, tensor("x0", dtype, (), "dep.delay"))
    assert caught.value.column == "dep.delay"


def test_a_null_row_is_counted() -> None:
    """Cases 1, 2 and 4: a null row."""
    with pytest.raises(ColumnError, match=r"column 'a' .*is null in 2 of 5 rows; fill or drop"):
        to_tensor(pa.array([1, None, 3, None, 5], I64), tensor("x0", "int64", (), "a"))
    with pytest.raises(ColumnError, match=r"column 'a' .*is null in 1 of 3 rows"):
        to_tensor(pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(F32)), tensor("x0", "float32", (2,), "a"))
    with pytest.raises(ColumnError, match="is null in 1 of 3 rows"):
        to_tensor(pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(F32, 2)), tensor("x0", "float32", (2,)))


def test_a_null_element_is_counted() -> None:
    """Case 4: null elements, in rows whose array is there."""
    rows = [[1.0, None], [2.0, 3.0], [None, None], [4.0, 5.0]]
    for form in LISTS:
        with pytest.raises(ColumnError, match=r"column 'a' .*3 null element\(s\) in 2 of 4 rows"):
            to_tensor(pa.array(rows, LISTS[form](F32, 2)), tensor("x0", "float32", (2,), "a"))
    with pytest.raises(ColumnError, match=r"2 null element\(s\) in 1 of 3 rows"):
        to_tensor(pa.array(rows, pa.list_(F32)).slice(1), tensor("x0", "float32", (2,), "a"))


def test_a_null_inner_array_is_counted() -> None:
    rows = [[[1.0], [2.0]], [[3.0], None]]
    with pytest.raises(ColumnError, match=r"1 null inner array\(s\)"):
        to_tensor(pa.array(rows, pa.list_(pa.list_(F32))), tensor("x0", "float32", (2, 1)))


@pytest.mark.parametrize(
    ("array", "shape"),
    [
        (pa.array([None, None], F32), ()),
        (pa.array([None, None]), ()),
        (pa.array([None, None], pa.list_(F32)), (2,)),
        (pa.array([None, None], pa.list_(pa.null())), (2,)),
    ],
)
def test_nothing_but_nulls(array: pa.Array, shape: tuple[int, ...]) -> None:
    """Case 5."""
    with pytest.raises(ColumnError, match=r"column 'a' .*has no non-null value"):
        to_tensor(array, tensor("x0", "float32", shape, "a"))


def test_ragged_arrays_list_the_lengths() -> None:
    """Case 44: lengths 3, 3, 2."""
    spec = tensor("x0", "float64", (3,), "a")
    array = pa.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0]])
    with pytest.raises(
        ColumnError, match=r"column 'a' .*length 2 \(1 times\), 3 \(2 times\); each must have length 3"
    ):
        to_tensor(array, spec)
    assert to_tensor(array.slice(0, 2), spec).shape == (2, 3)
    many = pa.array([[0.0] * length for length in range(9)])
    with pytest.raises(ColumnError, match=r"0 \(1 times\), .*4 \(1 times\) and 4 other lengths"):
        to_tensor(many, spec)
    with pytest.raises(ColumnError, match=r"length 2 \(3 times\); each must have length 3"):
        to_tensor(pa.array([[1.0, 2.0]] * 3, pa.list_(pa.float64(), 2)), spec)


def test_ragged_lengths_that_add_up_are_found() -> None:
    """Lengths 1 and 3 make as many numbers as 2 and 2."""
    with pytest.raises(ColumnError, match="each must have length 2"):
        to_tensor(pa.array([[1.0], [2.0, 3.0, 4.0]]), tensor("x0", "float64", (2,)))


@pytest.mark.parametrize(
    ("kind", "shape", "levels"),
    [(F32, (3,), 0), (pa.list_(F32), (), 1), (pa.list_(pa.list_(F32)), (3,), 2)],
)
def test_levels_of_lists_must_fit_the_shape(kind: pa.DataType, shape: tuple[int, ...], levels: int) -> None:
    with pytest.raises(ColumnError, match=rf"\({levels} levels of lists\), not a row of shape"):
        check_type(kind, tensor("x0", "float32", shape))


def test_dictionary_encoded_numbers() -> None:
    array = pa.array([5, 7, 5], I32).dictionary_encode()
    same(to_tensor(array, tensor("x0", "int32")), [5, 7, 5], "int32")


def test_source_names() -> None:
    columns = (SourceColumn("a", "int"), SourceColumn("b c", "int"))
    assert source_names(TensorSpec("x0", columns, "int64")) == "columns 'a', 'b c'"
    assert source_names(TensorSpec("x0", columns[:1], "int64")) == "column 'a'"
    assert source_names(TensorSpec("x0", (), "int64")) == "column 'x0'"
