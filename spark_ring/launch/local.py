"""``spark_ring.run``: a function on several ranks of this host, each a process.

The launcher makes a secret and a rendezvous server, starts ``python -m spark_ring.launch.worker`` once per
rank, and writes orders and function into each child's stdin; neither is ever on a command line or in the
environment.
:class:`LocalJob` is the machinery; :func:`run` is it, used once, with the first failure raised.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import spark_ring
from spark_ring.config import Settings, inherited_environment, settings, variable_name
from spark_ring.errors import ConfigError, LaunchError
from spark_ring.launch.answers import Failure, Outcome, first_failure
from spark_ring.launch.child import Child, end_all
from spark_ring.launch.supervisor import GRACE, Supervisor
from spark_ring.rendezvous import RendezvousServer

__all__ = ["LAUNCH_VARIABLES", "LocalJob", "run", "worker_environment"]

# A worker hears these from its own launcher, never from the one above it.
LAUNCH_VARIABLES = tuple(variable_name(name) for name in ("rank", "size", "rendezvous", "secret"))


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int = 2,
    *,
    timeout: float | None = None,
    env: Mapping[str, str | None] | None = None,
    **overrides: Any,
) -> list[Any]:
    """Call ``fn(*args, **kwargs)`` on ``np`` ranks of this host and return their results in rank order.

    Each rank is a process of its own, in which the world is already initialised: ``rank()`` answers.
    Functions of notebooks and of ``__main__`` travel by value. What ranks print appears here line by line
    with the prefix ``[rank]``. When a rank fails, the others are ended within seconds.

    Args:
        fn: the function; it, its arguments and its result must be picklable by cloudpickle.
        args: positional arguments, the same for every rank.
        kwargs: keyword arguments, the same for every rank.
        np: number of processes, at least 1.
        timeout: seconds for everything; ``None`` has no limit.
        env: environment variables for the ranks, set before anything is imported; ``None`` removes one.
        overrides: settings of :class:`spark_ring.config.Settings`, for example ``transport="tcp"``.

    Returns:
        One result per rank.

    Raises:
        WorkerError: ``fn`` raised in a rank; with its rank and traceback, caused by the original exception.
        LaunchError: a process could not start, ended without a word (the signal is named), or time ran out.
        ConfigError: ``np`` or a setting cannot be used.
    """
    with LocalJob(fn, args, kwargs, np, env=env, **overrides) as job:
        outcomes = job.wait(timeout)
    failure = first_failure(outcomes)
    if failure is not None:
        raise failure.error(np)
    return [outcome.value for outcome in outcomes]


class LocalJob:
    """Ranks on this host that run one function. A context manager: started on entry, ended on exit.

    Attributes:
        pids: process ids by rank.
        server: the rendezvous server.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        np: int = 2,
        *,
        env: Mapping[str, str | None] | None = None,
        each: Callable[[int], Mapping[str, Any]] | None = None,
        initialise: bool = True,
        grace: float = GRACE,
        **overrides: Any,
    ) -> None:
        """Check everything that can be checked before a process starts. Arguments as in :func:`run`, and:

        Args:
            each: settings of single ranks, by rank; for example ``host_id`` to pretend several hosts.
            initialise: whether the world is initialised before the function runs.
            grace: seconds that the others get after a failure.
        """
        if not isinstance(np, int) or isinstance(np, bool) or np < 1:
            raise ConfigError(f"np is {np!r}; it must be a whole number of processes, at least 1")
        self._size = np
        self._payload = _pickled(fn, args, kwargs or {})
        self._env = worker_environment(env or {})
        shared = settings(env=self._env, **overrides)
        self._settings = [replace(shared, **(each(rank) if each else {})) for rank in range(np)]
        self._initialise = initialise
        self._grace = grace
        self._children: list[Child] = []
        self._writers: list[threading.Thread] = []
        self._waited = False

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._children]

    def __enter__(self) -> LocalJob:
        shared = self._settings[0]
        secret = secrets.token_bytes(32)
        self.server = RendezvousServer(
            secret, connect_timeout=shared.connect_timeout, handshake_timeout=shared.handshake_timeout
        )
        try:
            for rank, own in enumerate(self._settings):
                self._start(
                    rank,
                    replace(
                        own, rank=rank, size=self._size, rendezvous=self.server.address, secret=secret.hex()
                    ),
                )
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self, timeout: float | None = None) -> list[Outcome]:
        """Wait for the ranks and end them; return how each ended. Once only.

        Raises:
            LaunchError: not all ended within ``timeout`` seconds.
        """
        self._waited = True
        supervisor = Supervisor(
            self._children, answers=True, grace=self._grace, on_failure=self._tell_meeting
        )
        return supervisor.watch(timeout)

    def close(self) -> None:
        """End every rank that still runs, and free everything."""
        if not self._waited:
            end_all(self._children, patience=0.0)
            for child in self._children:
                child.close()
            self._waited = True
        for writer in self._writers:
            writer.join()
        self.server.close()

    def _start(self, rank: int, own: Settings) -> None:
        command = [sys.executable, "-m", "spark_ring.launch.worker", "{results}"]
        try:
            child = Child(rank, command, self._env, private_input=True, results=True)
        except OSError as error:
            raise LaunchError(f"rank {rank} of {self._size} could not be started: {error}") from error
        self._children.append(child)
        head = {
            "settings": asdict(own),
            "sys_path": sys.path,
            "initialise": self._initialise,
            "payload_bytes": len(self._payload),
        }
        orders = json.dumps(head).encode() + b"\n" + self._payload
        # A thread, because a large payload blocks until the child reads, and a child may die before it does.
        writer = threading.Thread(
            target=_write, args=(child, orders), name=f"spark_ring-orders-{rank}", daemon=True
        )
        writer.start()
        self._writers.append(writer)

    def _tell_meeting(self, failure: Failure) -> None:
        """Ranks that still meet would wait for the lost one in vain."""
        reason = f"rank {failure.rank} of {self._size} failed before all had met: {_brief(failure)}"
        self.server.fail(reason, failure.rank)


def worker_environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return a local worker's environment: ours, less what a launcher told us, with ``changes``."""
    env = inherited_environment(without=LAUNCH_VARIABLES)
    for name, value in changes.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    # The package must be importable also when it is only on this process's path.
    home = str(Path(spark_ring.__file__).resolve().parent.parent)
    paths = env.get("PYTHONPATH", "")
    if home not in paths.split(os.pathsep):
        env["PYTHONPATH"] = f"{paths}{os.pathsep}{home}" if paths else home
    return env


def _pickled(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    import cloudpickle

    if not callable(fn):
        raise ConfigError(f"fn is a {type(fn).__name__}; it must be a function or another callable")
    parts = {
        "fn": fn,
        **{f"args[{i}]": arg for i, arg in enumerate(args)},
        **{f"kwargs[{k!r}]": v for k, v in kwargs.items()},
    }
    try:
        payload: bytes = cloudpickle.dumps((fn, tuple(args), dict(kwargs)))
    except Exception as error:
        raise LaunchError(
            f"{_unpicklable(parts)} cannot be pickled, so it cannot travel to the ranks: {error}"
        ) from error
    return payload


def _unpicklable(parts: Mapping[str, Any]) -> str:
    import cloudpickle

    for name, part in parts.items():
        try:
            cloudpickle.dumps(part)
        except Exception:
            return f"{name} ({type(part).__name__} {getattr(part, '__qualname__', '')})".replace(" )", ")")
    return "fn with its arguments"


def _write(child: Child, orders: bytes) -> None:
    assert child.stdin is not None
    try:
        child.stdin.write(orders)
        child.stdin.flush()  # and stays open: its end tells the child that we are gone
    except (OSError, ValueError):  # the child ended first, which the supervisor reports
        pass


def _brief(failure: Failure) -> str:
    return f"{failure.type}: {failure.message}" if failure.type else f"it {failure.message}"
