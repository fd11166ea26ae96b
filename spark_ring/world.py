"""The one default communicator behind ``init()``, ``rank()``, ``allreduce()`` and their like.

A launcher tells a process its rank, the world size and where to meet, by the settings of
:mod:`spark_ring.config`. A process that nobody launched is a world of one, so a script runs unchanged alone.
Inside a Spark fit the worker lends its own communicator with :func:`use`; then the same verbs answer there.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, overload

from spark_ring.arrays import Array
from spark_ring.communicator import Communicator, Handle
from spark_ring.config import Settings, settings, variable_name
from spark_ring.errors import ClosedError, ConfigError
from spark_ring.ops import ReduceOp
from spark_ring.process_sets import ProcessSet, ProcessSets, global_process_set
from spark_ring.rendezvous import exchange_through

__all__ = [
    "ProcessSet",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_async",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_async",
    "broadcast_object",
    "cross_rank",
    "cross_size",
    "current",
    "empty",
    "gather",
    "gather_async",
    "global_process_set",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "init",
    "is_initialized",
    "join",
    "launched_with",
    "local_rank",
    "local_size",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "scatter",
    "scatter_async",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "use",
]

_changing = threading.RLock()  # held while the default communicator is made, lent or closed
_current: Communicator | None = None
_sets: ProcessSets | None = None  # of the default communicator
_lent = 0  # how many use() blocks are open; what they lent is not ours to close
_launch: Settings | None = None  # what a launcher told this process by other ways than the environment
_at_exit_registered = False


def init(*, process_sets: Sequence[ProcessSet | Sequence[int]] | str | None = None, **overrides: Any) -> None:
    """Join the world that the launcher made; a process that nobody launched is a world of one.

    Does nothing when already initialised, unless another rank or size is asked for. May be called again
    after :func:`shutdown`, also with another world size.

    Args:
        process_sets: sets of ranks to add at once, the same on every rank; see :func:`add_process_set`.
            ``"dynamic"``, which Horovod asks for where sets are added later, changes nothing: that is always
            possible.
        overrides: settings that win over the launcher's and the environment's, for example
            ``init(rank=0, size=2, rendezvous="10.0.0.5:4000", secret="…")`` or ``init(transport="tcp")``.

    Raises:
        ConfigError: a setting cannot be used, or only some of rank, size, rendezvous and secret are known, or
            the world is already another one.
        RendezvousError: ranks could not find or reach each other.
    """
    global _current, _sets, _at_exit_registered
    if isinstance(process_sets, str) and process_sets != "dynamic":
        raise ConfigError(f'init: process_sets is {process_sets!r}; it must be sets of ranks, or "dynamic"')
    wanted = [] if process_sets is None or isinstance(process_sets, str) else process_sets
    with _changing:
        if _current is not None:
            _refuse_other_world(_current, overrides)
            _refuse_other_sets(wanted)
            return
        chosen = _settings_for(overrides)
        logging.getLogger("spark_ring").setLevel(chosen.log_level)
        world = _join(chosen)
        sets = ProcessSets(world)
        try:
            for one in wanted:
                sets.add(one)
        except BaseException:
            sets.close()
            world.close()
            raise
        _current, _sets = world, sets
        sets.bind_global()
        if not _at_exit_registered:
            atexit.register(_say_goodbye)
            _at_exit_registered = True


def shutdown() -> None:
    """Leave the world: finish what is pending, say goodbye, free everything. May be called again.

    Inside a Spark fit, where the worker lent its communicator, this does nothing.
    """
    global _current, _sets
    with _changing:
        if _lent or _current is None:
            return
        leaving, _current = _current, None
        sets, _sets = _sets, None
        if sets is not None:
            sets.close()
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
    """Make ``communicator`` the default one for the length of a block; ``shutdown()`` leaves it alone.

    Process sets that are added within the block are removed at its end.
    """
    global _current, _sets, _lent
    with _changing:
        before, sets = (_current, _sets), ProcessSets(communicator)
        sets.bind_global()
        _current, _sets = communicator, sets
        _lent += 1
    try:
        yield communicator
    finally:
        with _changing:
            sets.close()
            _current, _sets = before
            if _sets is not None:
                _sets.bind_global()
            _lent -= 1


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Add a set of ranks to the world. Collective: every rank of the world calls it, members or not.

    Args:
        process_set: a :class:`ProcessSet`, or its ranks; the same on every rank.

    Returns:
        The set, for the argument ``process_set`` of the other verbs.

    Raises:
        ConfigError: a set of these ranks is in the world already.
        DataError: something is no rank of the world. MismatchError: ranks add different sets.
    """
    return _process_sets().add(process_set)


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a set from the world; every rank of the world calls it. The set may be added again.

    Returns:
        True, or False if there was nothing to remove: the global set stays, and so does the world when the
        set is not in it.
    """
    return _process_sets().remove(process_set)


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


def empty(
    shape: int | tuple[int, ...], dtype: Any = "float32", *, process_set: ProcessSet | None = None
) -> Array:
    """Make an array that collectives need not copy; see :meth:`Communicator.empty`."""
    return _of(process_set, "empty").empty(shape, dtype)


def allreduce(
    array: Any,
    op: ReduceOp | str = ReduceOp.Sum,
    *,
    out: Array | None = None,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    timeout: float | None = None,
    process_set: ProcessSet | None = None,
) -> Array:
    """Reduce over all ranks; see :meth:`Communicator.allreduce`."""
    return _of(process_set, "allreduce").allreduce(
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
    process_set: ProcessSet | None = None,
) -> Handle:
    """Start an allreduce; see :meth:`Communicator.allreduce_async`."""
    return _of(process_set, "allreduce").allreduce_async(
        array, op, out=out, name=name, prescale=prescale, postscale=postscale
    )


def grouped_allreduce(
    arrays: Sequence[Any],
    op: ReduceOp | str = ReduceOp.Sum,
    *,
    out: Sequence[Array] | None = None,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    timeout: float | None = None,
    process_set: ProcessSet | None = None,
) -> list[Array]:
    """Reduce several arrays as one operation; see :meth:`Communicator.grouped_allreduce`."""
    return _of(process_set, "grouped_allreduce").grouped_allreduce(
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
    process_set: ProcessSet | None = None,
) -> Handle:
    """Start a grouped allreduce; see :meth:`Communicator.grouped_allreduce_async`."""
    return _of(process_set, "grouped_allreduce").grouped_allreduce_async(
        arrays, op, out=out, name=name, prescale=prescale, postscale=postscale
    )


def reducescatter(
    array: Any,
    op: ReduceOp | str = ReduceOp.Sum,
    *,
    name: str | None = None,
    timeout: float | None = None,
    process_set: ProcessSet | None = None,
) -> Array:
    """Reduce and keep this rank's rows; see :meth:`Communicator.reducescatter`."""
    return _of(process_set, "reducescatter").reducescatter(array, op, name=name, timeout=timeout)


def reducescatter_async(
    array: Any,
    op: ReduceOp | str = ReduceOp.Sum,
    *,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> Handle:
    """Start a reducescatter; see :meth:`Communicator.reducescatter_async`."""
    return _of(process_set, "reducescatter").reducescatter_async(array, op, name=name)


def broadcast(
    array: Any,
    root: int = 0,
    *,
    name: str | None = None,
    timeout: float | None = None,
    process_set: ProcessSet | None = None,
) -> Array:
    """Overwrite ``array`` with the root's values; see :meth:`Communicator.broadcast`."""
    return _of(process_set, "broadcast").broadcast(
        array, _root_in(process_set, root, "broadcast"), name=name, timeout=timeout
    )


def broadcast_async(
    array: Any, root: int = 0, *, name: str | None = None, process_set: ProcessSet | None = None
) -> Handle:
    """Start a broadcast; see :meth:`Communicator.broadcast_async`."""
    return _of(process_set, "broadcast").broadcast_async(
        array, _root_in(process_set, root, "broadcast"), name=name
    )


def allgather(
    array: Any,
    *,
    out: Array | None = None,
    name: str | None = None,
    timeout: float | None = None,
    process_set: ProcessSet | None = None,
) -> Array:
    """Concatenate the arrays of all ranks; see :meth:`Communicator.allgather`."""
    return _of(process_set, "allgather").allgather(array, out=out, name=name, timeout=timeout)


def allgather_async(
    array: Any,
    *,
    out: Array | None = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> Handle:
    """Start an allgather; see :meth:`Communicator.allgather_async`."""
    return _of(process_set, "allgather").allgather_async(array, out=out, name=name)


@overload
def alltoall(
    array: Any,
    splits: None = None,
    *,
    out: Array | None = None,
    name: str | None = None,
    timeout: float | None = None,
    process_set: ProcessSet | None = None,
) -> Array: ...


@overload
def alltoall(
    array: Any,
    splits: Sequence[int],
    *,
    out: Array | None = None,
    name: str | None = None,
    timeout: float | None = None,
    process_set: ProcessSet | None = None,
) -> tuple[Array, Array]: ...


def alltoall(
    array: Any,
    splits: Sequence[int] | None = None,
    *,
    out: Array | None = None,
    name: str | None = None,
    timeout: float | None = None,
    process_set: ProcessSet | None = None,
) -> Array | tuple[Array, Array]:
    """Send rows to every rank and receive some from each; see :meth:`Communicator.alltoall`."""
    handle = _of(process_set, "alltoall").alltoall_async(array, splits, out=out, name=name)
    result: Array | tuple[Array, Array] = handle.wait(timeout)
    return result


def alltoall_async(
    array: Any,
    splits: Sequence[int] | None = None,
    *,
    out: Array | None = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> Handle:
    """Start an alltoall; see :meth:`Communicator.alltoall_async`."""
    return _of(process_set, "alltoall").alltoall_async(array, splits, out=out, name=name)


def gather(
    array: Any,
    root: int = 0,
    *,
    name: str | None = None,
    timeout: float | None = None,
    process_set: ProcessSet | None = None,
) -> Array | None:
    """Concatenate the arrays of all ranks on one; see :meth:`Communicator.gather`."""
    return _of(process_set, "gather").gather(
        array, _root_in(process_set, root, "gather"), name=name, timeout=timeout
    )


def gather_async(
    array: Any, root: int = 0, *, name: str | None = None, process_set: ProcessSet | None = None
) -> Handle:
    """Start a gather; see :meth:`Communicator.gather_async`."""
    return _of(process_set, "gather").gather_async(array, _root_in(process_set, root, "gather"), name=name)


def scatter(
    array: Any = None,
    root: int = 0,
    splits: Sequence[int] | None = None,
    *,
    name: str | None = None,
    timeout: float | None = None,
    process_set: ProcessSet | None = None,
) -> Array:
    """Divide the root's rows over the ranks; see :meth:`Communicator.scatter`."""
    return _of(process_set, "scatter").scatter(
        array, _root_in(process_set, root, "scatter"), splits, name=name, timeout=timeout
    )


def scatter_async(
    array: Any = None,
    root: int = 0,
    splits: Sequence[int] | None = None,
    *,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> Handle:
    """Start a scatter; see :meth:`Communicator.scatter_async`."""
    return _of(process_set, "scatter").scatter_async(
        array, _root_in(process_set, root, "scatter"), splits, name=name
    )


def join(*, timeout: float | None = None, process_set: ProcessSet | None = None) -> int:
    """Say that this rank has no more data; return the last rank to say so. See :meth:`Communicator.join`."""
    return _of(process_set, "join").join(timeout=timeout)


def start_timeline(path: str | os.PathLike[str]) -> None:
    """Record this rank's operations into a file; see :meth:`Communicator.start_timeline`."""
    current().start_timeline(path)


def stop_timeline() -> None:
    """End the recording, if there is one; see :meth:`Communicator.stop_timeline`."""
    current().stop_timeline()


def barrier(
    *, name: str | None = None, timeout: float | None = None, process_set: ProcessSet | None = None
) -> None:
    """Wait until every rank has come here."""
    _of(process_set, "barrier").barrier(name=name, timeout=timeout)


def broadcast_object(
    value: Any, root: int = 0, *, name: str | None = None, process_set: ProcessSet | None = None
) -> Any:
    """Return the root's JSON value or bytes on every rank; see :meth:`Communicator.broadcast_object`."""
    return _of(process_set, "broadcast_object").broadcast_object(
        value, _root_in(process_set, root, "broadcast_object"), name=name
    )


def allgather_object(
    value: Any, *, name: str | None = None, process_set: ProcessSet | None = None
) -> list[Any]:
    """Return the JSON values or bytes of all ranks; see :meth:`Communicator.allgather_object`."""
    return _of(process_set, "allgather_object").allgather_object(value, name=name)


def _process_sets() -> ProcessSets:
    current()  # says what is missing
    assert _sets is not None
    return _sets


def _of(process_set: ProcessSet | None, verb: str) -> Communicator:
    """Return the communicator that a verb works on."""
    return current() if process_set is None else _process_sets().communicator(process_set, verb)


def _root_in(process_set: ProcessSet | None, root: int, verb: str) -> int:
    """Return a root within a process set, whose members are counted anew."""
    return root if process_set is None else _process_sets().root(process_set, root, verb)


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


def _refuse_other_sets(wanted: Sequence[ProcessSet | Sequence[int]]) -> None:
    missing = _process_sets().missing(wanted)
    if missing:
        raise ConfigError(
            f"init(process_sets=…): this process is initialised already, without a process set of ranks "
            f"{missing[0].ranks}; call add_process_set() on every rank"
        )


def _say_goodbye() -> None:
    """At exit: close properly, or tell the others which exception ended this rank."""
    error = getattr(sys, "last_value", None)
    if _current is not None and not _lent and error is not None and _current.size > 1:
        _current.abort(f"rank {_current.rank} raised {type(error).__name__}: {error}")
    shutdown()
