"""Allreduce of float32 on one host: spark_ring beside its peers, interleaved in one run.

    python benchmarks/collectives.py [--ranks 2,4] [--sizes 4,4K,64K,1M,16M,64M] [--rounds 5] [--json FILE]

For each number of ranks, one set of processes holds every competitor at once. In each round every
competitor does every size, one after the other, so that other work on the machine hits all of them alike:
compare ratios, not times. A measurement is the wall time of several back-to-back calls, divided; the slowest
rank counts; the table shows the median over the rounds.

    algorithm bandwidth = bytes / time                 what a user sees
    bus bandwidth       = that × 2 (n - 1) / n         what the best algorithm must move per rank

Competitors: ``shm`` and ``tcp`` are spark_ring on each transport; ``gloo`` is torch.distributed as installed,
with the host's default congestion control; ``mpi`` is whatever MPI mpi4py finds, when it can be imported. Its
ranks are started by mpirun and cannot share processes with the others, so its rounds come before and after
theirs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

SIZES = "4,4K,64K,1M,16M,64M"
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
SECONDS_PER_CELL = 0.12  # how long one measurement aims to take


@dataclass(frozen=True)
class Cell:
    """One competitor at one size: seconds per call in each round."""

    ranks: int
    competitor: str
    bytes: int
    seconds: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def main() -> None:
    options = _arguments()
    if options.mpi_rank_of:
        _mpi_rank(options)
        return
    competitors = _competitors(options.only)
    cells = []
    for ranks in options.ranks:
        cells += _measure(ranks, options.sizes, options.rounds, competitors)
        _print_table([cell for cell in cells if cell.ranks == ranks], ranks, options.rounds)
    if options.json:
        facts = {"machine": platform.platform(), "cores": os.cpu_count(), "rounds": options.rounds}
        cells_as_json = [{**asdict(cell), "median": cell.median} for cell in cells]
        Path(options.json).write_text(json.dumps({**facts, "cells": cells_as_json}, indent=1))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=_integers, default=[2, 4], help="numbers of ranks, for example 2,4,8")
    parser.add_argument("--sizes", type=_bytes, default=_bytes(SIZES), help=f"bytes, default {SIZES}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", type=lambda text: text.split(","), help="competitors: shm,tcp,gloo,mpi")
    parser.add_argument("--json", help="also write everything to this file")
    parser.add_argument("--mpi-rank-of", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def _integers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _bytes(text: str) -> list[int]:
    return [
        int(part[:-1]) * UNITS[part[-1].upper()] if part[-1].upper() in UNITS else int(part)
        for part in text.split(",")
    ]


def _competitors(only: list[str] | None) -> list[str]:
    found = ["shm", "tcp"]
    if find_spec("torch"):
        found.append("gloo")
    if find_spec("mpi4py") and shutil.which("mpirun"):
        found.append("mpi")
    return [name for name in found if only is None or name in only]


# The parent: one job per number of ranks.


def _measure(ranks: int, sizes: list[int], rounds: int, competitors: list[str]) -> list[Cell]:
    import spark_ring

    shared = [name for name in competitors if name != "mpi"]
    measured: dict[tuple[str, int], list[float]] = {
        (name, size): [] for name in competitors for size in sizes
    }
    if "mpi" in competitors:  # one round of it before, the rest after: its ranks are other processes
        _add(measured, _mpi(ranks, sizes, (rounds + 1) // 2))
    with tempfile.TemporaryDirectory() as folder:
        results = spark_ring.run(
            _work,
            args=(shared, sizes, rounds, folder),
            np=ranks,
            transport="shm",
            env={"OMP_NUM_THREADS": "1"},
        )
    slowest = [
        [max(times) for times in zip(*per_rank, strict=True)] for per_rank in zip(*results, strict=True)
    ]
    for (name, size), times in zip(((n, s) for n in shared for s in sizes), slowest, strict=True):
        measured[name, size] += times
    if "mpi" in competitors:
        _add(measured, _mpi(ranks, sizes, rounds // 2))
    return [Cell(ranks, name, size, times) for (name, size), times in measured.items() if times]


def _add(measured: dict[tuple[str, int], list[float]], more: dict[int, list[float]]) -> None:
    for size, times in more.items():
        measured["mpi", size] += times


# A rank: all competitors in one process.


def _work(names: list[str], sizes: list[int], rounds: int, folder: str) -> list[list[float]]:
    """Return for each competitor and size the seconds per call of each round."""
    from spark_ring import world

    verbs: dict[str, Callable[[np.ndarray], Any]] = {}
    closers: list[Callable[[], Any]] = []
    for name in names:
        verbs[name], close = _open(name, folder)
        closers.append(close)
    times: dict[tuple[str, int], list[float]] = {(name, size): [] for name in names for size in sizes}
    calls: dict[tuple[str, int], int] = {}
    for turn in range(-1, rounds):  # the first turn warms up and decides how many calls a measurement has
        for size in sizes:
            data = np.ones(size // 4, np.float32)
            for name in names:
                taken = _time(verbs[name], data, calls.get((name, size), 3))
                if turn >= 0:
                    times[name, size].append(taken)
                else:
                    slowest = float(world.allreduce(taken, "max"))
                    calls[name, size] = max(2, min(2000, round(SECONDS_PER_CELL / max(slowest, 1e-7))))
    for close in closers:
        close()
    return list(times.values())


def _time(verb: Callable[[np.ndarray], Any], data: np.ndarray, calls: int) -> float:
    from spark_ring import world

    data[:] = 0.0  # sums stay finite over any number of calls
    verb(data)
    world.barrier()
    started = time.perf_counter()
    for _ in range(calls):
        verb(data)
    return (time.perf_counter() - started) / calls


def _open(name: str, folder: str) -> tuple[Callable[[np.ndarray], Any], Callable[[], Any]]:
    """Return an allreduce in place, and how to end it."""
    from spark_ring import world

    if name == "shm":
        comm = world.current()
        return (lambda data: comm.allreduce(data, out=data)), (lambda: None)
    if name == "tcp":
        comm = _second_communicator()
        return (lambda data: comm.allreduce(data, out=data)), comm.close
    return _open_gloo(folder)


def _second_communicator() -> Any:
    """Return a communicator of the same ranks over TCP; they meet through the first one."""
    from dataclasses import replace

    from spark_ring import world
    from spark_ring.communicator import Communicator

    first = world.current()
    settings = replace(world._settings_for({}), transport="tcp")
    return Communicator.connect(
        first.rank, first.size, first.allgather_object, bytes.fromhex(settings.secret), settings
    )


def _open_gloo(folder: str) -> tuple[Callable[[np.ndarray], Any], Callable[[], Any]]:
    import torch
    from torch import distributed

    from spark_ring import world

    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/gloo", rank=world.rank(), world_size=world.size()
    )
    return (lambda data: distributed.all_reduce(torch.from_numpy(data))), distributed.destroy_process_group


# MPI, when there is one.


def _mpi(ranks: int, sizes: list[int], rounds: int) -> dict[int, list[float]]:
    """Run ranks of this file under mpirun; rank 0 prints what it measured."""
    if rounds == 0:
        return {}
    text = ",".join(map(str, sizes))
    command = ["mpirun", "-n", str(ranks), sys.executable, __file__]
    arguments = ["--mpi-rank-of", text, "--rounds", str(rounds)]
    process = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=300, check=False)
    if process.returncode != 0:
        print(f"mpi left out, mpirun failed: {process.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return {}
    return {int(size): times for size, times in json.loads(process.stdout.splitlines()[-1]).items()}


def _mpi_rank(options: argparse.Namespace) -> None:
    from mpi4py import MPI  # type: ignore[import-not-found]

    comm = MPI.COMM_WORLD
    times: dict[int, list[float]] = {}
    for size in _integers(options.mpi_rank_of):
        data = np.zeros(size // 4, np.float32)
        calls = 3
        for turn in range(-1, options.rounds):
            comm.Allreduce(MPI.IN_PLACE, data)
            comm.Barrier()
            started = time.perf_counter()
            for _ in range(calls):
                comm.Allreduce(MPI.IN_PLACE, data)
            taken = comm.allreduce((time.perf_counter() - started) / calls, MPI.MAX)
            if turn < 0:
                calls = max(2, min(2000, round(SECONDS_PER_CELL / max(taken, 1e-7))))
            else:
                times.setdefault(size, []).append(taken)
    if comm.rank == 0:
        print(json.dumps(times))


# The table.


def _print_table(cells: list[Cell], ranks: int, rounds: int) -> None:
    gloo = {cell.bytes: cell.median for cell in cells if cell.competitor == "gloo"}
    print(f"\nallreduce, float32, {ranks} ranks on {os.cpu_count()} cores, median of {rounds} rounds")
    print(
        f"{'bytes':>10} {'who':>5} {'time':>10} {'alg GB/s':>9} {'bus GB/s':>9} {'× gloo':>8} {'spread':>14}"
    )
    for size in sorted({cell.bytes for cell in cells}):
        for cell in (cell for cell in cells if cell.bytes == size):
            algorithm = size / cell.median / 1e9
            ratio = f"{gloo[size] / cell.median:.1f}" if size in gloo else "-"
            print(
                f"{_short(size):>10} {cell.competitor:>5} {_time_text(cell.median):>10} {algorithm:>9.3f} "
                f"{algorithm * 2 * (ranks - 1) / ranks:>9.3f} {ratio:>8} "
                f"{_time_text(min(cell.seconds)) + '–' + _time_text(max(cell.seconds)):>14}"
            )


def _short(size: int) -> str:
    for unit, factor in sorted(UNITS.items(), key=lambda item: -item[1]):
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}iB"
    return f"{size} B"


def _time_text(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f}us"
    return f"{seconds * 1e3:.1f}ms" if seconds < 1 else f"{seconds:.2f}s"


if __name__ == "__main__":
    main()
