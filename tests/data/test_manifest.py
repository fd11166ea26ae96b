"""What a dataset holds, and how its absence is told."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numbered_rows import CONTRACT, Dataset, table, tensor

from spark_ring.data.manifest import Manifest, RowGroup
from spark_ring.data.schema import Contract
from spark_ring.data.store import Store
from spark_ring.errors import ColumnError, ManifestError, StoreError


def test_files_with_any_number_of_row_groups(write_dataset: Callable[..., Dataset]) -> None:
    """Case 38: 1, 3 and 2 row groups, and files without rows."""
    dataset = write_dataset(train=[[5], [], [4, 0, 2], [0], [3, 3]], val=[[2]])
    manifest = dataset.manifest
    assert [(g.file, g.index, g.rows) for g in manifest.row_groups("train")] == [
        ("train/part-00000.parquet", 0, 5),
        ("train/part-00002.parquet", 0, 4),
        ("train/part-00002.parquet", 2, 2),
        ("train/part-00004.parquet", 0, 3),
        ("train/part-00004.parquet", 1, 3),
    ]
    assert (manifest.rows("train"), manifest.rows("val")) == (17, 2)
    assert manifest.bytes("train") > 0


def test_write_and_read_back(write_dataset: Callable[..., Dataset]) -> None:
    dataset = write_dataset(train=[[5]], val=[[]])
    scanned = Manifest.scan(
        dataset.store, "d", CONTRACT, ("train", "val"), statistics={"x0": {"mean": [1.5, 2]}}, key="abc"
    )
    assert not Manifest.present(dataset.store, "d")
    scanned.write(dataset.store)
    assert Manifest.present(dataset.store, "d")
    again = Manifest.read(dataset.store, "d")
    assert again == scanned
    assert again.contract == CONTRACT
    assert again.statistics["x0"]["mean"] == [1.5, 2]
    assert again.key == "abc"
    assert again.rows("val") == 0


def test_a_dataset_without_manifest_does_not_exist(write_dataset: Callable[..., Dataset]) -> None:
    """Interrupted writes are invisible."""
    dataset = write_dataset(train=[[5]])
    with pytest.raises(ManifestError, match=r"no complete dataset at '.*/d'"):
        Manifest.read(dataset.store, "d")


def test_a_missing_split_is_named(write_dataset: Callable[..., Dataset]) -> None:
    dataset = write_dataset(train=[[5]])
    with pytest.raises(ManifestError, match="no split 'val'; it has train"):
        dataset.manifest.rows("val")


def test_another_version_is_refused(write_dataset: Callable[..., Dataset]) -> None:
    dataset = write_dataset(train=[[5]])
    dataset.manifest.write(dataset.store)
    value = json.loads(dataset.store.read_bytes("d/_manifest.json"))
    dataset.store.write_bytes("d/_manifest.json", json.dumps({**value, "version": 99}).encode())
    with pytest.raises(
        ManifestError, match=r"format version 99 and this library reads 1.*materialize it again"
    ):
        Manifest.read(dataset.store, "d")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"version": 1}', '{"version": 1, "splits": 3, "contract": {}}']
)
def test_a_damaged_manifest_is_told(tmp_path: Path, text: str) -> None:
    store = Store(tmp_path)
    store.write_bytes("d/_manifest.json", text.encode())
    with pytest.raises(ManifestError, match="is damaged"):
        Manifest.read(store, "d")


def test_a_folder_of_somebody_elses_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Case 103: no library metadata, nested folders, Spark's own side files: scanned without a word."""
    (tmp_path / "year=2013").mkdir()
    (tmp_path / "_delta_log").mkdir()
    pq.write_table(table(0, 7), tmp_path / "a.parquet")
    pq.write_table(table(7, 9), tmp_path / "year=2013" / "b.parquet")
    pq.write_table(pa.table({"z": [1]}), tmp_path / "_delta_log" / "checkpoint.parquet")
    (tmp_path / "_SUCCESS").touch()
    with caplog.at_level(logging.DEBUG):
        manifest = Manifest.scan(Store(tmp_path), "", CONTRACT, {"train": ""})
    assert [(g.file, g.rows) for g in manifest.row_groups()] == [("a.parquet", 7), ("year=2013/b.parquet", 2)]
    assert not caplog.records


def test_splits_by_folder_name_or_by_list(write_dataset: Callable[..., Dataset]) -> None:
    dataset = write_dataset(train=[[5], [6]])
    manifest = Manifest.scan(
        dataset.store,
        "d",
        CONTRACT,
        {"train": "train", "val": ["train/part-00001.parquet"]},
    )
    assert (manifest.rows("train"), manifest.rows("val")) == (11, 6)


def test_listed_files_are_waited_for(tmp_path: Path) -> None:
    """Case 53: a file that becomes visible while the driver scans."""
    store = Store(tmp_path)
    store.makedirs("d")
    late = threading.Timer(0.15, lambda: pq.write_table(table(0, 4), tmp_path / "d" / "late.parquet"))

    def rename() -> None:
        pq.write_table(table(0, 4), tmp_path / "d" / "_late")
        (tmp_path / "d" / "_late").rename(tmp_path / "d" / "late.parquet")

    late.function = rename
    late.start()
    manifest = Manifest.scan(store, "d", CONTRACT, {"train": ["late.parquet"]}, wait=30)
    late.join()
    assert manifest.rows() == 4


def test_what_never_appears_is_an_error_with_the_path(tmp_path: Path) -> None:
    """Case 53."""
    store = Store(tmp_path)
    store.makedirs("d")
    for splits, path in (({"train": ["no.parquet"]}, "d/no.parquet"), (("train",), "d/train")):
        with pytest.raises(
            StoreError, match=rf"waited .* '{tmp_path}/{path}'.*shared by driver and executors"
        ):
            Manifest.scan(store, "d", CONTRACT, splits, wait=0.1)


def test_constant_columns_pass(tmp_path: Path) -> None:
    """Case 52: far fewer bytes on disk than rows."""
    (tmp_path / "train").mkdir()
    rows = 100_000
    file = tmp_path / "train" / "a.parquet"
    pq.write_table(pa.table({"y0": np.zeros(rows, np.int64)}), file)
    assert file.stat().st_size < rows / 10
    contract = Contract(inputs=(tensor("y0", "int64"),))
    assert Manifest.scan(Store(tmp_path), "", contract).rows() == rows


def test_a_file_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write_bytes("train/a.parquet", b"PAR1 not really")
    with pytest.raises(ManifestError, match=r"train/a.parquet' cannot be read as Parquet"):
        Manifest.scan(store, "", CONTRACT)


def test_a_missing_tensor_names_the_source_column(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    pq.write_table(table(0, 3).drop(["x0"]), tmp_path / "train" / "a.parquet")
    with pytest.raises(ColumnError, match=r"has no column 'x0'.*column 'features'; it has y0, w") as caught:
        Manifest.scan(Store(tmp_path), "", CONTRACT)
    assert caught.value.column == "features"


def test_a_type_that_does_not_fit_is_an_error_of_the_scan(tmp_path: Path) -> None:
    """Case 2: int64 where the contract says float32 (or the reverse) is told on the driver."""
    (tmp_path / "train").mkdir()
    wrong = table(0, 3).set_column(1, "y0", pa.array([0.0, 1.0, 2.0]))
    pq.write_table(wrong, tmp_path / "train" / "a.parquet")
    with pytest.raises(
        ColumnError, match=r"column 'row' .* has type double, which is never turned into int64"
    ):
        Manifest.scan(Store(tmp_path), "", CONTRACT)


def test_row_groups_compare_by_value() -> None:
    assert RowGroup("a", 0, 1, 8) == RowGroup("a", 0, 1, 8)
