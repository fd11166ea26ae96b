"""A rank ends when its launcher does, however that ended: also by a signal that nobody can catch.

The launcher keeps the writing end of a pipe and never writes. When the launcher is gone the kernel closes
that end; the rank has asked it to answer this event with SIGKILL for the rank's whole process group. No
thread and no Python is needed for that, so it works in any program: for a script this file is run first, and
becomes the program::

    python -I -S lifeline.py DESCRIPTOR PROGRAM [ARGUMENT …]
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys

__all__ = ["hold"]


def hold(descriptor: int) -> None:
    """Tie this process's group to the pipe. Linux only; elsewhere nothing happens."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)


def _main() -> None:
    descriptor, command = int(sys.argv[1]), sys.argv[2:]
    hold(descriptor)  # it stays open in the program: the tie lasts as long as the pipe
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    _main()
