"""Small datasets on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from numbered_rows import CONTRACT, Dataset, table

from spark_ring.data.manifest import Manifest
from spark_ring.data.schema import Contract
from spark_ring.data.store import Store


@pytest.fixture
def write_dataset(tmp_path: Path) -> Callable[..., Dataset]:
    """Write ``split → files``, a file being a list of row counts of its row groups; rows count through."""

    def write(name: str = "d", contract: Contract = CONTRACT, **splits: Sequence[Sequence[int]]) -> Dataset:
        store = Store(tmp_path)
        total = 0
        for split, files in splits.items():
            folder = tmp_path / name / split
            folder.mkdir(parents=True)
            row = 0
            for number, groups in enumerate(files):
                with pq.ParquetWriter(folder / f"part-{number:05}.parquet", table(0, 0).schema) as writer:
                    for rows in groups:
                        writer.write_table(table(row, row + rows))
                        row += rows
            total += row
        manifest = Manifest.scan(store, name, contract, tuple(splits), wait=1)
        return Dataset(store, manifest, name, total)

    return write
