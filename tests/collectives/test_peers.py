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
        ([_text(0), _text(1, others="10.0.0.2")], 1, "others is not a list"),
        ([_text(0), _text(1, others=["10.0.0.2"] * 8)], 1, "others is not a list of fewer than 8"),
        ([_text(0), _text(1, others=["host-b"])], 1, "host-b"),
        ([_text(0), _text(1, others=[7])], 1, "7 is no address"),
        ([_text(0), _text(1, address="fe80::1%eth0")], 1, "zone of another host"),
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


def test_a_further_address_that_two_machines_have_is_left_out() -> None:
    """The bridge of a container engine is 172.17.0.1 everywhere."""
    texts = [
        _text(0, address="10.0.0.1", machine="m", others=["172.17.0.1", "10.1.0.1"]),
        _text(1, address="10.0.0.1", machine="m", others=["172.17.0.1", "10.1.0.1"]),
        _text(2, address="10.0.0.2", machine="n", others=["172.17.0.1", "10.1.0.2"]),
    ]
    others = [announcement.others for announcement in peers.read_announcements(texts, 0, 3)]
    assert others == [("10.1.0.1",), ("10.1.0.1",), ("10.1.0.2",)]


def test_loopback_is_fine_on_one_machine_also_when_it_pretends_to_be_two() -> None:
    texts = [_text(rank, address="127.0.0.1", host_id=f"pretended-{rank}") for rank in range(2)]
    assert [a.host_id for a in peers.read_announcements(texts, 0, 2)] == ["pretended-0", "pretended-1"]


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
