"""Which addresses a host announces, and how others try them."""

from __future__ import annotations

import pytest

from spark_ring import addresses
from spark_ring.addresses import announced_addresses, host_of, seen_from_here
from spark_ring.config import Settings
from spark_ring.errors import ConfigError, RendezvousError

Local = list[tuple[str, str, bool]]

ETH0: Local = [("10.0.0.7", "eth0", False), ("fd00::7", "eth0", False), ("fe80::7", "eth0", True)]
ETH1: Local = [("10.1.0.7", "eth1", False), ("169.254.3.4", "eth1", True), ("fe80::8", "eth1", True)]


def _network(monkeypatch: pytest.MonkeyPatch, routes: dict[str, str], local: Local) -> None:
    def local_address_for(target: str) -> str:
        key = {"192.0.2.1": "default", "2001:db8::1": "default6"}.get(target, target)
        if key not in routes:
            raise RendezvousError(f"{target} cannot be resolved")
        return routes[key]

    monkeypatch.setattr(addresses._core, "local_address_for", local_address_for)
    monkeypatch.setattr(addresses._core, "local_addresses", lambda: local)


def test_the_address_setting_wins_and_must_be_an_address() -> None:
    """Case 115."""
    assert announced_addresses(Settings(address="10.1.2.3"), "127.0.0.1:5") == ["10.1.2.3"]
    assert announced_addresses(Settings(address="fe80::1"), "") == ["fe80::1"]
    assert announced_addresses(Settings(address="fe80::1%eth3"), "") == ["fe80::1"]
    with pytest.raises(ConfigError, match=r"SPARK_RING_ADDRESS.*'my-host'.*must be an IP address"):
        announced_addresses(Settings(address="my-host"), "")


def test_who_meets_on_loopback_stays_there() -> None:
    assert announced_addresses(Settings(), "127.0.0.1:5") == ["127.0.0.1"]
    assert announced_addresses(Settings(rendezvous="127.0.0.1:5"), "") == ["127.0.0.1"]
    assert announced_addresses(Settings(), "localhost")[0] in ("127.0.0.1", "::1")


@pytest.mark.parametrize(
    ("toward", "routes", "expected"),
    [
        ("driver", {"driver": "10.0.0.7", "default": "10.0.0.8"}, "10.0.0.7"),
        ("driver", {"driver": "127.0.1.1", "default": "10.0.0.8"}, "10.0.0.8"),
        ("driver", {"default": "10.0.0.8"}, "10.0.0.8"),
        ("", {"default": "10.0.0.8"}, "10.0.0.8"),
        ("", {"default6": "fd00::8"}, "fd00::8"),
        ("fe80::1%eth0", {"fe80::1%eth0": "fe80::7%eth0"}, "fe80::7"),
        ("driver", {}, "127.0.0.1"),
        ("", {}, "127.0.0.1"),
    ],
)
def test_a_name_that_resolves_to_loopback_or_not_at_all_is_not_trusted(
    toward: str, routes: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 113: the default route decides instead; loopback only when there is no network at all."""
    _network(monkeypatch, routes, [])
    assert announced_addresses(Settings(), toward) == [expected]


def test_the_routed_address_comes_first_and_link_local_ones_last(monkeypatch: pytest.MonkeyPatch) -> None:
    _network(monkeypatch, {"driver": "10.1.0.7"}, ETH0 + ETH1)
    expected = ["10.1.0.7", "10.0.0.7", "fd00::7", "fe80::7", "fe80::8"]
    assert announced_addresses(Settings(), "driver:99") == expected


def test_no_more_than_eight_are_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    _network(monkeypatch, {"default": "10.0.0.9"}, [(f"10.2.0.{i}", f"eth{i}", False) for i in range(20)])
    announced = announced_addresses(Settings(), "")
    assert len(announced) == 8
    assert announced[:2] == ["10.0.0.9", "10.2.0.0"]


def test_link_local_addresses_are_tried_through_each_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    _network(monkeypatch, {}, ETH0 + ETH1)
    assert seen_from_here(["10.9.0.1", "fe80::1"], elsewhere=True) == [
        "10.9.0.1",
        "fe80::1%eth0",
        "fe80::1%eth1",
    ]
    _network(monkeypatch, {}, ETH0[:1])
    assert seen_from_here(["fe80::1"], elsewhere=True) == ["fe80::1"]


def test_nobody_looks_for_another_host_behind_an_own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    _network(monkeypatch, {}, ETH0)
    assert seen_from_here(["10.0.0.7", "10.9.0.1"], elsewhere=True) == ["10.9.0.1"]
    assert seen_from_here(["10.0.0.7", "10.9.0.1"], elsewhere=False) == ["10.0.0.7", "10.9.0.1"]
    assert seen_from_here(["10.0.0.7"], elsewhere=True) == ["10.0.0.7"]


def test_the_addresses_of_this_host_are_addresses() -> None:
    for address, interface, link_local in addresses._core.local_addresses():
        assert not addresses.is_loopback(address)
        assert interface
        assert link_local == address.startswith(("fe80:", "169.254."))


@pytest.mark.parametrize(
    ("endpoint", "host"),
    [
        ("10.0.0.1:99", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.1"),
        ("[::1]:99", "::1"),
        ("[fe80::1%eth0]:99", "fe80::1%eth0"),
        ("::1", "::1"),
        ("h:1", "h"),
        ("", ""),
    ],
)
def test_the_host_of_an_endpoint(endpoint: str, host: str) -> None:
    assert host_of(endpoint) == host
