"""One step of data-parallel training: backward makes gradients, the ring reduces them behind its back.

Gradients come in the order of the backward pass; the time between them is the share of their layer in its
multiply-adds. Whenever the ring is free it agrees on what is there, in buckets of at most
``fusion_bytes``, and reduces it; a step ends with the last gradient's reduction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simulation.models import Network

__all__ = ["Step", "train"]

FUSION = 32 << 20
BACKWARD = 2 / 3  # of a step without communication: two products for one of the forward pass


@dataclass(frozen=True)
class Step:
    """Where the time of one step went, in seconds.

    Attributes:
        compute: forward and backward.
        total: until the last gradient is reduced.
        busy: the ring at work, hidden or not.
        agreeing: part of ``busy`` that is agreement.
    """

    compute: float
    total: float
    busy: float
    agreeing: float

    @property
    def efficiency(self) -> float:
        return self.compute / self.total

    @property
    def limit(self) -> str:
        """What makes the step longer than its computing."""
        if self.total < 1.02 * self.compute:
            return "computing"
        if self.agreeing > 0.5 * self.busy:
            return "agreement"
        if self.busy > self.compute * BACKWARD:
            return "moving bytes"
        return "the last gradients"


def train(
    network: Network, compute: float, reduce: Callable[[int], float], agree: float, item: int = 4
) -> Step:
    """Simulate a step.

    Args:
        network: whose gradients.
        compute: seconds of forward and backward on one rank.
        reduce: seconds of an allreduce of so many bytes.
        agree: seconds of one agreement.
        item: bytes of a gradient's element.
    """
    forward = compute * (1 - BACKWARD)
    per_work = compute * BACKWARD / network.multiply_adds
    ready: list[tuple[float, int]] = []
    now = forward
    for elements, work in reversed(network.tensors):
        now += work * per_work
        ready.append((now, elements * item))
    free, busy, agreeing, at = 0.0, 0.0, 0.0, 0
    while at < len(ready):
        start = max(free, ready[at][0])
        end = at
        while end < len(ready) and ready[end][0] <= start:
            end += 1
        took = agree
        for bucket in _buckets([size for _, size in ready[at:end]]):
            took += reduce(bucket)
        agreeing += agree
        busy += took
        free, at = start + took, end
    return Step(compute, max(now, free), busy, agreeing)


def _buckets(sizes: list[int]) -> list[int]:
    buckets, filled = [], 0
    for size in sizes:
        if filled and filled + size > FUSION:
            buckets.append(filled)
            filled = 0
        filled += size
    return [*buckets, filled]
