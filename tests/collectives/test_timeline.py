"""The timeline against the rules of the Trace Event Format, what it must show, what it survives."""

from __future__ import annotations

import json
import os
import signal
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threads import together

from spark_ring import timeline, world
from spark_ring.communicator import Communicator
from spark_ring.errors import ConfigError, DataError
from spark_ring.launch.local import LocalJob

BIG = 3_000_000  # elements; more than any payload and than several segments


def _work(comm: Communicator) -> None:
    small = [comm.allreduce_async(np.ones(2000, np.float32), name=f"grad.{i}") for i in range(20)]
    big = comm.allreduce_async(np.ones(BIG, np.float32), name="big")
    unnamed = [comm.allreduce_async(np.ones(7 + i)) for i in range(3)]
    for handle in [*small, big, *unnamed]:
        handle.wait()
    for _ in range(3):
        comm.allreduce(np.ones(5), name="again")
    comm.allgather(np.ones((comm.rank + 1, 30000)), name="rows")
    comm.broadcast(np.ones(100000), 0, name="weights")
    comm.reducescatter(np.ones((50, 3000)), name="parts")
    comm.barrier(name="end")


def _record(folder: Path, size: int, **settings: Any) -> list[list[dict[str, Any]]]:
    def work(comm: Communicator) -> None:
        comm.start_timeline(folder / "rank-{rank}.json")
        comm.barrier()
        _work(comm)
        comm.stop_timeline()

    together(work, size, **settings)
    # Strictly valid JSON once it was stopped.
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(size)]


def _check_format(events: list[dict[str, Any]], rank: int) -> None:
    """Every event by the rules of the Trace Event Format for its phase: X, M, C."""
    for event in events:
        assert isinstance(event["name"], str)
        assert event["pid"] == rank
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert event["ts"] > 0
            assert isinstance(event["tid"], int)
            assert isinstance(event["args"], dict)
        elif event["ph"] == "C":
            assert event["ts"] > 0
            assert all(isinstance(value, int) and value >= 0 for value in event["args"].values())
        else:
            assert event["ph"] == "M"
            assert "args" in event
    named = [event for event in events if event["name"] == "process_name"]
    assert [event["args"]["name"] for event in named] == [f"rank {rank}"]


def _rows(events: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    titles = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    rows = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            rows[titles[event["tid"]]].append(event)
    return rows


def _nanoseconds(event: dict[str, Any]) -> tuple[int, int]:
    start = round(event["ts"] * 1000)
    return start, start + round(event["dur"] * 1000)


def _check_nesting(row: list[dict[str, Any]]) -> None:
    """Two spans of a row are apart, or one contains the other; never a part of each other."""
    open_until: list[int] = []
    for event in sorted(row, key=lambda e: (_nanoseconds(e)[0], -_nanoseconds(e)[1])):
        start, end = _nanoseconds(event)
        while open_until and open_until[-1] <= start:
            open_until.pop()
        assert not open_until or end <= open_until[-1], event
        open_until.append(end)


def _within(row: list[dict[str, Any]], outer: dict[str, Any]) -> set[str]:
    start, end = _nanoseconds(outer)
    return {
        e["name"] for e in row if e is not outer and start <= _nanoseconds(e)[0] and _nanoseconds(e)[1] <= end
    }


@pytest.mark.parametrize(
    ("transport", "size", "phases"),
    [
        ("shm", 2, {"COPY", "REDUCE"}),
        ("shm", 3, {"COPY", "REDUCE", "GATHER"}),
        ("tcp", 3, {"SEND", "RECEIVE", "REDUCE"}),
    ],
)
def test_every_tensor_has_its_phases_and_rows_nest(
    transport: str, size: int, phases: set[str], tmp_path: Path
) -> None:
    for rank, events in enumerate(_record(tmp_path, size, transport=transport)):
        _check_format(events, rank)
        rows = _rows(events)
        for row in rows.values():
            _check_nesting(row)
        buckets = rows.get("fused buckets", [])
        for name in [f"grad.{i}" for i in range(20)] + ["big"]:
            row = rows[name]
            assert [e["name"] for e in row if e["name"] in ("QUEUE", "NEGOTIATE", "ALLREDUCE")] == [
                "QUEUE",
                "NEGOTIATE",
                "ALLREDUCE",
            ]
            outer = next(e for e in row if e["name"] == "ALLREDUCE")
            assert outer["args"]["bytes"] == (4 * BIG if name == "big" else 8000)
            if "bucket_row" in outer["args"]:
                bucket = next(
                    b for b in buckets if b["name"] == "BUCKET" and _nanoseconds(b) == _nanoseconds(outer)
                )
                assert name in bucket["args"]["tensors"].split(", ")
                assert bucket["args"]["bytes"] == outer["args"]["bucket_bytes"]
                assert phases <= _within(buckets, bucket)
            elif name == "big":
                assert phases <= _within(row, outer)
        assert [e["name"] for e in rows["again"] if e["name"] == "ALLREDUCE"] == ["ALLREDUCE"] * 3
        for name, verb in [("rows", "ALLGATHER"), ("weights", "BROADCAST"), ("parts", "REDUCESCATTER")]:
            assert [e["name"] for e in rows[name] if e["name"] == verb] == [verb]
        moving = [e["args"]["bytes"] for e in events if e["name"] == "moving bytes"]
        assert moving[-1] == 0
        assert max(moving) >= 4 * BIG


def test_several_recordings_on_one_rank_only(tmp_path: Path) -> None:
    def work(comm: Communicator) -> None:
        comm.allreduce(np.ones(3), name="before")
        for part in ("one", "two"):
            if comm.rank == 1:
                comm.start_timeline(tmp_path / part)
                with pytest.raises(ConfigError, match="already"):
                    comm.start_timeline(tmp_path / "three")
            comm.allreduce(np.ones(3), name=part)
            comm.stop_timeline()  # also where nothing is recorded
        comm.allreduce(np.ones(3), name="after")

    together(work, 2)
    for part in ("one", "two"):
        assert set(_rows(timeline.read(tmp_path / part))) == {part}


def test_files_are_merged_on_one_clock(tmp_path: Path) -> None:
    files = _record(tmp_path, 3)
    out = tmp_path / "all.json"
    timeline.merge([tmp_path / f"rank-{rank}.json" for rank in range(3)], out)
    merged = json.loads(out.read_text())
    assert len(merged) == sum(map(len, files))
    assert min(e["ts"] for e in merged if "ts" in e) == 0
    # Ranks leave a round of agreement only after all have entered it.
    rounds = [
        next(
            _nanoseconds(e)
            for e in _rows([e for e in merged if e["pid"] == rank])["big"]
            if e["name"] == "NEGOTIATE"
        )
        for rank in range(3)
    ]
    assert max(start for start, _ in rounds) <= min(end for _, end in rounds) + 1000
    with pytest.raises(DataError, match="another rank"):
        timeline.merge([tmp_path / "rank-0.json"] * 2, out)
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(DataError, match="no timeline"):
        timeline.read(tmp_path / "other.json")


def _die_in_the_middle(folder: str) -> None:
    world.start_timeline(f"{folder}/rank-{{rank}}.json")
    for i in range(400):  # far more than 20 ms
        world.allreduce(np.ones(200_000, np.float32), name=f"grad.{i}")
    world.barrier()
    if world.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    world.allreduce(np.ones(3), name="never")


def test_the_file_of_a_killed_process_can_be_read(tmp_path: Path) -> None:
    with LocalJob(_die_in_the_middle, args=(str(tmp_path),), np=2) as job:
        job.wait(60)
    text = (tmp_path / "rank-1.json").read_text()
    assert not text.rstrip().endswith("]")
    events = timeline.read(tmp_path / "rank-1.json")
    _check_format(events, 1)
    # The same file cut anywhere after its first event is still read, event by event.
    for cut in range(len(text) - 300, len(text), 7):
        (tmp_path / "cut.json").write_text(text[:cut])
        kept = timeline.read(tmp_path / "cut.json")
        assert kept == events[: len(kept)]


def test_the_setting_records_from_the_start(tmp_path: Path) -> None:
    def work(comm: Communicator) -> None:
        comm.allreduce(np.ones(3), name="first")

    together(work, 2, timeline=str(tmp_path / "{rank}.json"))
    for rank in range(2):
        assert "first" in _rows(json.loads((tmp_path / f"{rank}.json").read_text()))
    with pytest.raises(ConfigError, match=r"needs \{rank\}"):
        together(work, 2, timeline=str(tmp_path / "one.json"))


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    def work(comm: Communicator) -> None:
        with pytest.raises(ConfigError, match="cannot be written"):
            comm.start_timeline(tmp_path / "no such folder" / "x.json")

    together(work, 1)
