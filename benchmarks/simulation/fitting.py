"""Fitting the machine's costs to measurements, and checking them on measurements that were left out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scipy.optimize import least_squares

from simulation.machine import Machine
from simulation.schedules import agreement, allreduce, shared

__all__ = ["Cell", "Fit", "fit", "predict"]

FIELDS = ("latency", "overhead", "socket", "reduce", "copy", "flag")
START = (10e-6, 4e-6, 3e9, 6e9, 6e9, 1e-6)


@dataclass(frozen=True)
class Cell:
    """One measured allreduce.

    Attributes:
        transport: ``"shm"`` or ``"tcp"``.
        ranks, bytes: of it.
        seconds: median.
    """

    transport: str
    ranks: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Fit:
    """A fitted machine and how well it predicts: ``predicted / measured`` of the cells that were left out."""

    machine: Machine
    fitted: dict[Cell, float]
    checked: dict[Cell, float]

    def spread(self) -> tuple[float, float]:
        """Return the median and the worst factor between prediction and measurement, of those left out."""
        factors = [max(ratio, 1 / ratio) for ratio in self.checked.values()]
        return statistics.median(factors), max(factors)


def predict(machine: Machine, cell: Cell) -> float:
    """Return the seconds of an allreduce on one host; what is small comes with the agreement."""
    n, size = cell.ranks, cell.bytes
    if cell.transport == "shm":
        carried = size <= min(max(4096, (128 << 10) // n), 32 << 10)
        return machine.flag * machine.crowd(n) + (0.0 if carried else shared(machine, n, size))
    carried = size <= (16 << 10 if n <= 4 else 4 << 10)
    first = agreement(replace(machine, overhead=machine.overhead * machine.crowd(n)), n)
    return first + (0.0 if carried else allreduce(machine, n, size, n))


def fit(cells: Sequence[Cell], cores: int) -> Fit:
    """Fit on every other cell, check on the rest. Errors count by their logarithm: all sizes alike."""
    ordered = sorted(cells, key=lambda cell: (cell.transport, cell.ranks, cell.bytes))
    used, left_out = ordered[::2], ordered[1::2]

    def machine_of(logs: Sequence[float]) -> Machine:
        return Machine(**{name: math.exp(log) for name, log in zip(FIELDS, logs, strict=True)}, cores=cores)

    def errors(logs: Sequence[float]) -> list[float]:
        machine = machine_of(logs)
        return [math.log(predict(machine, cell) / cell.seconds) for cell in used]

    found = least_squares(errors, [math.log(value) for value in START], loss="soft_l1", diff_step=1e-3)
    machine = machine_of(found.x)
    return Fit(
        machine,
        {cell: predict(machine, cell) / cell.seconds for cell in used},
        {cell: predict(machine, cell) / cell.seconds for cell in left_out},
    )
