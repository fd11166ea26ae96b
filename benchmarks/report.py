"""Tables of what ``collectives.py`` measured."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TypedDict

OURS = {"one host": ("own", "shm"), "TCP only": ("tcp",)}
TITLES = {"own": "spark_ring, own memory", "shm": "spark_ring", "tcp": "spark_ring"}
MARKS = ("<!-- tables: begin -->", "<!-- tables: end -->")


class Result(TypedDict):
    """One competitor in one cell: seconds per call in each round."""

    ranks: int
    network: str
    verb: str
    bytes: int
    who: str
    seconds: list[float]


def tables(results: list[Result]) -> str:
    """Return one table for every number of ranks and network."""
    places = sorted(
        {(each["ranks"], each["network"]) for each in results}, key=lambda p: (p[1] != "one host", p[0])
    )
    parts = []
    for ranks, network in places:
        here = [each for each in results if (each["ranks"], each["network"]) == (ranks, network)]
        parts.append(f"### {ranks} ranks, {network}\n\n{_table(here, ranks, network)}")
    return "\n\n".join(parts) + "\n"


def write_into(page: Path, text: str) -> None:
    """Put the tables between the marks of a page."""
    before, rest = page.read_text().split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    page.write_text(f"{before}{MARKS[0]}\n\n{text}\n{MARKS[1]}{after}")


def short(size: int) -> str:
    """Return 1048576 as ``1 MiB``."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B" if size < 1 << 20 else f"{size / 1e6:.0f} MB"


def _table(results: list[Result], ranks: int, network: str) -> str:
    ours = [name for name in OURS[network] if any(each["who"] == name for each in results)]
    peers = sorted({each["who"] for each in results} - set(ours) - {"hardware"})
    limit = "copy by all ranks" if network == "one host" else "bare stream"
    head = ["cell", *(TITLES[name] for name in ours), "alg / bus GB/s", *peers, "best peer / ours", limit]
    lines = [_row(head), _row(["---", *["---:"] * (len(head) - 1)])]
    for verb, size in dict.fromkeys((each["verb"], each["bytes"]) for each in results):
        median = {
            each["who"]: statistics.median(each["seconds"])
            for each in results
            if (each["verb"], each["bytes"]) == (verb, size)
        }
        mine = [median[name] for name in ours if name in median]
        theirs = [median[name] for name in peers if name in median]
        row = [f"{verb} {short(size)}" if verb != "gradients" else "161 gradients, 102 MB"]
        row += [_time(median.get(name)) for name in ours]
        row.append(_bandwidth(verb, size, ranks, min(mine)) if mine else "–")
        row += [_time(median.get(name)) for name in peers]
        row.append(" / ".join(f"{min(theirs) / each:.2f}" for each in mine) if mine and theirs else "–")
        row.append(_time(median.get("hardware")))
        lines.append(_row(row))
    return "\n".join(lines)


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _bandwidth(verb: str, size: int, ranks: int, seconds: float) -> str:
    algorithm = size / seconds / 1e9
    if verb not in ("allreduce", "gradients"):
        return f"{algorithm:.2f}"
    return f"{algorithm:.3g} / {algorithm * 2 * (ranks - 1) / ranks:.3g}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"
