"""Every setting, once; the only place that reads ``os.environ``.

A setting is a field of :class:`Settings`. Its environment variable is ``SPARK_RING_`` followed by the
field's name in capitals; :func:`settings` reads them all, checks each, and names the variable when a
value cannot be used. Code takes a ``Settings`` (or one value of it) as an argument and never looks at the
environment itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import Any

from spark_ring.errors import ConfigError

__all__ = ["Settings", "environment", "settings", "variable_name"]

PREFIX = "SPARK_RING_"


def _setting(
    default: Any, doc: str, *, choices: tuple[str, ...] = (), low: float | None = None, shown: bool = True
) -> Any:
    return field(default=default, repr=shown, metadata={"doc": doc, "choices": choices, "low": low})


@dataclass(frozen=True)
class Settings:
    """The settings of one communicator or one job. Immutable; ``dataclasses.replace`` makes a variant."""

    # Where ranks meet. Set by a launcher for its workers.
    rank: int = _setting(-1, "This process's rank; -1 when not started by a launcher.", low=-1)
    size: int = _setting(-1, "The world size; -1 when not started by a launcher.", low=-1)
    rendezvous: str = _setting("", "host:port of the launcher's rendezvous server.")
    secret: str = _setting(
        "", "The job's secret, hexadecimal; made by the launcher, never logged.", shown=False
    )
    address: str = _setting(
        "",
        "Address this host announces to other hosts, and no other. Empty: the address by which it reaches "
        "the driver, then those of its other interfaces.",
    )
    host_id: str = _setting(
        "", "Identity of this host. Empty: from the kernel's boot id. Set it to pretend several hosts."
    )

    # Transport.
    transport: str = _setting(
        "auto",
        "'auto': shared memory inside a host and TCP between hosts; 'shm' or 'tcp' forces one.",
        choices=("auto", "shm", "tcp"),
    )
    segment_bytes: int = _setting(
        256 * 1024, "Unit of pipelining: bytes copied, sent or reduced at a time.", low=64
    )
    fusion_bytes: int = _setting(
        32 * 1024 * 1024,
        "Small tensors are fused into buckets of at most this many bytes; 0 turns it off.",
        low=0,
    )
    arena_bytes: int = _setting(
        16 * 1024**3,
        "Most bytes of Communicator.empty() per rank: addresses, behind which memory is put when arrays are "
        "made; 0 turns shared arrays off.",
        low=0,
    )
    autotune: bool = _setting(
        False,
        "Try smaller fusion_bytes and segment_bytes while training and keep what moves bytes fastest.",
    )
    autotune_log: str = _setting(
        "", "File for what autotune tried (CSV, written by rank 0 of the world); empty: none."
    )
    socket_buffer_bytes: int = _setting(
        0, "SO_SNDBUF and SO_RCVBUF of data connections, bytes; 0 leaves the kernel's choice.", low=0
    )
    spin_microseconds: int = _setting(
        -1,
        "How long a waiting rank spins before it yields and then blocks; -1 decides by ranks and cores.",
        low=-1,
    )

    # Deadlines, seconds.
    connect_timeout: float = _setting(60.0, "Seconds to find and connect to every peer.", low=0.001)
    handshake_timeout: float = _setting(
        10.0, "Seconds for a peer to prove that it knows the secret.", low=0.001
    )
    collective_timeout: float = _setting(
        600.0, "Seconds a collective may wait for peers before it fails.", low=0.001
    )
    stall_warning_seconds: float = _setting(
        60.0,
        "Seconds an operation may wait for other ranks before a warning says for whom; 0: never.",
        low=0.0,
    )
    stall_abort_seconds: float = _setting(
        0.0, "Seconds after which such a wait fails; 0 leaves it to collective_timeout.", low=0.0
    )
    close_timeout: float = _setting(5.0, "Seconds to drain and say goodbye when closing.", low=0.0)
    silence_timeout: float = _setting(
        30.0,
        "Seconds without a sign of life from a peer's host (its kernel answers, however busy the process is) "
        "before the peer is lost.",
        low=1.0,
    )

    # Trust.
    trusted_artifacts: bool = _setting(
        False, "Allow loading saved models that contain pickled code. Only for artifacts you trust."
    )

    # What people see.
    timeline: str = _setting(
        "",
        "File for a timeline (Chrome trace events) from the start on, with {rank} in its name; empty: none.",
    )
    log_level: str = _setting(
        "WARNING", "Level of the 'spark_ring' logger.", choices=("DEBUG", "INFO", "WARNING", "ERROR")
    )

    def __post_init__(self) -> None:
        for f in fields(self):
            _check(f, getattr(self, f.name))


def variable_name(field_name: str) -> str:
    """Return the environment variable of a setting, for example ``SPARK_RING_SEGMENT_BYTES``."""
    return PREFIX + field_name.upper()


def settings(env: Mapping[str, str] | None = None, **overrides: Any) -> Settings:
    """Read the settings.

    Args:
        env: variables to read instead of the process's own.
        overrides: values that win over the environment; ``None`` means "not given".

    Raises:
        ConfigError: a value cannot be used, or an override has no such setting.
    """
    source = os.environ if env is None else env
    known = {f.name: f for f in fields(Settings)}
    unknown = sorted(set(overrides) - set(known))
    if unknown:
        raise ConfigError(f"no setting named {unknown[0]!r}; the settings are {', '.join(sorted(known))}")
    values: dict[str, Any] = {}
    for name, f in known.items():
        text = source.get(variable_name(name))
        if text is not None:
            values[name] = _parse(f, text)
    values.update({name: value for name, value in overrides.items() if value is not None})
    return replace(Settings(), **values)


@contextmanager
def environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Change environment variables (``None`` removes one) and put them back afterwards."""
    before = {name: os.environ.get(name) for name in changes}
    _apply(changes)
    try:
        yield
    finally:
        _apply(before)


def inherited_environment(without: tuple[str, ...] = ()) -> dict[str, str]:
    """Return a copy of the process's environment for a local child, less the named variables."""
    return {name: value for name, value in os.environ.items() if name not in without}


def _apply(changes: Mapping[str, str | None]) -> None:
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _parse(f: Field[Any], text: str) -> Any:
    default = f.default
    assert default is not MISSING
    kind = type(default)
    try:
        if kind is bool:
            lowered = text.strip().lower()
            if lowered in ("1", "true", "yes", "on"):
                return True
            if lowered in ("", "0", "false", "no", "off"):
                return False
            raise ValueError(text)
        return kind(text)
    except ValueError:
        raise ConfigError(
            f"{variable_name(f.name)}={text!r} is not {_article(kind)}; {f.metadata['doc']}"
        ) from None


def _check(f: Field[Any], value: Any) -> None:
    choices, low = f.metadata["choices"], f.metadata["low"]
    if choices and value not in choices:
        raise ConfigError(f"setting {f.name} is {value!r}; it must be one of {', '.join(choices)}")
    if low is not None and not value >= low:
        raise ConfigError(f"setting {f.name} is {value!r}; it must be at least {low}")


def _article(kind: type) -> str:
    return {int: "an integer", float: "a number", bool: "true or false (1/0, yes/no)"}.get(
        kind, kind.__name__
    )
