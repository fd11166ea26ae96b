"""Small datasets on disk, whose rows say which rows they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_ring.data.manifest import Manifest
from spark_ring.data.schema import Contract, SourceColumn, TensorSpec
from spark_ring.data.store import Store

WIDTH = 3


def tensor(name: str, dtype: str, shape: tuple[int, ...] = (), column: str = "") -> TensorSpec:
    """A tensor made of one source column."""
    width = int(np.prod(shape)) if shape else 1
    return TensorSpec(name, (SourceColumn(column or name, "double", width),), dtype, shape)


#: x0 holds the row's number WIDTH times, y0 once, w its half.
CONTRACT = Contract(
    inputs=(tensor("x0", "float32", (WIDTH,), "features"),),
    labels=(tensor("y0", "int64", (), "row"),),
    weight=tensor("w", "float32", (), "importance"),
)


@dataclass(frozen=True)
class Dataset:
    """A dataset in a store."""

    store: Store
    manifest: Manifest
    name: str
    rows: int


def table(first: int, last: int) -> pa.Table:
    """Rows ``first`` to ``last`` under CONTRACT."""
    numbers = np.arange(first, last)
    features = np.repeat(numbers.astype(np.float32), WIDTH)
    offsets = pa.array(np.arange(0, len(features) + 1, WIDTH, dtype=np.int32))
    return pa.table(
        {
            "x0": pa.ListArray.from_arrays(offsets, pa.array(features)),
            "y0": pa.array(numbers, pa.int64()),
            "w": pa.array(numbers / 2, pa.float32()),
        }
    )
