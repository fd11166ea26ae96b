"""What a worker prints, line by line, each with the worker's rank before it."""

from __future__ import annotations

import contextlib
import io
import sys
import threading
from collections.abc import Iterator
from typing import TextIO

__all__ = ["PrefixedStream", "prefixed_output"]


class PrefixedStream(io.TextIOBase):
    """A text stream that puts a prefix before each line and writes whole lines only.

    Lines of several threads or ranks that share a terminal are thus never mixed within a line.

    Args:
        target: the stream to write to.
        prefix: the text before each line.
    """

    def __init__(self, target: TextIO, prefix: str) -> None:
        self._target = target
        self._prefix = prefix
        self._partial = ""
        self._lock = threading.Lock()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._lock:
            # A progress bar rewrites its line with "\r": each state is a line here.
            *lines, self._partial = (self._partial + text).replace("\r", "\n").split("\n")
            whole = "".join(f"{self._prefix}{line}\n" for line in lines if line)
            if whole:
                self._target.write(whole)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(ValueError):  # the target was closed
            self._target.flush()

    def finish(self) -> None:
        """Write a last line that has no end."""
        if self._partial:
            self.write("\n")
        self.flush()


@contextlib.contextmanager
def prefixed_output(prefix: str) -> Iterator[None]:
    """Put a prefix before every line that is printed in a block, on stdout and on stderr."""
    before = sys.stdout, sys.stderr
    streams = [PrefixedStream(stream, prefix) for stream in before]
    sys.stdout, sys.stderr = streams  # type: ignore[assignment]
    try:
        yield
    finally:
        for stream in streams:
            stream.finish()
        sys.stdout, sys.stderr = before
