"""How a rank tells the others where it listens, and what it makes of their answers.

1. Bind a listening socket to a port of the kernel's choice and keep it open.
2. Choose the address to announce: the setting ``address``, else the one by which this host reaches the host
   that all ranks have in common. Never a host name: those resolve differently on every host.
3. Exchange one short JSON text per rank.
4. Check all of them before connecting to any: order, count, protocol, duplicates, and that nobody on another
   host announced loopback. A mistake found here names the rank and the setting; found later, it would be a
   time-out.
"""

from __future__ import annotations

import ipaddress
import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from spark_ring import _core
from spark_ring.config import Settings, variable_name
from spark_ring.errors import ConfigError, RendezvousError

__all__ = ["PROTOCOL", "Announcement", "announced_address", "connect", "read_announcements"]

PROTOCOL = 1
MAX_TEXT = 4096
_NOWHERE = "192.0.2.1"  # reserved for documentation (RFC 5737): asks for the default route, nothing is sent


@dataclass(frozen=True)
class Announcement:
    """What one rank says of itself.

    Attributes:
        rank: its rank.
        address: an IP address at which the other ranks reach it.
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
    address = "127.0.0.1" if size == 1 else announced_address(settings, toward)
    # Loopback is bound alone; any other announced address may be a translated one, so all interfaces are.
    listener = _core.Listener(address if _is_loopback(address) else "", 0)
    try:
        machine = _core.host_id()
        own = Announcement(
            rank, address, listener.port, settings.host_id or machine, machine, PROTOCOL, _core.__version__
        )
        texts = [own.text()] if size == 1 else exchange(own.text())
        everyone = read_announcements(texts, rank, size)
        found = [_core.Peer(a.address, a.port, a.host_id) for a in everyone]
        # A world of one talks to nobody, so any secret will do.
        known = (secret() if callable(secret) else secret) or secrets.token_bytes(32)
        options = options_from(settings)
        options.group = group
        return _core.Communicator(listener, rank, found, known, options)
    except BaseException:
        listener.close()
        raise


def announced_address(settings: Settings, toward: str) -> str:
    """Choose the IP address by which other ranks reach this one.

    Args:
        settings: ``address`` wins when set.
        toward: a host or ``host:port`` that all ranks reach; empty: the host of ``settings.rendezvous``, else
            whatever the default route says.

    Raises:
        ConfigError: the setting ``address`` is not an IP address.
    """
    if settings.address:
        try:
            return str(ipaddress.ip_address(settings.address))
        except ValueError:
            raise ConfigError(
                f"setting address ({variable_name('address')}) is {settings.address!r}; it must be an IP "
                "address of this host, because host names resolve differently on every host"
            ) from None
    target = host_of(toward or settings.rendezvous)
    found = _route_toward(target) if target else ""
    if found and _is_loopback(found) and not _means_loopback(target):
        found = ""  # many hosts resolve their own name to loopback, which says nothing about the others
    return found or _route_toward(_NOWHERE) or "127.0.0.1"


def _route_toward(target: str) -> str:
    """Return this host's address on the way to ``target``; empty when there is no way, or no such name."""
    try:
        return _core.local_address_for(target)
    except RendezvousError:
        return ""


def _means_loopback(target: str) -> bool:
    try:
        return _is_loopback(target)
    except ValueError:
        return target == "localhost"


def host_of(endpoint: str) -> str:
    """Return the host of ``host``, ``host:port`` or ``[ipv6]:port``."""
    if endpoint.startswith("["):
        return endpoint[1:].partition("]")[0]
    host, colon, _ = endpoint.rpartition(":")
    return host if colon and ":" not in host else endpoint


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
    return everyone


def options_from(settings: Settings) -> _core.Options:
    """Return the native options that these settings ask for."""
    options = _core.Options()
    options.transport = settings.transport
    options.segment_bytes = settings.segment_bytes
    options.fusion_bytes = settings.fusion_bytes
    options.socket_buffer_bytes = settings.socket_buffer_bytes
    options.spin_microseconds = settings.spin_microseconds
    options.connect_timeout = settings.connect_timeout
    options.handshake_timeout = settings.handshake_timeout
    options.collective_timeout = settings.collective_timeout
    options.close_timeout = settings.close_timeout
    return options


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
        announcement = Announcement(**{name: fields[name] for name in kinds})
        ipaddress.ip_address(announcement.address)
        if not 0 < announcement.port < 65536:
            raise ValueError(f"port is {announcement.port}")
    except ValueError as error:
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
        place = (other.address, other.port, other.machine if _is_loopback(other.address) else "")
        if place in seen:
            raise RendezvousError(
                f"rank {seen[place]} and rank {other.rank} both announce {other.address} port {other.port}; "
                f"is {variable_name('address')} set to one value on several hosts?",
                rank=other.rank,
            )
        seen[place] = other.rank


def _check_loopback(everyone: Sequence[Announcement]) -> None:
    for other in everyone:
        if not _is_loopback(other.address):
            continue
        for elsewhere in everyone:
            if elsewhere.machine != other.machine:
                raise RendezvousError(
                    f"rank {other.rank} announces {other.address}, which rank {elsewhere.rank} on another "
                    f"host cannot reach; set {variable_name('address')} on rank {other.rank}'s host to an "
                    "address that the other hosts can reach",
                    rank=other.rank,
                )


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback
