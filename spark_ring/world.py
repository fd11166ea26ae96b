"""The one default communicator behind ``init()``, ``rank()``, ``allreduce()`` and their like.

A launcher tells a process its rank, the world size and where to meet, by the settings of
:mod:`spark_ring.config`. A process that nobody launched is a world of one, so a script runs unchanged alone.
Inside a Spark fit the worker lends its own communicator with :func:`use`; then the same verbs answer there.
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from spark_ring.arrays import Array
from spark_ring.communicator import Communicator, Handle
from spark_ring.config import Settings, settings, variable_name
from spark_ring.errors import ClosedError, ConfigError
from spark_ring.ops import ReduceOp
from spark_ring.rendezvous import exchange_through

__all__ = [
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_async",
    "barrier",
    "broadcast",
    "broadcast_async",
    "broadcast_object",
    "cross_rank",
    "cross_size",
    "current",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "init",
    "is_initialized",
    "launched_with",
    "local_rank",
    "local_size",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "shutdown",
    "size",
    "use",
]

_changing = threading.RLock()  # held while the default communicator is made, lent or closed
_current: Communicator | None = None
_lent = 0  # how many use() blocks are open; what they lent is not ours to close
_launch: Settings | None = None  # what a launcher told this process by other ways than the environment
_at_exit_registered = False


def init(**overrides: Any) -> None:
    """Join the world that the launcher made; a process that nobody launched is a world of one.

    Does nothing when already initialised, unless another rank or size is asked for. May be called again
    after :func:`shutdown`, also with another world size.

    Args:
        overrides: settings that win over the launcher's and the environment's, for example
            ``init(rank=0, size=2, rendezvous="10.0.0.5:4000", secret="…")`` or ``init(transport="tcp")``.

    Raises:
        ConfigError: a setting cannot be used, or only some of rank, size, rendezvous and secret are known, or
            the world is already another one.
        RendezvousError: ranks could not find or reach each other.
    """
    global _current, _at_exit_registered
    with _changing:
        if _current is not None:
            _refuse_other_world(_current, overrides)
            return
        chosen = _settings_for(overrides)
        logging.getLogger("spark_ring").setLevel(chosen.log_level)
        _current = _join(chosen)
        if not _at_exit_registered:
            atexit.register(_say_goodbye)
            _at_exit_registered = True


def shutdown() -> None:
    """Leave the world: finish what is pending, say goodbye, free everything. May be called again.

    Inside a Spark fit, where the worker lent its communicator, this does nothing.
    """
    global _current
    with _changing:
        if _lent or _current is None:
            return
        leaving, _current = _current, None
        leaving.close()


def is_initialized() -> bool:
    """Return whether there is a default communicator."""
    return _current is not None


def current() -> Communicator:
    """Return the default communicator.

    Raises:
        ClosedError: there is none.
    """
    found = _current
    if found is None:
        raise ClosedError("spark_ring is not initialised in this process; call spark_ring.init() first")
    return found


@contextmanager
def use(communicator: Communicator) -> Iterator[Communicator]:
    """Make ``communicator`` the default one for the length of a block; ``shutdown()`` leaves it alone."""
    global _current, _lent
    with _changing:
        before, _current = _current, communicator
        _lent += 1
    try:
        yield communicator
    finally:
        with _changing:
            _current = before
            _lent -= 1


def launched_with(given: Settings) -> None:
    """Remember what a launcher told this process privately; :func:`init` starts from it."""
    global _launch
    _launch = given


def rank() -> int:
    """Return this process's rank, from 0."""
    return current().rank


def size() -> int:
    """Return the world size."""
    return current().size


def local_rank() -> int:
    """Return this process's rank among those of its host."""
    return current().local_rank


def local_size() -> int:
    """Return the number of ranks on this host."""
    return current().local_size


def cross_rank() -> int:
    """Return this process's rank among those with its local rank, one on each host that has it."""
    return current().cross_rank


def cross_size() -> int:
    """Return the number of hosts that have this process's local rank."""
    return current().cross_size


def allreduce(
    array: Any,
    op: ReduceOp | str = ReduceOp.Sum,
    *,
    out: Array | None = None,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    timeout: float | None = None,
) -> Array:
    """Reduce over all ranks; see :meth:`Communicator.allreduce`."""
    return current().allreduce(
        array, op, out=out, name=name, prescale=prescale, postscale=postscale, timeout=timeout
    )


def allreduce_async(
    array: Any,
    op: ReduceOp | str = ReduceOp.Sum,
    *,
    out: Array | None = None,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
) -> Handle:
    """Start an allreduce; see :meth:`Communicator.allreduce_async`."""
    return current().allreduce_async(array, op, out=out, name=name, prescale=prescale, postscale=postscale)


def grouped_allreduce(
    arrays: Sequence[Any],
    op: ReduceOp | str = ReduceOp.Sum,
    *,
    out: Sequence[Array] | None = None,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    timeout: float | None = None,
) -> list[Array]:
    """Reduce several arrays as one operation; see :meth:`Communicator.grouped_allreduce`."""
    return current().grouped_allreduce(
        arrays, op, out=out, name=name, prescale=prescale, postscale=postscale, timeout=timeout
    )


def grouped_allreduce_async(
    arrays: Sequence[Any],
    op: ReduceOp | str = ReduceOp.Sum,
    *,
    out: Sequence[Array] | None = None,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
) -> Handle:
    """Start a grouped allreduce; see :meth:`Communicator.grouped_allreduce_async`."""
    return current().grouped_allreduce_async(
        arrays, op, out=out, name=name, prescale=prescale, postscale=postscale
    )


def reducescatter(
    array: Any, op: ReduceOp | str = ReduceOp.Sum, *, name: str | None = None, timeout: float | None = None
) -> Array:
    """Reduce and keep this rank's rows; see :meth:`Communicator.reducescatter`."""
    return current().reducescatter(array, op, name=name, timeout=timeout)


def reducescatter_async(array: Any, op: ReduceOp | str = ReduceOp.Sum, *, name: str | None = None) -> Handle:
    """Start a reducescatter; see :meth:`Communicator.reducescatter_async`."""
    return current().reducescatter_async(array, op, name=name)


def broadcast(array: Any, root: int = 0, *, name: str | None = None, timeout: float | None = None) -> Array:
    """Overwrite ``array`` with the root's values; see :meth:`Communicator.broadcast`."""
    return current().broadcast(array, root, name=name, timeout=timeout)


def broadcast_async(array: Any, root: int = 0, *, name: str | None = None) -> Handle:
    """Start a broadcast; see :meth:`Communicator.broadcast_async`."""
    return current().broadcast_async(array, root, name=name)


def allgather(array: Any, *, name: str | None = None, timeout: float | None = None) -> Array:
    """Concatenate the arrays of all ranks; see :meth:`Communicator.allgather`."""
    return current().allgather(array, name=name, timeout=timeout)


def allgather_async(array: Any, *, name: str | None = None) -> Handle:
    """Start an allgather; see :meth:`Communicator.allgather_async`."""
    return current().allgather_async(array, name=name)


def barrier(*, name: str | None = None, timeout: float | None = None) -> None:
    """Wait until every rank has come here."""
    current().barrier(name=name, timeout=timeout)


def broadcast_object(value: Any, root: int = 0, *, name: str | None = None) -> Any:
    """Return the root's JSON value or bytes on every rank; see :meth:`Communicator.broadcast_object`."""
    return current().broadcast_object(value, root, name=name)


def allgather_object(value: Any, *, name: str | None = None) -> list[Any]:
    """Return the JSON values or bytes of all ranks; see :meth:`Communicator.allgather_object`."""
    return current().allgather_object(value, name=name)


def _settings_for(overrides: dict[str, Any]) -> Settings:
    if _launch is None:
        return settings(**overrides)
    settings(env={}, **overrides)  # checks the names
    return replace(_launch, **{name: value for name, value in overrides.items() if value is not None})


def _join(chosen: Settings) -> Communicator:
    if chosen.rank < 0 and chosen.size < 0:
        return Communicator.connect(0, 1, lambda text: [text], b"", chosen)
    _refuse_half_a_launch(chosen)
    secret = _secret_bytes(chosen.secret)
    exchange = exchange_through(chosen.rendezvous, secret, chosen.rank, chosen.size, chosen)
    return Communicator.connect(chosen.rank, chosen.size, exchange, secret, chosen, toward=chosen.rendezvous)


def _refuse_half_a_launch(chosen: Settings) -> None:
    needed = {"rank": chosen.rank >= 0, "size": chosen.size >= 1}
    if chosen.size > 1:
        needed |= {"rendezvous": bool(chosen.rendezvous), "secret": bool(chosen.secret)}
    missing = [variable_name(name) for name, known in needed.items() if not known]
    if missing:
        raise ConfigError(
            f"this process is told to be rank {chosen.rank} of {chosen.size}, but {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not set; start it with a launcher (spark-ring run, "
            "spark_ring.run), or unset the SPARK_RING_ variables to run alone"
        )
    if chosen.rank >= chosen.size:
        raise ConfigError(f"rank is {chosen.rank} and size is {chosen.size}; rank must be from 0 to size - 1")


def _secret_bytes(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise ConfigError(
            f"{variable_name('secret')} is not hexadecimal (its {len(text)} characters are not shown)"
        ) from None


def _refuse_other_world(present: Communicator, overrides: dict[str, Any]) -> None:
    for name, is_now in (("rank", present.rank), ("size", present.size)):
        asked = overrides.get(name)
        if asked is not None and asked != is_now:
            raise ConfigError(
                f"init({name}={asked}): this process is already rank {present.rank} of {present.size}; "
                "call shutdown() first"
            )


def _say_goodbye() -> None:
    """At exit: close properly, or tell the others which exception ended this rank."""
    error = getattr(sys, "last_value", None)
    if _current is not None and not _lent and error is not None and _current.size > 1:
        _current.abort(f"rank {_current.rank} raised {type(error).__name__}: {error}")
    shutdown()
