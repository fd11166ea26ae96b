"""The ring's algorithms as programs of ranks; steps and bytes as in docs/algorithms.md.

By symmetry every rank of the direct exchange and of the ring does the same at the same time. So one rank
can stand for all: its peer in every step is itself. ``symmetric=True`` does that; tests compare it with
the full simulation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from simulation.events import Program, Simulation
from simulation.machine import Machine

__all__ = ["agreement", "allreduce", "direct", "ring", "shared", "two_level"]

SEGMENT = 256 << 10
RING_FROM = 32 << 20  # fusion_bytes: what is larger takes the ring
PROGRAM_SEGMENTS = (
    8  # a message of the simulation is at most this many; a slice of a thousandth is one anyway
)


def _parts(size: int, unit: int) -> list[int]:
    """Divide into parts of at most ``unit``."""
    return [min(unit, size - at) for at in range(0, size, unit)] or [0]


def _slice(size: int, n: int) -> int:
    return -(-size // n)


def _direct_program(machine: Machine, rank: int, n: int, size: int, symmetric: bool) -> Program:
    """Contributions to everybody, then own slice to everybody: 2 (n - 1) messages of T/n."""
    mine = _slice(size, n)
    peers = [rank if symmetric else (rank + k) % n for k in range(1, n)]
    sources = [rank if symmetric else (rank - k) % n for k in range(1, n)]
    for k, peer in enumerate(peers):
        yield "send", peer, mine, ("contribution", k)
    for k, source in enumerate(sources):
        yield "receive", source, ("contribution", k)
    yield "work", mine * (n - 1) / machine.reduce
    for k, peer in enumerate(peers):
        yield "send", peer, mine, ("result", k)
    for k, source in enumerate(sources):
        yield "receive", source, ("result", k)


def _ring_program(machine: Machine, rank: int, n: int, size: int, symmetric: bool) -> Program:
    """n - 1 steps that reduce, n - 1 that copy; a segment goes on as soon as it is done."""
    after = rank if symmetric else (rank + 1) % n
    before = rank if symmetric else (rank - 1) % n
    mine = _slice(size, n)
    parts = _parts(mine, max(SEGMENT, -(-mine // PROGRAM_SEGMENTS)))
    for k, part in enumerate(parts):
        yield "send", after, part, (0, k)
    for step in range(2 * (n - 1)):
        for k, part in enumerate(parts):
            yield "receive", before, (step, k)
            if step < n - 1:
                yield "work", part / machine.reduce
            if step + 1 < 2 * (n - 1):
                yield "send", after, part, (step + 1, k)


Made = Callable[[Machine, int, int, int, bool], Program]


def _run(program: Made, machine: Machine, n: int, size: int, per_host: int, symmetric: bool) -> float:
    crowd = machine.crowd(per_host)
    if symmetric:
        # The interface serves all ranks of the host: this one sees its share.
        share = Machine(**{**machine.__dict__, "wire": machine.wire / per_host})
        simulation = Simulation(share, lambda _: 0, crowd)
        return simulation.run({0: program(share, 0, n, size, True)})
    simulation = Simulation(machine, lambda rank: rank // per_host, crowd)
    return simulation.run({rank: program(machine, rank, n, size, False) for rank in range(n)})


def direct(machine: Machine, n: int, size: int, per_host: int = 1, *, symmetric: bool = True) -> float:
    """Return the seconds of an allreduce of ``size`` bytes by direct exchange among ``n`` ranks."""
    return _run(_direct_program, machine, n, size, per_host, symmetric) if n > 1 else 0.0


def ring(machine: Machine, n: int, size: int, per_host: int = 1, *, symmetric: bool = True) -> float:
    """Return the seconds of an allreduce by the ring."""
    return _run(_ring_program, machine, n, size, per_host, symmetric) if n > 1 else 0.0


@cache
def allreduce(machine: Machine, n: int, size: int, per_host: int = 1) -> float:
    """Return the seconds of an allreduce over TCP by the algorithm that the ring chooses."""
    chosen = direct if n == 2 or size <= RING_FROM else ring
    return chosen(machine, n, size, per_host)


def shared(machine: Machine, n: int, size: int) -> float:
    """Return the seconds of an allreduce in shared memory: copy, reduce, gather, block by block.

    Waits overlap with the work on other blocks, but for the first and the last; they are counted there.
    """
    if n == 1:
        return 0.0
    blocks = max(1, -(-size // SEGMENT))
    moved = size * (1 if n == 2 else 2 * (n - 1) / n) / machine.copy
    reduced = size * (1 if n == 2 else (n - 1) / n) / machine.reduce
    waits = (1 if n == 2 else 2) * machine.flag * (1 + blocks / 8)
    return (moved + reduced + waits) * machine.crowd(n)


@cache
def two_level(machine: Machine, hosts: int, local: int, size: int) -> float:
    """Return the seconds of an allreduce over hosts of ``local`` ranks: inside, between by slices, inside."""
    if hosts == 1:
        return shared(machine, local, size)
    inside = shared(machine, local, size)  # its two halves
    return inside + allreduce(machine, hosts, _slice(size, local), local)


def agreement(machine: Machine, n: int) -> float:
    """Return the seconds of one exchange of heads: everybody to everybody, no matter on which host."""
    if n == 1:
        return 0.0
    return machine.latency + 2 * (n - 1) * machine.overhead
