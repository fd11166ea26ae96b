"""Refusing the ring in a forked child.

A child shares its parent's sockets and shared memory but has none of its threads. Using the ring there would
corrupt the parent's stream, so the child's communicators are put out of use right after the fork.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any

from spark_ring import _core
from spark_ring.errors import ClosedError

if TYPE_CHECKING:
    from spark_ring.communicator import Communicator

__all__ = ["Forked", "guard"]

_alive: weakref.WeakSet[Communicator] = weakref.WeakSet()
_leaked: list[_core.Communicator] = []  # their destructors would wait for threads that do not exist here


class Forked:
    """Stands in for the native communicator in a forked child; refuses everything."""

    def __getattr__(self, name: str) -> Any:
        raise ClosedError(
            f"{name}: this process ({os.getpid()}) was forked after spark_ring.init(), and cannot use its "
            "parent's communicator. Start processes by 'spawn' or 'forkserver', or fork before init()"
        )


def guard(communicator: Communicator) -> None:
    """Put ``communicator`` out of use in every child that is forked from now on."""
    _alive.add(communicator)


def _refuse() -> None:
    for communicator in list(_alive):
        if not isinstance(communicator._core, Forked):
            _leaked.append(communicator._core)
            communicator._core = Forked()  # type: ignore[assignment]


os.register_at_fork(after_in_child=_refuse)
