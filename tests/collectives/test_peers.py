"""How ranks announce themselves, and which announcements are refused before anybody connects."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_ring import peers
from spark_ring.communicator import Communicator
from spark_ring.config import Settings
from spark_ring.errors import ConfigError, RendezvousError


def _text(rank: int, **changes: Any) -> str:
    fields = {
        "rank": rank,
        "address": "10.0.0.1",
        "port": 4000 + rank,
        "host_id": "h",
        "machine": "m",
        "protocol": peers.PROTOCOL,
        "version": "1.0",
    }
    return json.dumps({**fields, **changes})


def test_good_announcements_come_back_in_rank_order() -> None:
    everyone = peers.read_announcements([_text(0), _text(1), _text(2)], 1, 3)
    assert [(a.rank, a.port) for a in everyone] == [(0, 4000), (1, 4001), (2, 4002)]


@pytest.mark.parametrize(
    ("texts", "rank", "words"),
    [
        ([_text(0)], None, "expected 2 announcements.*got 1"),
        ([_text(1), _text(0)], 1, "in place 0 is of rank 1.*rank order"),
        ([_text(0), "nonsense"], 1, "place 1 cannot be used"),
        ([_text(0), "[]"], 1, "not a JSON object"),
        ([_text(0), _text(1, port="x")], 1, "port is 'x', not of type int"),
        ([_text(0), _text(1, port=0)], 1, "port is 0"),
        ([_text(0), _text(1, address="worker-1.local")], 1, "worker-1.local"),
        ([_text(0), _text(1) + " " * 5000], 1, "at most 4096"),
        ([_text(0), _text(1, protocol=99, version="9")], 1, r"rank 1 speaks protocol 99 \(spark_ring 9\)"),
        ([_text(0), _text(1, port=4000)], 1, "rank 0 and rank 1 both announce 10.0.0.1 port 4000"),
        ([_text(0), _text(1, address="127.0.0.2", machine="n")], 1, "rank 1 announces 127.*rank 0.*_ADDRESS"),
        ([_text(0, address="::1"), _text(1, machine="n")], 0, "rank 0 announces ::1.*SPARK_RING_ADDRESS"),
    ],
)  # fmt: skip
def test_an_announcement_that_cannot_work_is_refused_with_rank_and_setting(
    texts: list[str], rank: int | None, words: str
) -> None:
    """Cases 113 and 134."""
    with pytest.raises(RendezvousError, match=words) as caught:
        peers.read_announcements(texts, 0, 2)
    assert caught.value.rank == rank


def test_loopback_is_fine_on_one_machine_also_when_it_pretends_to_be_two() -> None:
    texts = [_text(rank, address="127.0.0.1", host_id=f"pretended-{rank}") for rank in range(2)]
    assert [a.host_id for a in peers.read_announcements(texts, 0, 2)] == ["pretended-0", "pretended-1"]


def test_the_address_setting_wins_and_must_be_an_address() -> None:
    """Case 115."""
    assert peers.announced_address(Settings(address="10.1.2.3"), "127.0.0.1:5") == "10.1.2.3"
    assert peers.announced_address(Settings(address="fe80::1"), "") == "fe80::1"
    with pytest.raises(ConfigError, match=r"SPARK_RING_ADDRESS.*'my-host'.*must be an IP address"):
        peers.announced_address(Settings(address="my-host"), "")


def test_without_the_setting_the_route_decides() -> None:
    assert peers.announced_address(Settings(), "127.0.0.1:5") == "127.0.0.1"
    assert peers.announced_address(Settings(rendezvous="127.0.0.1:5"), "") == "127.0.0.1"
    assert peers.announced_address(Settings(), "localhost") == "127.0.0.1"


@pytest.mark.parametrize(
    ("toward", "routes", "expected"),
    [
        ("driver", {"driver": "10.0.0.7", "default": "10.0.0.8"}, "10.0.0.7"),
        ("driver", {"driver": "127.0.1.1", "default": "10.0.0.8"}, "10.0.0.8"),
        ("driver", {"default": "10.0.0.8"}, "10.0.0.8"),
        ("", {"default": "10.0.0.8"}, "10.0.0.8"),
        ("driver", {}, "127.0.0.1"),
        ("", {}, "127.0.0.1"),
    ],
)
def test_a_name_that_resolves_to_loopback_or_not_at_all_is_not_trusted(
    toward: str, routes: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 113: the default route decides instead; loopback only when there is no network at all."""

    def local_address_for(target: str) -> str:
        key = "default" if target == "192.0.2.1" else target
        if key not in routes:
            raise RendezvousError(f"{target} cannot be resolved")
        return routes[key]

    monkeypatch.setattr(peers._core, "local_address_for", local_address_for)
    assert peers.announced_address(Settings(), toward) == expected


@pytest.mark.parametrize(
    ("endpoint", "host"),
    [
        ("10.0.0.1:99", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.1"),
        ("[::1]:99", "::1"),
        ("::1", "::1"),
        ("h:1", "h"),
        ("", ""),
    ],
)
def test_the_host_of_an_endpoint(endpoint: str, host: str) -> None:
    assert peers.host_of(endpoint) == host


def test_connecting_needs_a_secret_and_a_rank_in_range() -> None:
    """Case 175."""

    def unused(text: str) -> list[str]:
        raise AssertionError("nothing may be exchanged")

    with pytest.raises(RendezvousError, match="no secret"):
        Communicator.connect(0, 2, unused, b"", Settings())
    with pytest.raises(ConfigError, match="rank is 2 and size is 2"):
        Communicator.connect(2, 2, unused, b"s", Settings())


def test_a_failing_exchange_frees_the_listener() -> None:
    def fail(text: str) -> list[str]:
        raise KeyError(text)

    with pytest.raises(KeyError):
        Communicator.connect(0, 2, fail, b"s", Settings())


def test_every_announced_port_is_of_the_kernels_choice() -> None:
    """Case 112: ranks that start at the same moment on one host never compete for a port."""
    ports = []

    def exchange(text: str) -> list[str]:
        ports.append(json.loads(text)["port"])
        raise InterruptedError

    for _ in range(3):
        with pytest.raises(InterruptedError):
            Communicator.connect(0, 2, exchange, b"s", Settings())
    assert all(port > 1023 for port in ports)
