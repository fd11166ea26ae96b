"""Timelines: reading what ranks recorded, and bringing several ranks' files together.

The files are Chrome trace events in the JSON array format of the Trace Event Format (the document "Trace
Event Format" of the Chromium project), for https://ui.perfetto.dev or ``chrome://tracing``. That format lets
the closing bracket be absent, so a killed process leaves a file that can be read, up to the last event that
was written: those of the last 20 ms in which operations ended are lost.

Each process of the format is a rank, each thread a row: one per tensor, and one for fused buckets.

    QUEUE       from submission until the round in which the ranks agreed on it
    NEGOTIATE   that round; most of it is waiting for the last rank
    ALLREDUCE … the operation itself, with its bytes; fused tensors name their bucket's row
    BUCKET      tensors that moved as one, with their names
    COPY, REDUCE, GATHER, SEND, RECEIVE, WAIT  inside, with bytes and the rank at the other end
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spark_ring.errors import DataError

__all__ = ["merge", "path_for", "read"]

CLOCK = "spark_ring_clock"


def path_for(path: str | os.PathLike[str], rank: int) -> str:
    """Return the path with ``{rank}`` replaced."""
    return os.fspath(path).replace("{rank}", str(rank))


def read(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the events of one rank's file, also of one that a killed process left behind.

    Raises:
        DataError: the file is no timeline of this package.
    """
    text = Path(path).read_text(encoding="utf-8", errors="replace")
    try:
        events = json.loads(text)
    except ValueError:
        events = _whole_lines(text)
    if not isinstance(events, list) or not events or events[0].get("name") != CLOCK:
        raise DataError(f"{path} is no timeline of spark_ring: it does not begin with the event {CLOCK!r}")
    return events


def merge(paths: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]) -> None:
    """Write one file with the events of several ranks on one clock, which begins at zero.

    Every file tells how far the rank's monotonic clock was from its wall clock when the recording began; that
    brings them together. On one host that is exact to microseconds. Between hosts it is as good as their wall
    clocks agree (milliseconds under NTP): a span may then seem to end before the one on another host that it
    waited for.

    Args:
        paths: the ranks' files; recordings of different ranks.
        out: the file to write.

    Raises:
        DataError: no file was given, one is no timeline, or two are of the same rank.
    """
    files = [read(path) for path in paths]
    if not files:
        raise DataError("merge: no files were given")
    ranks = [events[0]["pid"] for events in files]
    if len(set(ranks)) < len(ranks):
        raise DataError(f"merge: the files are of ranks {ranks}; each must be of another rank")
    merged = []
    for events in files:
        offset = events[0]["args"]["wall_minus_monotonic_ns"] / 1000
        merged += [{**event, "ts": event["ts"] + offset} if "ts" in event else event for event in events]
    start = min((event["ts"] for event in merged if "ts" in event), default=0.0)
    for event in merged:
        if "ts" in event:
            event["ts"] = round(event["ts"] - start, 3)
    with open(out, "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(json.dumps(event) for event in merged) + "\n]\n")


def _whole_lines(text: str) -> list[dict[str, Any]]:
    """Return the events of an unfinished file: one per line, the last line perhaps cut."""
    events = []
    for line in text.splitlines()[1:]:
        try:
            events.append(json.loads(line.rstrip(",")))
        except ValueError:
            break
    return events
