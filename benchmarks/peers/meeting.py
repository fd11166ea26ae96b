"""How ranks that were started one by one find each other: texts in a folder."""

from __future__ import annotations

import os
import time
from pathlib import Path


def place() -> tuple[int, int]:
    """Return this rank and the number of ranks."""
    return int(os.environ["BENCHMARK_RANK"]), int(os.environ["BENCHMARK_SIZE"])


def folder() -> Path:
    """Return the folder that the ranks of one competitor share."""
    return Path(os.environ["BENCHMARK_FOLDER"])


def exchange(text: str) -> list[str]:
    """Gather one text of every rank; once."""
    rank, size = place()
    part = folder() / f"{rank}.part"
    part.write_text(text)
    part.rename(folder() / f"{rank}.text")
    deadline = time.monotonic() + 60
    while not all((folder() / f"{r}.text").exists() for r in range(size)):
        if time.monotonic() > deadline:
            raise TimeoutError("the other ranks did not come within a minute")
        time.sleep(0.01)
    return [(folder() / f"{r}.text").read_text() for r in range(size)]
