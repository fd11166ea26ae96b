"""What things cost: seconds and bytes per second. One rank is one process of one core."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Machine"]


@dataclass(frozen=True)
class Machine:
    """A cluster.

    Attributes:
        latency: from the end of sending a message to its arrival.
        overhead: processor time to send, and again to receive, one message.
        socket: bytes per second of processor time that a socket takes to send, and again to receive.
        reduce: bytes per second at which one rank adds what came to what it has.
        copy: bytes per second at which one rank copies within its host.
        flag: one wait for the other ranks of a host.
        wire: bytes per second of a host's network interface, each way, shared by its ranks; infinite:
        loopback. cores: of a host, when its ranks have to share them (0: a core for every rank).
    """

    latency: float
    overhead: float
    socket: float
    reduce: float
    copy: float
    flag: float
    wire: float = float("inf")
    cores: int = 0

    def crowd(self, ranks: int) -> float:
        """Return by how much work on a processor takes longer with so many busy ranks on a host."""
        return max(1.0, ranks / self.cores) if self.cores else 1.0
