"""One rank as a child process: how it is started, read, and ended.

A child leads a process group of its own, so that ending it ends what it started too, and so that Ctrl-C in a
terminal reaches only the launcher, which then ends all children in order.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import IO

from spark_ring.launch import lifeline as lifeline_module

__all__ = ["Child", "end_all", "exit_text"]

TAIL_LINES = 20


class Child:
    """A started rank.

    Attributes:
        rank: its rank.
        pid: its process id, also of its process group.
        stdin, stdout, stderr: the launcher's ends of its pipes.
        results: descriptor from which its answer is read, or -1 when none was asked for.
        tail: its last lines on stderr.
    """

    def __init__(
        self,
        rank: int,
        command: Sequence[str],
        env: Mapping[str, str],
        *,
        private_input: bool = False,
        results: bool = False,
        lifeline: bool = False,
    ) -> None:
        """Start ``command``.

        Args:
            rank: its rank, for messages.
            command: program and arguments. No secret belongs here: everybody on the host can read it.
            env: the child's whole environment.
            private_input: give it a pipe as stdin (the payload's way), else an empty one.
            results: make a pipe for its answer; its descriptor replaces ``{results}`` in ``command``.
            lifeline: let the kernel end it when this process is gone (:mod:`.lifeline`); for programs that
                do not see to it themselves.
        """
        self.rank = rank
        self.results = self._lifeline = -1
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        given: list[int] = []
        command = list(command)
        if results:
            self.results, theirs = os.pipe()
            given.append(theirs)
            command = [part.replace("{results}", str(theirs)) for part in command]
        if lifeline:
            theirs, self._lifeline = os.pipe()
            given.append(theirs)
            command = [sys.executable, "-I", "-S", lifeline_module.__file__, str(theirs), *command]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if private_input else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(env),
                pass_fds=given,
                start_new_session=True,
            )
        except BaseException:
            self._close_own()
            raise
        finally:
            for theirs in given:
                os.close(theirs)
        self.pid = self._process.pid

    @property
    def stdin(self) -> IO[bytes] | None:
        return self._process.stdin

    @property
    def stdout(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def stderr(self) -> IO[bytes]:
        assert self._process.stderr is not None
        return self._process.stderr

    def status(self) -> int | None:
        """Return its exit status (negative: the signal that ended it), or ``None`` while it runs."""
        return self._process.poll()

    def signal_group(self, number: int) -> None:
        """Send a signal to the child and to what it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def wait(self, timeout: float) -> bool:
        """Return whether it ended within ``timeout`` seconds."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        """Close the launcher's ends of the pipes."""
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):  # a pipe that broke with data in its buffer
                    stream.close()
        self._close_own()

    def _close_own(self) -> None:
        for descriptor in (self.results, self._lifeline):
            if descriptor >= 0:
                os.close(descriptor)
        self.results = self._lifeline = -1


def end_all(children: Iterable[Child], patience: float = 1.0) -> None:
    """End children that still run, politely first, and reap them all; leaves no process of their groups."""
    children = list(children)
    running = [child for child in children if child.status() is None]
    for child in running:
        child.signal_group(signal.SIGTERM)
        child.signal_group(signal.SIGCONT)  # a stopped process cannot end
    deadline = time.monotonic() + patience
    for child in running:
        child.wait(max(0.0, deadline - time.monotonic()))
    for child in children:
        child.signal_group(signal.SIGKILL)  # also what an ended child left behind in its group
    for child in children:
        child.wait(10.0)


def exit_text(status: int) -> str:
    """Return an exit status in words, for example ``"was killed by signal 9 (SIGKILL)"``."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        name = f" ({signal.Signals(-status).name})"
    except ValueError:
        name = ""
    return f"was killed by signal {-status}{name}"
