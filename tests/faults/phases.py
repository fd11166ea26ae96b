"""What ranks do in the tests of deaths: one of them dies in a given phase, the others work on.

A survivor adds to the exception that ends it how long it took, and raises it: exceptions travel to the
launcher with their attributes.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from spark_ring import _core, peers, world
from spark_ring.errors import SparkRingError
from spark_ring.rendezvous import exchange_through

LARGE = 16 * 1024 * 1024  # bytes; far more than fits between two looks at a peer


def die() -> None:
    """End this process as the kernel's memory killer would."""
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def timed() -> Iterator[None]:
    """Note on an error how many seconds passed before it was raised."""
    started = time.monotonic()
    try:
        yield
    except SparkRingError as error:
        error.seconds = time.monotonic() - started  # type: ignore[attr-defined]
        raise


def run_phase(phase: str, victim: int) -> Any:
    """Run one phase; the victim dies in it."""
    return PHASES[phase](_settings().rank == victim)


def _before_connect(dies: bool) -> None:
    if dies:
        die()
    with timed():
        world.init()


def _after_announcing(dies: bool) -> None:
    """The victim is announced and then gone, before it has connected to anyone."""
    if not dies:
        with timed():
            world.init()
        return
    settings = _settings()
    secret = bytes.fromhex(settings.secret)
    machine = _core.host_id()
    listener = _core.Listener("127.0.0.1")
    own = peers.Announcement(
        settings.rank,
        "127.0.0.1",
        listener.port,
        settings.host_id or machine,
        machine,
        peers.PROTOCOL,
        _core.__version__,
    )
    exchange_through(settings.rendezvous, secret, settings.rank, settings.size, settings)(own.text())
    die()


def _between_connect_and_handshake(dies: bool) -> None:
    """The victim is announced and connects to everyone, but never says its hello."""
    if not dies:
        with timed():
            world.init()
        return
    settings = _settings()
    secret = bytes.fromhex(settings.secret)
    machine = _core.host_id()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        own = peers.Announcement(
            settings.rank,
            "127.0.0.1",
            listener.getsockname()[1],
            settings.host_id or machine,
            machine,
            peers.PROTOCOL,
            _core.__version__,
        )
        exchange = exchange_through(settings.rendezvous, secret, settings.rank, settings.size, settings)
        others = peers.read_announcements(exchange(own.text()), settings.rank, settings.size)
        connections = [
            socket.create_connection((other.address, other.port))
            for other in others
            if other.rank != settings.rank
        ]
        assert connections
        die()


def _before_the_first_collective(dies: bool) -> None:
    world.init()
    if dies:
        die()
    with timed():
        world.allreduce(np.ones(8), name="first")


def _idle(dies: bool) -> None:
    world.init()
    world.allreduce(np.ones(8), name="before")
    if dies:
        die()
    with timed():
        world.allreduce(np.ones(8), name="after")


def _in_a_large_allreduce(dies: bool) -> None:
    world.init()
    data = np.ones(LARGE // 4, np.float32)
    world.barrier()
    if dies:
        handle = world.allreduce_async(data, name="large")
        assert not handle.poll()
        die()
    with timed():
        world.allreduce(data, name="large")


def _in_a_large_allreduce_without_copies(dies: bool) -> None:
    """Survivors read and write the memory of the dead."""
    world.init()
    data = world.empty(LARGE // 4)
    world.barrier()
    if dies:
        handle = world.allreduce_async(data, out=data, name="large")
        assert not handle.poll()
        die()
    with timed():
        world.allreduce(data, out=data, name="large")


def _in_many_asynchronous_operations(dies: bool) -> None:
    world.init()
    world.barrier()
    handles = [world.allreduce_async(np.ones(1000), name=f"grad.{index}") for index in range(50)]
    if dies:
        die()
    with timed():
        for handle in handles:
            handle.wait()
        world.barrier(name="end")


def _in_allgather(dies: bool) -> None:
    _in_collective(dies, lambda: world.allgather(np.ones(1000), name="rows"))


def _in_broadcast(dies: bool) -> None:
    root = _settings().size - 1
    _in_collective(dies, lambda: world.broadcast(np.ones(1000), root, name="weights"))


def _in_barrier(dies: bool) -> None:
    _in_collective(dies, lambda: world.barrier(name="end"))


def _in_collective(dies: bool, collective: Callable[[], object]) -> None:
    world.init()
    world.barrier()
    if dies:
        die()
    with timed():
        collective()


def _during_close(dies: bool) -> float:
    """Return the seconds that closing took: nobody waits for the dead."""
    world.init()
    world.allreduce(np.ones(8))
    if dies:
        die()
    started = time.monotonic()
    world.shutdown()
    return time.monotonic() - started


def _settings() -> Any:
    return world._settings_for({})


PHASES = {
    "before connect": _before_connect,
    "after announcing": _after_announcing,
    "between connect and handshake": _between_connect_and_handshake,
    "before the first collective": _before_the_first_collective,
    "idle": _idle,
    "in a large allreduce": _in_a_large_allreduce,
    "in a large allreduce without copies": _in_a_large_allreduce_without_copies,
    "in many asynchronous operations": _in_many_asynchronous_operations,
    "in allgather": _in_allgather,
    "in broadcast": _in_broadcast,
    "in barrier": _in_barrier,
    "during close": _during_close,
}
