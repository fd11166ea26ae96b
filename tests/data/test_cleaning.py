"""Deleting by age."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from spark_ring.data.store import Store

DAY = 86_400.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def make(store: Store, relative: str, age: float = 0.0) -> None:
    """Write files of a dataset, run or mark that were last changed ``age`` seconds ago."""
    if relative.startswith("datasets"):
        store.write_bytes(f"{relative}/f3/_manifest.json", b"{}")
        store.write_bytes(f"{relative}/f3/train/a.parquet", b"")
    elif relative.startswith("runs") and not store.exists(relative):
        store.write_bytes(f"{relative}/checkpoints/1", b"")
    elif relative.startswith("marks"):
        store.write_bytes(relative, b"")
    then = time.time() - age
    top = store.path(relative)
    for folder, _, files in os.walk(top, topdown=False):
        for name in [*files, ""]:
            os.utime(os.path.join(folder, name), (then, then))
    os.utime(top, (then, then))


def test_old_things_go_and_young_ones_stay(store: Store) -> None:
    make(store, "datasets/old", 3 * DAY)
    make(store, "datasets/young", DAY)
    make(store, "runs/old", 3 * DAY)
    store.register_run("young", "datasets/young")
    make(store, "runs/young", DAY)
    make(store, "marks/old", 3 * DAY)
    make(store, "marks/young", DAY)
    assert sorted(store.clean(2 * DAY)) == ["datasets/old", "marks/old", "runs/old"]
    assert [store.list(folder) for folder in ("datasets", "runs", "marks")] == [["young"]] * 3
    assert store.clean(2 * DAY) == []


def test_a_dataset_that_a_young_run_reads_stays(store: Store) -> None:
    make(store, "datasets/a", 30 * DAY)
    make(store, "datasets/b", 30 * DAY)
    store.register_run("r", "datasets/a")
    make(store, "runs/r", DAY)
    assert store.clean(2 * DAY) == ["datasets/b"]
    make(store, "runs/r", 3 * DAY)
    assert store.clean(2 * DAY) == ["runs/r", "datasets/a"]


def test_one_new_file_makes_a_run_young(store: Store) -> None:
    """A long fit writes checkpoints: its folder is as young as the newest of them."""
    make(store, "runs/r", 30 * DAY)
    store.register_run("r", "datasets/a")
    make(store, "runs/r", 30 * DAY)
    store.write_bytes("runs/r/checkpoints/2", b"")
    make(store, "datasets/a", 30 * DAY)
    assert store.clean(DAY) == []


def test_a_young_run_that_does_not_say_what_it_reads_keeps_everything(store: Store) -> None:
    make(store, "datasets/a", 30 * DAY)
    make(store, "runs/silent", DAY)
    assert store.clean(2 * DAY) == []
    store.write_bytes("runs/silent/run.json", b"no json")
    assert store.clean(2 * DAY) == []


def test_an_interrupted_dataset_goes_too(store: Store) -> None:
    make(store, "datasets/broken", 30 * DAY)
    store.delete("datasets/broken/f3/_manifest.json")
    make_age = time.time() - 30 * DAY
    os.utime(store.path("datasets/broken/f3"), (make_age, make_age))
    assert store.clean(2 * DAY) == ["datasets/broken"]


def test_an_empty_store_has_nothing_to_clean(store: Store) -> None:
    assert store.clean(0) == []
