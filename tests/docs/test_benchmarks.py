"""The benchmark of collectives runs, checks its results and writes its tables."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

COLLECTIVES = Path(__file__).parents[2] / "benchmarks" / "collectives.py"


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(COLLECTIVES), *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )


def test_everybody_takes_turns_and_the_tables_are_written(tmp_path: Path) -> None:
    page, found = tmp_path / "page.md", tmp_path / "found.json"
    page.write_text("before\n<!-- tables: begin -->\nold\n<!-- tables: end -->\nafter\n")
    small = ["--ranks", "2", "--sizes", "4,64K", "--rounds", "2", "--no-others"]
    peers = ["--network", "one host", "--peers", "shm,own,gloo,hardware,nobody"]
    done = _run(*small, *peers, "--json", str(found), "--write", str(page))
    cells = json.loads(found.read_text())["cells"]
    assert {(cell["verb"], cell["bytes"]) for cell in cells} == {
        ("allreduce", 4),
        ("allreduce", 65536),
        ("gradients", 102228128),
    }
    for cell in cells:
        assert len(cell["seconds"]) == 2
        assert all(0 < seconds < 60 for seconds in cell["seconds"])
    assert {cell["who"] for cell in cells} == {"shm", "own", "gloo", "hardware"}
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| allreduce 64 KiB |" in text
    assert text.count("\n| ") == 5
    assert _run("--report", str(found)).stdout == done.stdout


def test_a_wrong_result_ends_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(COLLECTIVES.parent / "peers"))
    import loop

    class Wrong:
        rank, size = 0, 2

        def array(self, elements: int) -> object:
            import numpy as np

            return np.zeros(elements, np.float32)

        def allreduce(self, data: object) -> None:
            """Do nothing."""

        def barrier(self) -> None:
            """Wait for nobody."""

    with pytest.raises(AssertionError, match=r"allreduce came out wrong: \[1. 1.\], not \[3.0, 3.0\]"):
        loop._measure(Wrong(), verb="allreduce", bytes=64, calls=1, check=True)
    assert loop._measure(Wrong(), verb="broadcast", bytes=64, calls=1, check=True) is None
