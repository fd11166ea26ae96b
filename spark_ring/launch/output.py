"""What ranks print, passed on line by line with a rank prefix."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

__all__ = ["LinePrefixer"]

MAX_LINE = 64 * 1024


class LinePrefixer:
    """Cuts a byte stream into lines and writes each as ``[rank] line``."""

    def __init__(
        self, rank: int, target: Callable[[], TextIO], seen: Callable[[str], None] | None = None
    ) -> None:
        """Make a prefixer.

        Args:
            rank: goes into the prefix.
            target: returns the stream to write to, asked anew each time (``sys.stdout`` may be replaced).
            seen: called with each line.
        """
        self._prefix = f"[{rank}] "
        self._target = target
        self._seen = seen
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take some bytes; write the lines that are complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE:  # somebody prints without ever ending the line
            lines.append(self._rest)
            self._rest = b""
        self._write(lines)

    def finish(self) -> None:
        """Write what is left without a line end."""
        if self._rest:
            self._write([self._rest])
            self._rest = b""

    def _write(self, lines: list[bytes]) -> None:
        if not lines:
            return
        texts = [line.decode("utf-8", "replace").rstrip("\r") for line in lines]
        if self._seen is not None:
            for text in texts:
                self._seen(text)
        stream = self._target()
        stream.write(_writable("".join(f"{self._prefix}{text}\n" for text in texts), stream))
        stream.flush()


def _writable(text: str, stream: TextIO) -> str:
    """Escape what a stream's encoding lacks: an ASCII terminal must not end a job."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
