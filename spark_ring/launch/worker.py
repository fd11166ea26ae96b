"""The child of ``spark_ring.run``: ``python -m spark_ring.launch.worker DESCRIPTOR``.

Everything comes through stdin, which nobody else can read: one line of JSON (rank, secret, settings, search
path, size of the payload) and the pickled function. The pipe then stays open and carries nothing more: when
it ends, the launcher is gone, and so is this process. The answer leaves through DESCRIPTOR.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import Any, BinaryIO

from spark_ring import world
from spark_ring.config import Settings
from spark_ring.errors import CommunicatorError
from spark_ring.launch.answers import failure_frame, is_consequence, value_frame
from spark_ring.launch.lifeline import hold

__all__ = ["main"]


def main() -> None:
    """Run the function; exit status 0 when it returned, 1 when it raised."""
    results = os.fdopen(int(sys.argv[1]), "wb")
    os.set_inheritable(results.fileno(), False)
    head, payload = _take_orders()
    sys.argv = [""]
    sys.path[:] = head["sys_path"]
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    given = Settings(**head["settings"])
    world.launched_with(given)
    answer, well = _work(payload, given.rank, head["initialise"])
    results.write(answer)
    results.close()
    sys.exit(0 if well else 1)


def _work(payload: bytes, rank: int, initialise: bool) -> tuple[bytes, bool]:
    """Call the function between init and shutdown; return the frame to answer, and whether all went well."""
    import cloudpickle

    try:
        if initialise:
            world.init()
        function, args, kwargs = cloudpickle.loads(payload)
        value = function(*args, **kwargs)
        world.shutdown()
    except BaseException as error:  # also SystemExit and KeyboardInterrupt: the launcher must hear of it
        answer = failure_frame(error)
        _tell_the_others(error, rank)
        return answer, False
    return value_frame(value, rank), True


def _tell_the_others(error: BaseException, rank: int) -> None:
    if not world.is_initialized():
        return
    try:
        if not is_consequence(error):  # what another rank caused, the others hear from the ring itself
            world.current().abort(f"rank {rank} raised {type(error).__name__}: {error}")
        world.shutdown()
    except CommunicatorError:  # already broken: the others know
        pass


def _take_orders() -> tuple[dict[str, Any], bytes]:
    """Read head and payload; leave stdin empty for the function, and watch the pipe."""
    pipe = os.fdopen(os.dup(0), "rb")
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    head = json.loads(pipe.readline())
    payload = pipe.read(head["payload_bytes"])
    # The kernel does what the thread does: no thread runs while native code holds the interpreter.
    hold(pipe.fileno())
    threading.Thread(target=_watch, args=(pipe,), name="spark_ring-parent-watch", daemon=True).start()
    return head, payload


def _watch(pipe: BinaryIO) -> None:
    pipe.read(1)  # returns only at the end of the pipe
    os.killpg(0, signal.SIGKILL)  # this process and what it started


if __name__ == "__main__":
    main()
