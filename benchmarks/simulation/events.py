"""The discrete-event core: messages between ranks, each with a processor and a network interface.

A rank's program is a generator. It yields what it wants and is resumed when that is done:

    ("work", seconds)            keep the processor busy
    ("send", to, bytes, tag)     hand a message to the network; resumed when the processor has done its part
    ("receive", source, tag)     wait for a message and take it in

A processor does one thing at a time, and so does an interface: what is sent while it is busy queues.
Events of equal time happen in the order in which they were made.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Generator
from typing import Any

from simulation.machine import Machine

__all__ = ["Program", "Simulation"]

Program = Generator[tuple[Any, ...], None, None]


class Simulation:
    """Runs one program per rank.

    Args:
        machine: what things cost.
        host_of: the host of a rank; ranks of one host share its interface, and do not use it among
        themselves. crowd: factor on processor time.

    Attributes:
        messages, bytes: sent so far, by all ranks.
    """

    def __init__(self, machine: Machine, host_of: Callable[[int], int], crowd: float = 1.0) -> None:
        self._machine, self._host_of, self._crowd = machine, host_of, crowd
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._wire_free: dict[int, float] = defaultdict(float)
        self._arrived: dict[tuple[int, int, Any], list[tuple[float, int]]] = defaultdict(list)
        self._waiting: dict[tuple[int, int, Any], Callable[[float, int], None]] = {}
        self._now = 0.0
        self.messages = 0
        self.bytes = 0

    def run(self, programs: dict[int, Program]) -> float:
        """Run to the end; return the time of the last event.

        Raises:
            RuntimeError: a program waits for a message that nobody sends.
        """
        left = set(programs)
        for rank, program in programs.items():
            self._at(0.0, lambda r=rank, p=program: self._step(r, p, left))
        while self._agenda:
            self._now, _, event = heapq.heappop(self._agenda)
            event()
        if left:
            raise RuntimeError(f"ranks {sorted(left)[:8]} wait for ever, for {list(self._waiting)[:4]}")
        return self._now

    def _at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (time, next(self._order), event))

    def _step(self, rank: int, program: Program, left: set[int]) -> None:
        wish = next(program, None)
        if wish is None:
            left.discard(rank)
            return
        kind, *rest = wish
        again = lambda: self._step(rank, program, left)  # noqa: E731
        if kind == "work":
            self._at(self._now + rest[0] * self._crowd, again)
        elif kind == "send":
            self._send(rank, *rest, again)
        else:
            self._receive(rank, *rest, again)

    def _send(self, rank: int, to: int, size: int, tag: Any, again: Callable[[], None]) -> None:
        machine = self._machine
        self.messages += 1
        self.bytes += size
        ready = self._now + (machine.overhead + size / machine.socket) * self._crowd
        host = self._host_of(rank)
        leaves = ready
        if host != self._host_of(to) or machine.wire != float("inf"):
            leaves = max(ready, self._wire_free[host]) + size / machine.wire
            self._wire_free[host] = leaves
        key = to, rank, tag
        self._at(leaves + machine.latency, lambda: self._arrive(key, size))
        self._at(ready, again)

    def _arrive(self, key: tuple[int, int, Any], size: int) -> None:
        waiting = self._waiting.pop(key, None)
        if waiting is None:
            self._arrived[key].append((self._now, size))
        else:
            waiting(self._now, size)

    def _receive(self, rank: int, source: int, tag: Any, again: Callable[[], None]) -> None:
        machine = self._machine

        def take(time: float, size: int) -> None:
            self._at(time + (machine.overhead + size / machine.socket) * self._crowd, again)

        here = self._arrived.get((rank, source, tag))
        if here:
            _, size = here.pop(0)
            take(self._now, size)
        else:
            self._waiting[rank, source, tag] = take
