"""How a rank tells the others where it listens, and what it makes of their answers.

1. Bind a listening socket to a port of the kernel's choice and keep it open.
2. Choose the addresses to announce (:mod:`spark_ring.addresses`). Never a host name: those resolve
   differently on every host.
3. Exchange one short JSON text per rank.
4. Check all of them before connecting to any: order, count, protocol, duplicates, and that nobody on another
   host announced loopback. A mistake found here names the rank and the setting; found later, it would be a
   time-out.
5. Connect (csrc/rendezvous/mesh.h), to each rank by its addresses in turn.
"""

from __future__ import annotations

import ipaddress
import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from spark_ring import _core
from spark_ring.addresses import MAX_ADDRESSES, announced_addresses, is_loopback, seen_from_here
from spark_ring.config import Settings, variable_name
from spark_ring.errors import ConfigError, RendezvousError

__all__ = ["PROTOCOL", "Announcement", "connect", "read_announcements"]

PROTOCOL = 1
MAX_TEXT = 4096


@dataclass(frozen=True)
class Announcement:
    """What one rank says of itself.

    Attributes:
        rank: its rank.
        address: an IP address at which the other ranks reach it; the one to try first.
        others: more addresses of it.
        port: the port on which it listens.
        host_id: its host, or what the setting ``host_id`` pretends.
        machine: its host as the kernel tells, whatever the setting says.
        protocol: version of the conversation between ranks.
        version: version of spark_ring.
    """

    rank: int
    address: str
    port: int
    host_id: str
    machine: str
    protocol: int
    version: str
    others: tuple[str, ...] = ()

    def text(self) -> str:
        """Return the JSON text for the exchange."""
        return json.dumps(asdict(self))


def connect(
    rank: int,
    size: int,
    exchange: Callable[[str], list[str]],
    secret: bytes | Callable[[], bytes],
    settings: Settings,
    *,
    toward: str = "",
    group: str = "",
) -> _core.Communicator:
    """Announce, exchange, check, connect. See :meth:`spark_ring.communicator.Communicator.connect`.

    ``secret`` may be a function that is asked after the exchange. ``group`` is how errors call these ranks
    when they are not a whole world.
    """
    if not 0 <= rank < size:
        raise ConfigError(f"rank is {rank} and size is {size}; rank must be from 0 to size - 1")
    if size > 1 and not secret:
        raise RendezvousError(
            "the job has no secret; ranks never talk without one. Let a launcher make it", rank=rank
        )
    address, *others = ["127.0.0.1"] if size == 1 else announced_addresses(settings, toward)
    # Loopback is bound alone; any other announced address may be a translated one, so all interfaces are.
    listener = _core.Listener(address if is_loopback(address) else "", 0)
    try:
        machine = _core.host_id()
        own = Announcement(
            rank,
            address,
            listener.port,
            settings.host_id or machine,
            machine,
            PROTOCOL,
            _core.__version__,
            tuple(others),
        )
        texts = [own.text()] if size == 1 else exchange(own.text())
        everyone = read_announcements(texts, rank, size)
        found = [_peer(own, other) for other in everyone]
        # A world of one talks to nobody, so any secret will do.
        known = (secret() if callable(secret) else secret) or secrets.token_bytes(32)
        options = options_from(settings)
        options.group = group
        return _core.Communicator(listener, rank, found, known, options)
    except BaseException:
        listener.close()
        raise


def read_announcements(texts: Sequence[str], rank: int, size: int) -> list[Announcement]:
    """Parse and check what all ranks announced; return it in rank order.

    Raises:
        RendezvousError: something does not fit; the message names the rank.
    """
    if len(texts) != size:
        raise RendezvousError(
            f"rank {rank} expected {size} announcements, one of each rank; got {len(texts)}"
        )
    everyone = [_parse(text, index) for index, text in enumerate(texts)]
    _check_protocols(everyone, rank)
    _check_duplicates(everyone)
    _check_loopback(everyone)
    return _without_ambiguous(everyone)


def options_from(settings: Settings) -> _core.Options:
    """Return the native options that these settings ask for."""
    options = _core.Options()
    options.transport = settings.transport
    options.segment_bytes = settings.segment_bytes
    options.fusion_bytes = settings.fusion_bytes
    options.arena_bytes = settings.arena_bytes
    options.autotune = settings.autotune
    options.autotune_log = settings.autotune_log
    options.socket_buffer_bytes = settings.socket_buffer_bytes
    options.spin_microseconds = settings.spin_microseconds
    options.connect_timeout = settings.connect_timeout
    options.handshake_timeout = settings.handshake_timeout
    options.collective_timeout = settings.collective_timeout
    options.close_timeout = settings.close_timeout
    options.silence_timeout = settings.silence_timeout
    options.stall_warning_seconds = settings.stall_warning_seconds
    options.stall_abort_seconds = settings.stall_abort_seconds
    return options


def _peer(own: Announcement, other: Announcement) -> _core.Peer:
    """Return where to look for another rank, seen from this host."""
    announced = [other.address, *other.others]
    elsewhere = own.machine != other.machine
    address, *others = seen_from_here(announced, elsewhere=elsewhere)
    return _core.Peer(address, other.port, other.host_id, others)


def _parse(text: Any, index: int) -> Announcement:
    kinds = {
        "rank": int,
        "port": int,
        "protocol": int,
        "address": str,
        "host_id": str,
        "machine": str,
        "version": str,
    }
    try:
        if not isinstance(text, str) or len(text) > MAX_TEXT:
            raise ValueError(f"not a text of at most {MAX_TEXT} characters")
        fields = json.loads(text)
        if not isinstance(fields, dict):
            raise ValueError("not a JSON object")
        for name, kind in kinds.items():
            if type(fields.get(name)) is not kind:
                raise ValueError(f"{name} is {fields.get(name)!r}, not of type {kind.__name__}")
        others = fields.get("others", [])
        if not isinstance(others, list) or len(others) >= MAX_ADDRESSES:
            raise ValueError(f"others is not a list of fewer than {MAX_ADDRESSES} addresses")
        announcement = Announcement(**{name: fields[name] for name in kinds}, others=tuple(others))
        for address in (announcement.address, *others):
            if not isinstance(address, str) or "%" in address:
                raise ValueError(f"{address!r} is no address, or one with a zone of another host")
            ipaddress.ip_address(address)
        if not 0 < announcement.port < 65536:
            raise ValueError(f"port is {announcement.port}")
    except (ValueError, RecursionError) as error:
        raise RendezvousError(
            f"the announcement in place {index} cannot be used: {error}", rank=index
        ) from error
    if announcement.rank != index:
        raise RendezvousError(
            f"the announcement in place {index} is of rank {announcement.rank}; the exchange must return "
            "the texts in rank order",
            rank=announcement.rank,
        )
    return announcement


def _check_protocols(everyone: Sequence[Announcement], rank: int) -> None:
    own = everyone[rank]
    for other in everyone:
        if other.protocol != own.protocol:
            raise RendezvousError(
                f"rank {other.rank} speaks protocol {other.protocol} (spark_ring {other.version}), "
                f"rank {rank} speaks protocol {own.protocol} (spark_ring {own.version}); "
                "install one version of spark_ring everywhere",
                rank=other.rank,
            )


def _check_duplicates(everyone: Sequence[Announcement]) -> None:
    seen: dict[tuple[str, int, str], int] = {}
    for other in everyone:
        # Behind a loopback address, equal ports on two machines are two places.
        place = (other.address, other.port, other.machine if is_loopback(other.address) else "")
        if place in seen:
            raise RendezvousError(
                f"rank {seen[place]} and rank {other.rank} both announce {other.address} port {other.port}; "
                f"is {variable_name('address')} set to one value on several hosts?",
                rank=other.rank,
            )
        seen[place] = other.rank


def _without_ambiguous(everyone: Sequence[Announcement]) -> list[Announcement]:
    """Leave out further addresses that two hosts have: bridges of containers are the same everywhere."""
    machines: dict[str, set[str]] = {}
    for one in everyone:
        for address in (one.address, *one.others):
            machines.setdefault(address, set()).add(one.machine)
    return [replace(one, others=tuple(a for a in one.others if len(machines[a]) == 1)) for one in everyone]


def _check_loopback(everyone: Sequence[Announcement]) -> None:
    for other in everyone:
        if not is_loopback(other.address):
            continue
        for elsewhere in everyone:
            if elsewhere.machine != other.machine:
                raise RendezvousError(
                    f"rank {other.rank} announces {other.address}, which rank {elsewhere.rank} on another "
                    f"host cannot reach; set {variable_name('address')} on rank {other.rank}'s host to an "
                    "address that the other hosts can reach",
                    rank=other.rank,
                )
