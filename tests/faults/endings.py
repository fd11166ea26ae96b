"""A process that forks ranks, so that many cases of dying cost one start of Python.

Run as a program it says ``ready``, reads one case a line (JSON) from standard input, forks a process for
every rank, and writes one line with what each rank saw. The process that forks has one thread and no
communicator of its own, so forking it is safe. Ranks meet through the rendezvous server of its parent, each
case in a group of its own.

In a case, the victims end in the way of ``how`` in the middle of ``phase``; the others go on and tell::

    {"error": class or null, "rank": whom it names, "text": message, "later": the next operation's error,
     "seconds": from the victim's last barrier, "left": descriptors and threads more than before}

How a victim ends: ``kill`` (SIGKILL), ``exit`` (``os._exit``), ``raise`` (an exception that unwinds to the
end), ``stop`` (SIGSTOP, until the others are done), ``pause`` (SIGSTOP, and SIGCONT soon afterwards).
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from spark_ring.communicator import Communicator
from spark_ring.config import Settings
from spark_ring.errors import SparkRingError
from spark_ring.rendezvous import RendezvousServer, exchange_through

LARGE = 4 * 1024 * 1024  # elements; many segments
PAUSE = 0.3  # seconds that a paused rank sleeps
DEADLINE = 40.0  # seconds for one case

Phase = Callable[[Communicator, Callable[[], None] | None], Any]


class _EndError(Exception):
    """What a victim raises."""


def _before_a_collective(comm: Communicator, end: Callable[[], None] | None) -> Any:
    if end:
        end()
    return float(comm.allreduce(np.ones(8), name="grad")[0])


def _mid_segment(comm: Communicator, end: Callable[[], None] | None) -> Any:
    data = np.ones(LARGE, np.float32)
    if end:
        handle = comm.allreduce_async(data, name="large")
        end()
        return float(handle.wait()[-1])
    return float(comm.allreduce(data, name="large")[-1])


def _many_pending(comm: Communicator, end: Callable[[], None] | None) -> Any:
    handles = [comm.allreduce_async(np.ones(1000), name=f"grad.{index}") for index in range(40)]
    if end:
        end()
    sums = {float(handle.wait()[0]) for handle in handles}
    comm.barrier(name="end")
    return sums.pop() if len(sums) == 1 else sums


def _sizes(comm: Communicator, end: Callable[[], None] | None) -> Any:
    if end:
        end()
    return float(comm.allgather(np.ones((comm.rank + 1, 3)), name="rows")[:, 0].sum()) * 0 + comm.size


def _after_send(comm: Communicator, end: Callable[[], None] | None) -> Any:
    """What was sent before an end can be received; what comes after cannot."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.send(np.full(100, comm.rank), right)
    if end:
        end()
    received = comm.recv(None, left)
    if not (received == left).all():
        raise AssertionError(f"from rank {left}: {received[:3]}")
    comm.barrier(name="end")
    return comm.size


def _receiving(comm: Communicator, end: Callable[[], None] | None) -> Any:
    if end:
        end()
    handle = comm.irecv(None, (comm.rank - 1) % comm.size)
    comm.send(np.full(1000, comm.rank), (comm.rank + 1) % comm.size)
    handle.wait()
    comm.barrier(name="end")
    return comm.size


def _making_a_group(comm: Communicator, end: Callable[[], None] | None) -> Any:
    if end:
        end()
    group = comm.group(range(comm.size), "all")
    assert group is not None
    return float(group.allreduce(1.0))


def _in_a_group(comm: Communicator, end: Callable[[], None] | None) -> Any:
    group = comm.group(range(comm.size), "all")
    assert group is not None
    group.barrier()
    if end:
        end()
    return float(group.allreduce(np.ones(LARGE // 8, np.float32), name="large")[0])


def _closing(comm: Communicator, end: Callable[[], None] | None) -> Any:
    if end:
        end()
    comm.close()
    return comm.size


PHASES: dict[str, Phase] = {
    "before a collective": _before_a_collective,
    "mid-segment": _mid_segment,
    "many pending": _many_pending,
    "sizes": _sizes,
    "after send": _after_send,
    "receiving": _receiving,
    "making a group": _making_a_group,
    "in a group": _in_a_group,
    "closing": _closing,
}


def _counts() -> list[int]:
    return [len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))]


def _left(before: list[int]) -> list[int]:
    """Return descriptors and threads more than before. A thread that was joined may still take a moment."""
    deadline = time.monotonic() + 3
    while (now := _counts()) != before and time.monotonic() < deadline:
        time.sleep(0.005)
    return [one - then for one, then in zip(now, before, strict=True)]


def _end(how: str) -> None:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "exit":
        os._exit(3)
    elif how == "raise":
        raise _EndError
    else:
        os.kill(os.getpid(), signal.SIGSTOP)


def _rank(case: dict[str, Any], rank: int) -> dict[str, Any]:
    """Live through a case as one rank."""
    settings = Settings(**case["settings"])
    if case["hosts"]:
        settings = Settings(**case["settings"], host_id=case["hosts"][rank])
    secret = bytes.fromhex(case["secret"])
    before = _counts()
    exchange = exchange_through(case["server"], secret, rank, case["size"], settings, group=case["group"])
    seen: dict[str, Any] = {"error": None, "rank": None, "text": "", "later": "", "value": None}
    with contextlib.closing(
        Communicator.connect(rank, case["size"], exchange, secret, settings, toward=case["server"])
    ) as comm:
        comm.barrier()
        started = time.monotonic()
        try:
            end = (lambda: _end(case["how"])) if rank in case["victims"] else None
            seen["value"] = PHASES[case["phase"]](comm, end)
        except SparkRingError as error:
            seen.update(error=type(error).__name__, rank=getattr(error, "rank", None), text=str(error))
            seen["seconds"] = time.monotonic() - started
            try:
                comm.barrier(name="later")
                seen["later"] = "it worked"
            except SparkRingError as later:
                seen["later"] = str(later)
        seen.setdefault("seconds", time.monotonic() - started)
    seen["left"] = _left(before)
    return seen


def _fork(case: dict[str, Any], rank: int) -> tuple[int, int]:
    """Return the rank's process id and the descriptor from which its answer comes."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    os.close(reading)
    code = 0
    try:
        os.write(writing, json.dumps(_rank(case, rank)).encode())
    except _EndError:
        code = 1
    except BaseException as error:
        os.write(writing, json.dumps({"crash": f"{type(error).__name__}: {error}"}).encode())
        code = 1
    os._exit(code)


def _is_stopped(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"


def _answers(case: dict[str, Any], ranks: list[tuple[int, int]]) -> list[Any]:
    answers: list[Any] = [None] * len(ranks)
    deadline = time.monotonic() + DEADLINE
    open_ends = {descriptor: rank for rank, (_, descriptor) in enumerate(ranks)}
    wake_at: dict[int, float] = {}
    while open_ends and time.monotonic() < deadline:
        for descriptor in select.select(list(open_ends), [], [], 0.02)[0]:
            rank = open_ends.pop(descriptor)
            text = b"".join(iter(lambda d=descriptor: os.read(d, 65536), b""))
            answers[rank] = json.loads(text) if text else None
        if case["how"] == "stop" and set(open_ends.values()) <= set(case["victims"]):
            break
        for rank in case["victims"] if case["how"] == "pause" else ():
            if rank not in wake_at and _is_stopped(ranks[rank][0]):
                wake_at[rank] = time.monotonic() + PAUSE
            elif rank in wake_at and time.monotonic() > wake_at[rank]:
                os.kill(ranks[rank][0], signal.SIGCONT)
                wake_at[rank] = deadline
    return answers


def _play(case: dict[str, Any]) -> list[Any]:
    ranks = [_fork(case, rank) for rank in range(case["size"])]
    try:
        return _answers(case, ranks)
    finally:
        for pid, descriptor in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(descriptor)


def main() -> None:
    orders, ordering = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ordering)
        with os.fdopen(orders) as lines:
            for line in lines:
                print(json.dumps(_play(json.loads(line))), flush=True)
        os._exit(0)
    os.close(orders)
    print("ready", flush=True)
    secret = secrets.token_bytes(32)
    with RendezvousServer(secret) as server, os.fdopen(ordering, "w") as forker:
        for line in sys.stdin:
            case = {**json.loads(line), "server": server.address, "secret": secret.hex()}
            print(json.dumps(case), file=forker, flush=True)
        forker.close()
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
