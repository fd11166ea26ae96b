"""Rows per second of the shuffled reader beside a bare pyarrow scan of the same files, interleaved.

    python benchmarks/data.py [--rows 1000000] [--repeats 5] [--json FILE]

The dataset is what ``fit`` materializes: one column with arrays of 50 float32, one with arrays of 8, and a
label. Every way reads everything once per repeat, in turn, so that a drift of the machine meets all alike;
medians are printed with the share of the bare scan of the same files. "50 columns" is a bare scan of the same
numbers kept as 50 plain columns: cheaper to decode, but then the rows are not rows yet.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spark_ring.data.manifest import Manifest
from spark_ring.data.parquet import ParquetReader
from spark_ring.data.schema import Contract, SourceColumn, TensorSpec
from spark_ring.data.store import Store

BATCH = 4096
FILES = 4
CONTRACT = Contract(
    inputs=(
        TensorSpec("x0", (SourceColumn("features", "vector", 50),), "float32", (50,)),
        TensorSpec("x1", (SourceColumn("history", "array<float>", 8),), "float32", (8,)),
    ),
    labels=(TensorSpec("y0", (SourceColumn("label", "float"),), "float32"),),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--group-rows", type=int, default=16_384, help="rows per row group")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="spark_ring-bench-") as folder:
        store = Store(folder)
        plain = write(Path(folder), options.rows, options.group_rows)
        manifest = Manifest.scan(store, "data", CONTRACT)
        ways = {
            "bare scan": lambda: scan(sorted(Path(folder, "data", "train").glob("*.parquet"))),
            "bare scan, 50 columns": lambda: scan([plain]),
            "reader, shuffled": lambda: read(store, manifest, shuffle=True),
            "reader, written order": lambda: read(store, manifest, shuffle=False),
            "reader, shuffled, one of 2 ranks": lambda: read(store, manifest, shuffle=True, size=2),
        }
        if tensors := torch_way(store, manifest):
            ways["reader, shuffled, torch tensors"] = tensors
        report(measure(ways, options.repeats), options)


def write(folder: Path, rows: int, group_rows: int) -> Path:
    """Write the dataset in a few files, and the same 50 numbers as plain columns; returns the latter."""
    random = np.random.default_rng(0)
    features = random.standard_normal((rows, 50), np.float32)
    table = pa.table(
        {
            "x0": arrays(features),
            "x1": arrays(random.standard_normal((rows, 8), np.float32)),
            "y0": random.standard_normal(rows, np.float32),
        }
    )
    train = folder / "data" / "train"
    train.mkdir(parents=True)
    for number in range(FILES):
        start, stop = number * rows // FILES, (number + 1) * rows // FILES
        pq.write_table(
            table.slice(start, stop - start),
            train / f"part-{number}.parquet",
            row_group_size=group_rows,
            use_dictionary=False,
        )
    plain = folder / "plain.parquet"
    columns = pa.table({f"c{number}": features[:, number] for number in range(50)})
    pq.write_table(columns, plain, row_group_size=group_rows, use_dictionary=False)
    return plain


def arrays(matrix: np.ndarray) -> pa.Array:
    """A list column without nulls from a matrix."""
    width = matrix.shape[1]
    offsets = pa.array(np.arange(0, matrix.size + 1, width, dtype=np.int32))
    kind = pa.list_(pa.field("element", pa.float32(), nullable=False))
    return pa.ListArray.from_arrays(offsets, pa.array(matrix.reshape(-1)), type=kind)


def scan(files: list[Path]) -> int:
    rows = 0
    for file in files:
        with pq.ParquetFile(file) as parquet:
            rows += sum(batch.num_rows for batch in parquet.iter_batches(65_536))
    return rows


def read(store: Store, manifest: Manifest, *, shuffle: bool, size: int = 1) -> int:
    with ParquetReader(
        store,
        "data",
        manifest,
        CONTRACT,
        rank=0,
        size=size,
        batch_size=BATCH // size,
        shuffle=shuffle,
        seed=0,
    ) as reader:
        return sum(batch.rows for batch in reader.epoch(1))


def torch_way(store: Store, manifest: Manifest) -> Callable[[], int] | None:
    try:
        import torch
    except ImportError:
        return None

    def tensors() -> int:
        rows = 0
        with ParquetReader(
            store, "data", manifest, CONTRACT, rank=0, size=1, batch_size=BATCH, shuffle=True, seed=0
        ) as reader:
            for batch in reader.epoch(1):
                made = [torch.from_numpy(array) for array in (*batch.inputs.values(), *batch.labels.values())]
                rows += len(made[0])
        return rows

    return tensors


def measure(ways: dict[str, Callable[[], int]], repeats: int) -> dict[str, dict[str, float]]:
    """Run every way in turn; medians of rows/s and of CPU seconds per million rows."""
    speed: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats + 1):
        for name, way in ways.items():
            before, start = cpu_seconds(), time.perf_counter()
            rows = way()
            seconds = time.perf_counter() - start
            if repeat:  # the first round warms caches
                speed[name].append(rows / seconds)
                cpu[name].append((cpu_seconds() - before) * 1e6 / rows)
    return {
        name: {"rows_per_s": statistics.median(speed[name]), "cpu_s_per_1m": statistics.median(cpu[name])}
        for name in ways
    }


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def report(figures: dict[str, dict[str, float]], options: argparse.Namespace) -> None:
    bare = figures["bare scan"]["rows_per_s"]
    print(
        f"{options.rows:,} rows × (50 + 8 + 1) float32, batches of {BATCH:,}, row groups of "
        f"{options.group_rows:,} rows, median of {options.repeats}; Python {sys.version.split()[0]}, "
        f"pyarrow {pa.__version__}, NumPy {np.__version__}"
    )
    print(f"{'':36}{'rows/s':>12}{'of bare scan':>14}{'CPU s per 1 M':>15}")
    for name, figure in figures.items():
        share = figure["rows_per_s"] / bare
        print(f"{name:36}{figure['rows_per_s']:>12,.0f}{share:>13.0%} {figure['cpu_s_per_1m']:>14.3f}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
