"""By which addresses a host is reached: which it announces, and how others try them.

A host with several interfaces announces all its addresses, the likeliest first: the one by which it reaches
the host that all ranks have in common. Whoever connects tries them in that order, so a first address that is
out of reach from some host costs a second, not the job. The setting ``address`` announces that one alone.

Two kinds of addresses need care. Link-local IPv6 addresses (fe80::/10, RFC 4291) mean something on one
network only, and the interface (the zone, RFC 4007) that leads there has another name on each host: they are
announced without it and tried through each of this host's interfaces. Bridges of containers often have the
same address on every host: such an address leads nowhere else, so nobody looks for another host behind an
address that is also its own.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from spark_ring import _core
from spark_ring.config import Settings, variable_name
from spark_ring.errors import ConfigError, RendezvousError

__all__ = ["MAX_ADDRESSES", "announced_addresses", "host_of", "is_loopback", "seen_from_here"]

MAX_ADDRESSES = 8  # of one host that are announced; each is tried by every other rank
_MAX_ZONES = 8
# Reserved for documentation (RFC 5737, RFC 3849): they ask for the default route, nothing is sent.
_NOWHERE = ("192.0.2.1", "2001:db8::1")


def announced_addresses(settings: Settings, toward: str) -> list[str]:
    """Choose the IP addresses by which other ranks reach this one, the first to be tried first.

    Args:
        settings: ``address`` wins when set.
        toward: a host or ``host:port`` that all ranks reach; empty: the host of ``settings.rendezvous``, else
            whatever the default route says.

    Returns:
        One to :data:`MAX_ADDRESSES` addresses without zones; loopback only if there is nothing else, or if
        the host that all have in common is called by it.

    Raises:
        ConfigError: the setting ``address`` is not an IP address.
    """
    if settings.address:
        try:
            return [_plain(str(ipaddress.ip_address(settings.address)))]
        except ValueError:
            raise ConfigError(
                f"setting address ({variable_name('address')}) is {settings.address!r}; it must be an IP "
                "address of this host, because host names resolve differently on every host"
            ) from None
    target = host_of(toward or settings.rendezvous)
    found = _route_toward(target) if target else ""
    if found and is_loopback(found):
        if _means_loopback(target):
            return [_plain(found)]
        found = ""  # many hosts resolve their own name to loopback, which says nothing about the others
    first = [_plain(found)] if found else [_plain(way) for way in map(_route_toward, _NOWHERE) if way]
    usable = [address for address, _, link_local in _core.local_addresses() if not link_local]
    usable += [address for address, _, link_local in _core.local_addresses() if link_local and ":" in address]
    return list(dict.fromkeys([*first, *usable]))[:MAX_ADDRESSES] or ["127.0.0.1"]


def seen_from_here(announced: Sequence[str], *, elsewhere: bool) -> list[str]:
    """Return the addresses by which this host tries to reach a rank.

    Args:
        announced: what that rank announced.
        elsewhere: whether it is on another machine.

    Returns:
        At least one address. A link-local one comes with a zone, once for each interface that may lead there.
    """
    local = _core.local_addresses()
    own = {address for address, _, _ in local}
    zones = list(dict.fromkeys(name for address, name, link_local in local if link_local and ":" in address))
    seen: list[str] = []
    for address in announced:
        if elsewhere and address in own:
            continue
        if ipaddress.ip_address(address).version == 6 and ipaddress.ip_address(address).is_link_local:
            seen += [f"{address}%{zone}" for zone in zones[:_MAX_ZONES]]
        else:
            seen.append(address)
    return seen or list(announced)


def _route_toward(target: str) -> str:
    """Return this host's address on the way to ``target``; empty when there is no way, or no such name."""
    try:
        return _core.local_address_for(target)
    except RendezvousError:
        return ""


def _means_loopback(target: str) -> bool:
    try:
        return is_loopback(target)
    except ValueError:
        return target == "localhost"


def host_of(endpoint: str) -> str:
    """Return the host of ``host``, ``host:port`` or ``[ipv6]:port``."""
    if endpoint.startswith("["):
        return endpoint[1:].partition("]")[0]
    host, colon, _ = endpoint.rpartition(":")
    return host if colon and ":" not in host else endpoint


def is_loopback(address: str) -> bool:
    """Return whether an IP address is reached on its own host only."""
    return ipaddress.ip_address(address).is_loopback


def _plain(address: str) -> str:
    """Return an address without its zone."""
    return address.partition("%")[0]
