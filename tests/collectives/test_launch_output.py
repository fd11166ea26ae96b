"""What ranks print: cut into lines, passed on, whatever the terminal and the pipe do."""

from __future__ import annotations

import io
import os
from typing import Any

import pytest

from spark_ring.launch.output import MAX_LINE, LinePrefixer
from spark_ring.launch.supervisor import Supervisor


def test_lines_are_whole_and_have_a_prefix() -> None:
    stream, seen = io.StringIO(), []
    prefixer = LinePrefixer(3, lambda: stream, seen.append)
    for piece in (b"one\ntw", b"o\r\n", b"", b"x" * (MAX_LINE + 1), b"\xff"):
        prefixer.feed(piece)
    prefixer.finish()
    assert stream.getvalue() == f"[3] one\n[3] two\n[3] {'x' * (MAX_LINE + 1)}\n[3] \ufffd\n"
    assert seen[:2] == ["one", "two"]


@pytest.mark.parametrize(
    ("encoding", "written"), [("ascii", b"[0] \\xfc \\u2713\n"), ("latin-1", b"[0] \xfc \\u2713\n")]
)
def test_a_terminal_that_lacks_a_letter_gets_it_escaped(encoding: str, written: bytes) -> None:
    """Under LANG=C, a rank that prints a check mark must not end the launcher."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, newline="\n")
    LinePrefixer(0, lambda: stream).feed("ü ✓\n".encode())
    assert raw.getvalue() == written


def test_a_pipe_that_somebody_else_has_emptied_is_not_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = Supervisor([], answers=False)
    reading, writing = os.pipe()
    got: list[bytes] = []
    try:
        supervisor._add(reading, got.append)
        ready = [(key, 1) for key in supervisor._selector.get_map().values()]

        def select(timeout: float | None = None) -> list[Any]:
            return ready

        with monkeypatch.context() as patch:
            patch.setattr(supervisor._selector, "select", select)
            assert supervisor._read(0)
        os.write(writing, b"late")
        assert supervisor._read(10)
        assert got == [b"late"]
        os.close(writing)
        writing = -1
        assert supervisor._read(10)
        assert not supervisor._selector.get_map()
    finally:
        supervisor._selector.close()
        os.close(reading)
        if writing >= 0:
            os.close(writing)
