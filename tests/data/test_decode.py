"""One row group to arrays, and what is said when it is not what was promised."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numbered_rows import CONTRACT, Dataset, table, tensor

from spark_ring.data.decode import Decoder, row_bytes
from spark_ring.data.manifest import RowGroup
from spark_ring.errors import ColumnError, ManifestError, StoreError


def decoder(dataset: Dataset) -> Decoder:
    return Decoder(dataset.store, dataset.name, dataset.manifest.row_groups("train"), CONTRACT)


def test_row_groups_by_number(write_dataset: Callable[..., Dataset]) -> None:
    decode = decoder(write_dataset(train=[[3, 2], [4]]))
    arrays = decode(1)
    np.testing.assert_array_equal(arrays["y0"], [3, 4])
    np.testing.assert_array_equal(arrays["x0"], [[3, 3, 3], [4, 4, 4]])
    np.testing.assert_array_equal(arrays["w"], [1.5, 2])
    assert {name: array.dtype.name for name, array in arrays.items()} == {
        "x0": "float32",
        "y0": "int64",
        "w": "float32",
    }


def test_from_several_threads(write_dataset: Callable[..., Dataset]) -> None:
    decode = decoder(write_dataset(train=[[5] * 20, [5] * 20]))
    with ThreadPoolExecutor(8) as pool:
        rows = np.concatenate([arrays["y0"] for arrays in pool.map(decode, range(40))])
    np.testing.assert_array_equal(rows, np.arange(200))


def test_a_null_names_the_column_and_the_place(write_dataset: Callable[..., Dataset]) -> None:
    """Case 4: found in a worker although the driver checks before, it names the source column."""
    dataset = write_dataset(train=[[3], [3]])
    rows = [[1.0, 2.0, 3.0], [4.0, None, 6.0], [7.0, 8.0, 9.0]]
    bad = table(3, 6).set_column(0, "x0", pa.array(rows, pa.list_(pa.float32())))
    pq.write_table(bad, dataset.store.path("d/train/part-00001.parquet"))
    with pytest.raises(
        ColumnError, match=r"'features'.*1 null element\(s\) in 1 of 3 rows.*row group 0 of 'd/tr"
    ):
        decoder(dataset)(1)


def test_a_file_that_changed_is_told(write_dataset: Callable[..., Dataset]) -> None:
    """Case 59: no row is dropped silently."""
    dataset = write_dataset(train=[[3]])
    path = dataset.store.path("d/train/part-00000.parquet")
    pq.write_table(table(0, 4), path)
    with pytest.raises(ManifestError, match="row group 0 has 4 rows; delete the dataset"):
        decoder(dataset)(0)
    pq.write_table(table(0, 0), path)
    with pytest.raises(ManifestError, match="not the file that the manifest describes"):
        decoder(dataset)(0)
    pq.write_table(table(0, 3).drop(["y0"]), path)
    with pytest.raises(ManifestError, match=r"there is no column .*y0"):
        decoder(dataset)(0)


def test_a_file_that_is_gone_or_no_parquet(write_dataset: Callable[..., Dataset]) -> None:
    dataset = write_dataset(train=[[3]])
    dataset.store.write_bytes("d/train/part-00000.parquet", b"no parquet at all")
    with pytest.raises(ManifestError, match=r"part-00000.parquet' cannot be read as Parquet"):
        decoder(dataset)(0)
    dataset.store.delete("d/train/part-00000.parquet")
    with pytest.raises(StoreError, match=r"cannot open .*shared by driver and executors"):
        decoder(dataset)(0)


def test_only_the_tensors_columns_are_read(write_dataset: Callable[..., Dataset]) -> None:
    dataset = write_dataset(train=[[3]])
    alone = replace(CONTRACT, labels=(), weight=None)
    group = RowGroup("train/part-00000.parquet", 0, 3, 0)
    assert list(Decoder(dataset.store, "d", [group], alone)(0)) == ["x0"]


def test_row_bytes() -> None:
    assert row_bytes(CONTRACT.tensors) == 3 * 4 + 8 + 4
    assert row_bytes([tensor("x0", "float64", (2, 5))]) == 80
