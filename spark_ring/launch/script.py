"""``spark-ring run -np N -- command``: a script on several ranks of this host.

Ranks hear of each other by environment variables, the secret included: they are other programs, whose stdin
and arguments are their own, and only the same user can read their environment.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_ring.config import settings, variable_name
from spark_ring.errors import ConfigError, LaunchError
from spark_ring.launch.answers import Failure, first_failure
from spark_ring.launch.child import Child, end_all
from spark_ring.launch.local import worker_environment
from spark_ring.launch.supervisor import Supervisor
from spark_ring.rendezvous import RendezvousServer

__all__ = ["run_script"]


def run_script(
    command: Sequence[str],
    np: int,
    *,
    env: Mapping[str, str | None] | None = None,
    timeout: float | None = None,
) -> Failure | None:
    """Run ``command`` on ``np`` ranks; return the first failure, or ``None`` when all exited with status 0.

    Args:
        command: program and arguments, the same for every rank.
        np: number of processes, at least 1.
        env: environment variables for the ranks; ``None`` removes one.
        timeout: seconds for everything; ``None`` has no limit.

    Raises:
        LaunchError: the program could not be started, or time ran out.
        ConfigError: ``np`` or a setting in the environment cannot be used.
    """
    if np < 1:
        raise ConfigError(f"-np is {np}; it must be at least 1")
    base = worker_environment(env or {})
    base.setdefault("PYTHONUNBUFFERED", "1")  # what ranks print should appear when they print it
    if shutil.which(command[0], path=base.get("PATH")) is None:
        raise LaunchError(f"{command[0]!r} could not be started: it is no program that can be run from here")
    limits = settings(env=base)
    secret = secrets.token_bytes(32)
    children: list[Child] = []
    with RendezvousServer(
        secret, connect_timeout=limits.connect_timeout, handshake_timeout=limits.handshake_timeout
    ) as server:
        try:
            for rank in range(np):
                own = _Place(rank, np, server.address, secret.hex()).variables()
                children.append(Child(rank, command, {**base, **own}, lifeline=True))
        except OSError as error:
            end_all(children)
            for child in children:
                child.close()
            raise LaunchError(
                f"{command[0]!r} could not be started as rank {len(children)}: {error}"
            ) from error
        supervisor = Supervisor(
            children,
            answers=False,
            on_failure=lambda failure: server.fail(
                f"rank {failure.rank} of {np} {failure.message} before all had met", failure.rank
            ),
        )
        return first_failure(supervisor.watch(timeout))


@dataclass(frozen=True)
class _Place:
    rank: int
    size: int
    rendezvous: str
    secret: str

    def variables(self) -> dict[str, str]:
        return {variable_name(name): str(value) for name, value in vars(self).items()}
