"""Progress files: what rank 0 writes, the driver sees once, and a broken file hurts nobody."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from spark_ring.data.store import Store
from spark_ring.train.progress import ProgressReader, ProgressWriter


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path))


def test_records_come_once_and_in_order(store: Store) -> None:
    reader = ProgressReader(store, "run")
    assert reader.poll().records == []
    with ProgressWriter(store, "run", interval=0.0) as writer:
        writer.epoch({"epoch": 1, "loss": 0.5})
        writer.epoch({"epoch": 2, "loss": 0.25})
    assert [record["epoch"] for record in reader.poll().records] == [1, 2]
    with ProgressWriter(store, "run", interval=0.0) as writer:
        writer.epoch({"epoch": 2, "loss": 0.25})  # a retried attempt writes its epochs again
        writer.epoch({"epoch": 3, "loss": 0.125})
    assert reader.poll().records == [{"epoch": 3, "loss": 0.125}]
    assert reader.poll().records == []


def test_live_state_is_the_newest_and_limited_by_the_interval(store: Store) -> None:
    reader = ProgressReader(store, "run")
    assert reader.poll().live is None
    with ProgressWriter(store, "run", interval=3600.0) as writer:
        assert writer.due
        writer.live({"step": 1})
        assert not writer.due
        writer.live({"step": 2})
    assert reader.poll().live == {"step": 1}
    with ProgressWriter(store, "run", interval=0.0) as writer:
        for step in range(100):
            writer.live({"step": step})
    assert reader.poll().live == {"step": 99}


@pytest.mark.parametrize("content", [b"", b'{"epoch": 1, "lo', b"\xff\xfe", b"[1, 2]"])
def test_a_partial_file_is_not_news_until_it_is_whole(store: Store, content: bytes) -> None:
    reader = ProgressReader(store, "run")
    store.write_bytes("runs/run/progress/live.json", b'{"step": 1}')
    assert reader.poll().live == {"step": 1}
    store.write_bytes("runs/run/progress/live.json", content)
    store.write_bytes("runs/run/progress/epoch-00001.json", content)
    assert reader.poll().live == {"step": 1}
    assert reader.poll().records == []
    store.write_bytes("runs/run/progress/epoch-00001.json", b'{"epoch": 1}')
    assert reader.poll().records == [{"epoch": 1}]


def test_other_ranks_write_nothing(store: Store) -> None:
    with ProgressWriter(store, "run", interval=0.0, active=False) as writer:
        assert not writer.due
        writer.live({"step": 1})
        writer.epoch({"epoch": 1})
        writer.clear(after=0)
    assert store.list("runs") == []


def test_a_store_that_fails_is_logged_and_training_goes_on(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    Path(store.path("runs")).write_text("a file where a folder should be")
    with caplog.at_level(logging.WARNING), ProgressWriter(store, "run", interval=0.0) as writer:
        writer.epoch({"epoch": 1})
    assert "epoch-00001.json could not be written" in caplog.text


def test_what_an_earlier_use_of_the_run_left_is_cleared(store: Store) -> None:
    """Case 130."""
    with ProgressWriter(store, "run", interval=0.0) as writer:
        writer.live({"step": 1})
        for epoch in (1, 2, 3):
            writer.epoch({"epoch": epoch})
    with ProgressWriter(store, "run", interval=0.0) as writer:
        writer.clear(after=1)
    assert store.list("runs/run/progress") == ["epoch-00001.json"]
