"""Collectives beside those of other libraries, all taking turns in one run.

    python benchmarks/collectives.py                                    # everything: some twenty minutes
    python benchmarks/collectives.py --ranks 2 --sizes 4,1M --rounds 3
    python benchmarks/collectives.py --json now.json --write docs/benchmarks.md

Each competitor has its ranks, started once and blocked in a read until it is their turn. In each round, for
every cell (verb, bytes, number of ranks), every competitor runs in turn, in an order drawn anew each time:
whatever else the machine does hits all alike. So compare ratios, not times. A measurement is the mean of
several calls, after one that does not count, on the slowest rank; tables show medians over the rounds. Every
competitor's result is checked once in every cell.

    algorithm bandwidth = bytes / time                 what a user sees
    bus bandwidth       = that × 2 (n - 1) / n         what the best algorithm must move per rank (allreduce)

Competitors: ``shm``, ``own`` (arrays of ``Communicator.empty``) and ``tcp`` are spark_ring; ``gloo`` is
torch.distributed's, ``gloo-reno`` the same with the congestion control that spark_ring uses on one host (root
only); ``openmpi``, ``mpich``, ``intel``, ``openmpi-tcp`` and ``horovod`` come from ``make peers``;
``hardware`` is NumPy's copy and a bare stream over loopback TCP, by all ranks at once.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import report
from competitors import ONE_HOST, TCP_ONLY, Competitor, find, remove_namespace
from ranks import Ranks

SIZES = "4,4K,64K,1M,16M,64M,256M"
GRADIENT_BYTES = 25_557_032 * 4
OTHERS = ("reducescatter", "allgather", "broadcast", "alltoall")
OTHERS_BYTES = 64 << 20
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
SECONDS = 0.15  # how long one measurement aims to take
CALLS = (2, 3000)

Cell = tuple[str, int]  # verb, bytes


def main() -> None:
    options = _arguments()
    if options.report:
        results = [cell for file in options.report for cell in json.loads(Path(file).read_text())["cells"]]
    else:
        results = _run(options)
    text = report.tables(results)
    if options.write:
        report.write_into(Path(options.write), text)
    print(text)


def _run(options: argparse.Namespace) -> list[report.Result]:
    results: list[report.Result] = []
    began, load = time.strftime("%Y-%m-%d"), os.getloadavg()[0]
    try:
        for size in options.ranks:
            for network, names in (("one host", ONE_HOST), ("TCP only", TCP_ONLY)):
                if options.network in (None, network):
                    wanted = [name for name in names if options.peers is None or name in options.peers]
                    results += _measure_all(size, network, wanted, _cells(size, options), options)
                    _keep(results, options, began, load)
    finally:
        remove_namespace()
    return results


def _keep(results: list[report.Result], options: argparse.Namespace, began: str, load: float) -> None:
    """Write what there is so far: a long run that is cut short is not lost."""
    if options.json:
        facts = {
            "date": began,
            "machine": platform.platform(),
            "cores": os.cpu_count(),
            "load_before": load,
            "rounds": options.rounds,
        }
        Path(options.json).write_text(json.dumps({**facts, "cells": results}, indent=1))


def _cells(size: int, options: argparse.Namespace) -> list[Cell]:
    cells = [("allreduce", bytes) for bytes in options.sizes]
    if options.gradients:
        cells.append(("gradients", GRADIENT_BYTES))
    if options.others and size == 2:
        cells += [(verb, OTHERS_BYTES) for verb in OTHERS]
    return cells


def _measure_all(
    size: int, network: str, names: list[str], cells: list[Cell], options: argparse.Namespace
) -> list[report.Result]:
    order = random.Random(options.seed)
    present: list[Ranks] = []
    try:
        for name in names:
            found = find(name)
            started = _start(found, size) if isinstance(found, Competitor) else found
            if isinstance(started, Ranks):
                present.append(started)
            else:
                print(f"{name} is left out: {started}", file=sys.stderr)
        measured: dict[tuple[Cell, str], list[float]] = {}
        for cell in cells:
            took = {ranks.name: _first(ranks, network, cell) for ranks in present}
            for _ in range(options.rounds):
                for ranks in order.sample(present, len(present)):
                    first = took[ranks.name]
                    if first is not None:
                        calls = min(max(CALLS[0], round(SECONDS / max(first, 1e-7))), CALLS[1])
                        seconds = _call(ranks, network, cell)(calls, False)
                        measured.setdefault((cell, ranks.name), []).append(seconds or 0.0)
            print(f"{size} ranks, {network}, {cell[0]} of {report.short(cell[1])}: done", file=sys.stderr)
    finally:
        for ranks in present:
            ranks.close()
    return [
        {
            "ranks": size,
            "network": network,
            "verb": cell[0],
            "bytes": cell[1],
            "who": name,
            "seconds": seconds,
        }
        for (cell, name), seconds in measured.items()
    ]


def _start(competitor: Competitor, size: int) -> Ranks | str:
    try:
        return Ranks(competitor, size)
    except RuntimeError as error:
        return str(error)


def _first(ranks: Ranks, network: str, cell: Cell) -> float | None:
    """Check the result, then return what one call takes, roughly."""
    call = _call(ranks, network, cell)
    call(1, True)
    return call(2, False)


def _call(ranks: Ranks, network: str, cell: Cell) -> Callable[[int, bool], float | None]:
    verb, bytes = cell
    if ranks.name == "hardware":
        verb = "copy" if network == "one host" else "stream"
    return lambda calls, check: ranks.measure(verb, bytes, calls, check=check)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=_integers, default=[2, 4, 8], help="numbers of ranks; default 2,4,8")
    parser.add_argument("--sizes", type=_bytes, default=_bytes(SIZES), help=f"bytes; default {SIZES}")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seed", type=int, default=1, help="of the order of turns")
    parser.add_argument("--peers", type=lambda text: text.split(","), help="only these competitors")
    parser.add_argument("--network", choices=["one host", "TCP only"], help="only this half")
    parser.add_argument("--no-gradients", dest="gradients", action="store_false", help="no 161 gradients")
    parser.add_argument("--no-others", dest="others", action="store_false", help="allreduce only")
    parser.add_argument("--json", help="write everything to this file")
    parser.add_argument("--report", nargs="+", metavar="JSON", help="measure nothing; tables of these files")
    parser.add_argument("--write", metavar="FILE", help="put the tables between the marks of this page")
    return parser.parse_args()


def _integers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _bytes(text: str) -> list[int]:
    return [
        int(part[:-1]) * UNITS[part[-1].upper()] if part[-1].upper() in UNITS else int(part)
        for part in text.split(",")
    ]


if __name__ == "__main__":
    main()
