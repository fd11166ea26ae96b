"""Random generators of a worker: seeded from (seed, epoch, rank), and given back as they were.

Seeding at the start of each epoch is what makes a resumed run equal an undisturbed one without storing any
generator's state. Ranks differ, so that their dropout masks do.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

__all__ = ["GeneratorStates", "seed_all"]

_MASK = 2**64 - 1


def seed_all(seed: int, epoch: int = 0, rank: int = 0) -> None:
    """Seed the generators of Python, NumPy and torch."""
    sequence = np.random.SeedSequence([seed & _MASK, epoch, rank])
    words = [int(word) for word in sequence.generate_state(3, np.uint64)]
    random.seed(words[0])
    np.random.seed(words[1] & 0xFFFFFFFF)
    torch.manual_seed(words[2])


class GeneratorStates:
    """What the process's generators were when this was made."""

    def __init__(self) -> None:
        self._python = random.getstate()
        self._numpy: Any = np.random.get_state()
        self._torch = torch.get_rng_state()

    def restore(self) -> None:
        """Put the generators back."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._torch)
