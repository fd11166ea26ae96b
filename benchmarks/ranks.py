"""The ranks of one competitor, started once and asked for one measurement at a time (``peers/loop.py``)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
from competitors import Competitor

START_SECONDS = 45.0


class Ranks:
    """All ranks of one competitor.

    Args:
        competitor: whose.
        size: how many.
        patience: seconds that one measurement may take.
    """

    def __init__(self, competitor: Competitor, size: int, patience: float = 300.0) -> None:
        self.name, self.size, self._restless = competitor.name, size, competitor.restless
        self._stack = ExitStack()
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="ring-bench-"))
        self._log = Path(folder, "log")
        path = str(Path(folder, "socket"))
        listener = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(path)
        listener.listen(size)
        listener.settimeout(START_SECONDS)
        common = {"BENCHMARK_SOCKET": path, "BENCHMARK_FOLDER": folder, "BENCHMARK_SIZE": str(size)}
        self._processes = []
        with self._log.open("wb") as log:
            for rank, command in enumerate(competitor.commands(size)):
                env = {**os.environ, "OMP_NUM_THREADS": "1", **competitor.env, **common}
                env["BENCHMARK_RANK"] = str(rank)
                self._processes.append(
                    subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
                )
        try:
            self._lines = [self._accept(listener, patience) for _ in range(size)]
            for lines in self._lines:
                self._read(lines)
            self._pause(True)
        except (OSError, RuntimeError) as error:
            text = self._tail()
            self.close()
            raise RuntimeError(f"{self.name}: its ranks did not start ({error}): {text}") from error

    def measure(self, verb: str, bytes: int, calls: int, *, check: bool = False) -> float | None:
        """Return the mean seconds of one call on the slowest rank; ``None``: no such verb.

        Raises:
            RuntimeError: a rank ended; the message has the end of what it printed.
        """
        self._pause(False)
        ask = json.dumps({"verb": verb, "bytes": bytes, "calls": calls, "check": check})
        for lines in self._lines:
            print(ask, file=lines, flush=True)
        answers = [self._read(lines) for lines in self._lines]
        self._pause(True)
        return None if None in answers else max(answers)

    def close(self) -> None:
        """Hang up and see the ranks off."""
        self._pause(False)
        for lines in getattr(self, "_lines", []):
            lines.close()
        for connection in getattr(self, "_connections", []):
            connection.close()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._stack.close()

    def _pause(self, stopped: bool) -> None:
        if not self._restless:
            return
        for process in self._processes:
            if process.poll() is None:
                for one in psutil.Process(process.pid).children(recursive=True):
                    with suppress(psutil.NoSuchProcess):
                        one.suspend() if stopped else one.resume()

    def _accept(self, listener: socket.socket, patience: float) -> Any:
        connection, _ = listener.accept()
        connection.settimeout(patience)
        self._connections = [*getattr(self, "_connections", []), connection]
        return connection.makefile("rw")

    def _read(self, lines: Any) -> Any:
        line = lines.readline()
        if not line:
            raise RuntimeError(f"{self.name}: a rank ended: {self._tail()}")
        return json.loads(line)

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-800:] if self._log.exists() else ""
