"""The reader, through real files."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numbered_rows import CONTRACT, WIDTH, Dataset, table, tensor

from spark_ring.data import parquet as module
from spark_ring.data.batch import Batch
from spark_ring.data.decode import Decoder
from spark_ring.data.manifest import Manifest
from spark_ring.data.parquet import ParquetReader, default_window_rows
from spark_ring.data.schema import Contract
from spark_ring.data.store import Store
from spark_ring.errors import ColumnError, ConfigError, DataError, ManifestError

Write = Callable[..., Dataset]


def reader(dataset: Dataset, batch: int = 4, rank: int = 0, size: int = 1, **options: Any) -> ParquetReader:
    options = {"shuffle": True, "seed": 5, **options}
    return ParquetReader(
        dataset.store, "d", dataset.manifest, CONTRACT, rank=rank, size=size, batch_size=batch, **options
    )


def rows_of(batch: Batch) -> list[int]:
    """The numbers of a batch's rows, after a check that the tensors belong together."""
    rows = batch.labels["y0"]
    assert len(rows) == batch.rows
    np.testing.assert_array_equal(batch.inputs["x0"], np.repeat(rows[:, None], WIDTH, 1).astype(np.float32))
    assert batch.weight is not None
    np.testing.assert_array_equal(batch.weight, (rows / 2).astype(np.float32))
    return [int(row) for row in rows]


def read(dataset: Dataset, epoch: int = 1, start_step: int = 0, **options: Any) -> list[list[int]]:
    with reader(dataset, **options) as made:
        return [rows_of(batch) for batch in made.epoch(epoch, start_step)]


def flat(parts: Iterable[list[Any]]) -> list[Any]:
    return list(chain.from_iterable(parts))


def ours() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("spark_ring")]


AWKWARD = [
    pytest.param([[25]], 8, 2, id="one file, one row group, two ranks"),
    pytest.param([[1]], 4, 4, id="one row, four ranks"),
    pytest.param([[3]], 5, 8, id="fewer rows than ranks"),
    pytest.param([[], [0], [2], []], 2, 2, id="empty files"),
    pytest.param([[], [5], [], [0, 7]], 3, 3, id="empty and full files"),
    pytest.param([[9]], 1, 2, id="5 and 4 batches"),
    pytest.param([[18]], 2, 2, id="5 and 4 batches of 2"),
    pytest.param([[2], [1, 3, 4], [5, 6]], 4, 2, id="1, 3 and 2 row groups"),
    pytest.param([[100, 1, 1], [1, 1, 100]], 7, 3, id="unequal row groups"),
    pytest.param([[8], [8]], 4, 4, id="no short step"),
    pytest.param([[1] * 30], 4, 2, id="row groups of one row"),
]


@pytest.mark.parametrize("shuffle", [True, False], ids=["shuffled", "written order"])
@pytest.mark.parametrize("window", [None, 16, 1], ids=["whole", "window 16", "window 1"])
@pytest.mark.parametrize(("files", "batch", "size"), AWKWARD)
def test_every_row_exactly_once(
    write_dataset: Write, files: list[list[int]], batch: int, size: int, window: int | None, shuffle: bool
) -> None:
    """Cases 32, 34, 38, 58, 59: over all ranks, with equal steps, in two epochs."""
    dataset = write_dataset(train=files)
    for epoch in (1, 2):
        seen, shapes = [], set()
        for rank in range(size):
            with reader(dataset, batch, rank, size, shuffle=shuffle, window_rows=window) as made:
                batches = list(made.epoch(epoch))
            assert [b.step for b in batches] == list(range(made.steps))
            assert sum(b.rows for b in batches) == made.rows
            assert all(b.inputs["x0"].shape == (b.rows, WIDTH) for b in batches)
            shapes.add(tuple(b.global_rows for b in batches))
            seen += [row for b in batches for row in rows_of(b)]
        assert sorted(seen) == list(range(dataset.rows))
        (global_rows,) = shapes  # the same on every rank
        assert sum(global_rows) == dataset.rows == made.global_rows
        assert all(rows > 0 for rows in global_rows)


def test_contiguous_reading_is_row_exact_too(write_dataset: Write) -> None:
    dataset = write_dataset(train=[[30, 3], [17], [1, 9]])
    ranks = [read(dataset, rank=rank, size=3, shuffle=False, contiguous=True) for rank in range(3)]
    assert sorted(flat(flat(ranks))) == list(range(60))


@pytest.mark.parametrize("window", [None, 200, 40])
def test_global_batches_are_the_same_at_every_world_size(write_dataset: Write, window: int | None) -> None:
    """N workers equal one worker: the same rows make step t."""
    dataset = write_dataset(train=[[50] * 5, [33, 100], [7]])
    expected = [sorted(rows) for rows in read(dataset, batch=24, window_rows=window, lanes=8)]
    for size in (2, 3, 4, 8):
        ranks = [
            read(dataset, batch=24 // size, rank=rank, size=size, window_rows=window, lanes=8)
            for rank in range(size)
        ]
        assert [sorted(flat(step)) for step in zip(*ranks, strict=True)] == expected


def test_epochs_and_seeds_differ_and_repeat(write_dataset: Write) -> None:
    dataset = write_dataset(train=[[50], [50]])
    assert read(dataset, epoch=1) == read(dataset, epoch=1)
    assert read(dataset, epoch=1) != read(dataset, epoch=2)
    assert read(dataset, seed=5) != read(dataset, seed=6)
    assert read(dataset, epoch=1, prefetch=1, threads=1) == read(dataset, epoch=1, prefetch=9, threads=5)


def test_one_reader_reads_epoch_after_epoch(write_dataset: Write) -> None:
    """Case 37: it starts again each epoch and never ends early."""
    dataset = write_dataset(train=[[13]])
    with reader(dataset, 4) as made:
        for epoch in range(5):
            assert sorted(row for batch in made.epoch(epoch) for row in rows_of(batch)) == list(range(13))


@pytest.mark.parametrize("shuffle", [True, False])
def test_resuming_gives_the_rest_of_the_undisturbed_epoch(write_dataset: Write, shuffle: bool) -> None:
    dataset = write_dataset(train=[[40, 7], [20]])
    options: dict[str, Any] = {
        "batch": 3,
        "rank": 1,
        "size": 2,
        "window_rows": 16,
        "lanes": 5,
        "shuffle": shuffle,
    }
    whole = read(dataset, **options)
    assert len(whole) == 12
    for step in range(13):
        assert read(dataset, start_step=step, **options) == whole[step:]


def test_written_order(write_dataset: Write) -> None:
    """Case 41: one rank, shuffle=False, several row groups."""
    dataset = write_dataset(train=[[5, 3], [9, 2]])
    assert flat(read(dataset, shuffle=False)) == list(range(19))


def test_stops_after_all_rows(write_dataset: Write) -> None:
    """Case 40: 10 rows, the default options, iterated once."""
    dataset = write_dataset(train=[[10]])
    assert [len(rows) for rows in read(dataset)] == [4, 4, 2]


def test_small_batches_of_a_large_row_group(write_dataset: Write) -> None:
    """Case 43: batch size 4 on a row group of 20,001 rows: batches of 4, the last one smaller."""
    dataset = write_dataset(train=[[20_001]])
    sizes = [len(rows) for rows in read(dataset, batch=4)]
    assert sizes == [4] * 5000 + [1]


def test_a_batch_larger_than_the_data(write_dataset: Write) -> None:
    dataset = write_dataset(train=[[3], [4]])
    assert [sorted(rows) for rows in read(dataset, batch=1000)] == [list(range(7))]


@pytest.mark.parametrize("shuffle", [True, False])
def test_arrays_are_fresh_contiguous_and_writable(write_dataset: Write, shuffle: bool) -> None:
    with reader(write_dataset(train=[[40]]), shuffle=shuffle) as made:
        batches = list(made.epoch(1))
        for batch in batches:
            for array in (*batch.inputs.values(), *batch.labels.values(), batch.weight):
                assert array is not None
                assert array.flags.c_contiguous
                assert array.flags.writeable
        first, *others = batches
        assert not any(np.shares_memory(first.labels["y0"], other.labels["y0"]) for other in others)
        kept = [rows_of(batch) for batch in others]
        first.inputs["x0"][...] = first.labels["y0"][...] = -1
        assert [rows_of(batch) for batch in others] == kept
        assert sorted(row for batch in made.epoch(1) for row in rows_of(batch)) == list(range(40))


def test_no_labels_and_no_weight(write_dataset: Write) -> None:
    dataset = write_dataset(train=[[5]])
    contract = Contract(inputs=(tensor("y0", "int64"), tensor("x0", "float32", (WIDTH,))))
    made = ParquetReader(
        dataset.store, "d", dataset.manifest, contract, rank=0, size=1, batch_size=5, shuffle=False, seed=0
    )
    (batch,) = made.epoch(1)
    assert list(batch.inputs) == ["y0", "x0"]
    assert batch.labels == {}
    assert batch.weight is None


def test_preview(write_dataset: Write) -> None:
    dataset = write_dataset(train=[[3], [4], [5]])
    with reader(dataset) as made:
        batch = made.preview(5)
        assert (rows_of(batch), batch.rows, batch.global_rows, batch.step) == ([0, 1, 2, 3, 4], 5, 5, 0)
        assert rows_of(made.preview(100)) == list(range(12))


def test_splits(write_dataset: Write) -> None:
    dataset = write_dataset(train=[[5]], val=[[3]])
    assert sorted(flat(read(dataset, split="val", shuffle=False))) == [0, 1, 2]
    with pytest.raises(ManifestError, match="no split 'test'"):
        reader(dataset, split="test")
    with pytest.raises(DataError, match="split 'train' of dataset 'd' has no rows"):
        reader(replace(dataset, manifest=replace(dataset.manifest, splits={"train": ()})))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "batch_size is 0"),
        ({"rank": 2, "size": 2}, "rank is 2; with 2 ranks it must be 0 to 1"),
        ({"lanes": 0, "window_rows": 2}, "lanes is 0"),
        ({"prefetch": 0}, "prefetch is 0"),
        ({"threads": 0}, "threads is 0"),
        ({"contiguous": True}, "contiguous=True is for reading without shuffle"),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(write_dataset: Write, options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        reader(write_dataset(train=[[5]]), **options)


def test_a_start_beyond_the_epoch_is_refused(write_dataset: Write) -> None:
    with pytest.raises(ConfigError, match="start_step is 3; the epoch has 2 steps"):
        reader(write_dataset(train=[[5]])).epoch(1, 3)


def test_bad_data_reach_the_consumer_with_the_column(write_dataset: Write) -> None:
    dataset = write_dataset(train=[[4], [4]])
    bad = table(4, 8).set_column(1, "y0", pa.array([4, None, 6, 7], pa.int64()))
    pq.write_table(bad, dataset.store.path("d/train/part-00001.parquet"))
    with reader(dataset, 4, shuffle=False) as made:
        batches = made.epoch(1)
        with pytest.raises(ColumnError, match=r"column 'row' .*is null in 1 of 4 rows.*part-00001"):
            list(batches)
        assert ours() == []
        with pytest.raises(StopIteration):
            next(batches)


def test_threads_end_with_the_epoch(write_dataset: Write) -> None:
    with reader(write_dataset(train=[[100]])) as made:
        for _ in made.epoch(1):
            pass
        assert ours() == []


def test_threads_end_when_an_epoch_is_left_early(write_dataset: Write) -> None:
    made = reader(write_dataset(train=[[2000] * 20]), 4)
    batches = made.epoch(1)
    next(batches)
    assert ours()
    batches.close()
    assert ours() == []
    batches.close()
    with pytest.raises(StopIteration):
        next(batches)


def test_threads_end_when_the_reader_closes(write_dataset: Write) -> None:
    made = reader(write_dataset(train=[[2000] * 20]), 4)
    first, second = made.epoch(1), made.epoch(2)
    next(first)
    next(second)
    made.close()
    assert ours() == []


def test_threads_end_when_nobody_holds_the_iterator(write_dataset: Write) -> None:
    batches = reader(write_dataset(train=[[2000] * 20]), 4).epoch(1)
    next(batches)
    assert ours()
    del batches
    gc.collect()
    assert ours() == []


def test_threads_end_when_a_reading_thread_collects_the_iterator(write_dataset: Write) -> None:
    """Garbage in a cycle is collected in whatever thread allocates next: it must not wait for itself."""
    made = reader(write_dataset(train=[[2000] * 20]), 4)
    batches = made.epoch(1)
    next(batches)
    end = batches._end
    called = threading.Event()
    thread = threading.Thread(target=lambda: (end(), called.set()), name="spark_ring-read-decode_9")
    thread.start()
    thread.join(10)
    assert called.is_set()
    assert len(list(batches)) < made.steps


def test_the_interpreter_ends_although_an_epoch_was_left(write_dataset: Write) -> None:
    dataset = write_dataset(train=[[2000] * 20])
    dataset.manifest.write(dataset.store)
    script = f"""
from spark_ring.data.manifest import Manifest
from spark_ring.data.parquet import ParquetReader
from spark_ring.data.store import Store
store = Store({dataset.store.url!r})
manifest = Manifest.read(store, "d")
batches = ParquetReader(
    store, "d", manifest, manifest.contract, rank=0, size=1, batch_size=4, shuffle=True, seed=0
).epoch(1)
print(next(batches).rows)
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "4\n", "")


def test_waiting_is_counted_over_epochs(write_dataset: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    decode, hold = Decoder.__call__, threading.Event()

    def slow(self: Decoder, number: int) -> Any:
        hold.wait(0.1)
        return decode(self, number)

    monkeypatch.setattr(Decoder, "__call__", slow)
    with reader(write_dataset(train=[[8]])) as made:
        assert made.wait_seconds == 0
        list(made.epoch(1))
        once = made.wait_seconds
        assert once > 0.05
        list(made.epoch(2))
        assert made.wait_seconds > once + 0.05


def test_memory_is_bounded(write_dataset: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading 25 MB takes a small part of that: windows, a few row groups, a few chunks."""
    monkeypatch.setattr(module, "_CHUNK_BYTES", 64 << 10)
    rows, width = 100_000, 64
    store = Store(write_dataset(train=[]).store.local_hint)
    store.makedirs("wide/train")
    values = pa.array(np.arange(rows * width, dtype=np.float32))
    array = pa.ListArray.from_arrays(pa.array(np.arange(0, rows * width + 1, width, dtype=np.int32)), values)
    pq.write_table(pa.table({"x0": array}), store.path("wide/train/a.parquet"), row_group_size=1000)
    del values, array
    contract = Contract(inputs=(tensor("x0", "float32", (width,)),))
    manifest = Manifest.scan(store, "wide", contract)
    before, arrow_peak, count = pa.total_allocated_bytes(), 0, 0
    tracemalloc.start()
    try:
        with ParquetReader(
            store, "wide", manifest, contract, rank=0, size=1, batch_size=128, shuffle=True, seed=0,
            lanes=4, window_rows=4000,
        ) as made:  # fmt: skip
            for batch in made.epoch(1):
                arrow_peak = max(arrow_peak, pa.total_allocated_bytes() - before)
                count += batch.rows
        numpy_peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    row = width * 4
    windows, chunks = 1000 * row, 64 << 10
    assert count == rows
    assert numpy_peak < (4 + 4 + 1 + 2) * windows + 6 * chunks + (1 << 20) < rows * row / 5
    assert arrow_peak < (4 + 2 + 2) * 2 * 1000 * (row + 8) < rows * row / 5


def test_default_window_is_bounded_in_bytes() -> None:
    assert default_window_rows(CONTRACT) == 1 << 18
    picture = Contract(inputs=(tensor("x0", "float32", (256, 256, 3)),))
    assert default_window_rows(picture) == 256
    assert default_window_rows(Contract(inputs=(tensor("x0", "float32", (1000,)),))) == (64 << 20) // 4000
