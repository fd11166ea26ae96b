"""A batch: one rank's share of one global batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Batch"]


@dataclass(frozen=True)
class Batch:
    """One rank's rows of one step.

    Attributes:
        inputs: tensor name → C-contiguous array ``(rows, *shape)`` in the contract's dtype and order.
        labels: the same for labels.
        weight: row weights ``(rows,)`` float32, or ``None``.
        rows: rows on this rank; 0 when the tail of an epoch did not reach it (it still takes the step).
        global_rows: rows of this step over all ranks; known without communication, never 0.
        step: number of this step in its epoch, from 0, the same on every rank.
    """

    inputs: dict[str, np.ndarray]
    labels: dict[str, np.ndarray]
    weight: np.ndarray | None
    rows: int
    global_rows: int
    step: int
