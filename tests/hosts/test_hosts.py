"""Ranks on several hosts, played by network namespaces: addresses, routes, IPv6, a cable that is pulled."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.hosts.lab import Lab, why_not

_WHY_NOT = why_not()
pytestmark = pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT)


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab() as made:
        yield made


def _check_two_level(answers: list[Any]) -> None:
    for rank, answer in enumerate(answers):
        assert answer["transport"] == "shm+tcp"
        assert answer["local"] == [rank % 2, 2]
        assert answer["cross"] == [rank // 2, 2]


def test_two_hosts_of_two_ranks_compute_what_numpy_computes(lab: Lab) -> None:
    a, b = lab.host("a"), lab.host("b")
    lab.plug(a, "net0", "10.9.0.1/24")
    lab.plug(b, "net0", "10.9.0.2/24")
    _check_two_level(lab.answers(lab.run([a, a, b, b], "everything", (a, "10.9.0.1")), 60))


def test_ranks_of_a_host_need_not_be_neighbours(lab: Lab) -> None:
    a, b, c = lab.host("a"), lab.host("b"), lab.host("c")
    for number, host in enumerate((a, b, c), 1):
        lab.plug(host, "net0", f"10.9.0.{number}/24")
    answers = lab.answers(lab.run([b, a, c, a, b], "everything", (a, "10.9.0.1")), 60)
    assert [answer["local"] for answer in answers] == [[0, 2], [0, 2], [0, 1], [1, 2], [1, 2]]


@pytest.mark.parametrize("first", ["a", "b"])
def test_a_first_address_that_is_out_of_reach_costs_seconds_not_the_job(lab: Lab, first: str) -> None:
    """Host b reaches the driver by an interface whose network host a is not on; its second leads to a."""
    driver, a, b = lab.host("driver"), lab.host("a"), lab.host("b")
    lab.plug(driver, "net0", "10.9.0.9/24")
    lab.plug(driver, "net1", "10.9.1.9/24")
    lab.plug(b, "net0", "10.9.0.2/24")
    lab.plug(b, "net1", "10.9.1.2/24")
    lab.plug(a, "net1", "10.9.1.1/24")
    # Whatever a sends to net0 goes to the driver, which keeps what is its own and drops the rest in silence.
    lab.ip("-n", a, "route", "add", "10.9.0.0/24", "via", "10.9.1.9")
    places = [a, a, b, b] if first == "a" else [b, b, a, a]
    answers = lab.answers(lab.run(places, "everything", (driver, "10.9.0.9")), 60)
    _check_two_level(answers)
    slowest = max(answer["joined"] for answer in answers)
    assert slowest < 15
    if first == "b":  # the higher rank connects, so host a tries the first address of b
        assert slowest > 0.9


def test_the_address_setting_leaves_no_choice(lab: Lab) -> None:
    a, b = lab.host("a"), lab.host("b")
    lab.plug(a, "net0", "10.9.0.1/24")
    lab.plug(b, "net0", "10.9.0.2/24")
    lab.plug(b, "net1", "10.9.1.2/24")
    ranks = lab.run([b], "everything", (b, "10.9.0.2"), address="10.9.1.2")
    assert lab.answers(ranks, 60)[0]["transport"] == "self"


def test_hosts_with_ipv6_alone(lab: Lab) -> None:
    a, b = lab.host("a"), lab.host("b")
    lab.plug(a, "net0", "fd00:9::1/64")
    lab.plug(b, "net0", "fd00:9::2/64")
    _check_two_level(lab.answers(lab.run([a, a, b, b], "everything", (a, "fd00:9::1")), 60))


def test_hosts_with_link_local_addresses_alone(lab: Lab) -> None:
    """The zone of an address, the interface that leads there, has another name on each host."""
    a, b = lab.host("a"), lab.host("b")
    zones = {a: lab.plug(a, "net0", "fe80::9:1/64"), b: "other"}
    lab.rename(b, lab.plug(b, "net0"), "other")
    lab.ip("-n", b, "addr", "add", "fe80::9:2/64", "dev", "other", "nodad")
    ranks = lab.run([a, a, b, b], "everything", (a, f"fe80::9:1%{zones[a]}"), zones)
    _check_two_level(lab.answers(ranks, 60))


@pytest.mark.parametrize("scenario", ["for_ever", "wait_for_message"])
def test_a_cut_cable_is_noticed_by_everyone_within_the_deadline(lab: Lab, scenario: str) -> None:
    """No FIN, no RST, no unreachable host: silence. Each side names a rank of the other."""
    a, b = lab.host("a"), lab.host("b")
    lab.plug(a, "net0", "10.9.0.1/24")
    lab.plug(b, "net0", "10.9.0.2/24")
    ranks = lab.run([a, a, b, b], scenario, (a, "10.9.0.1"), silence_timeout=3.0)
    for rank in ranks:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "running\n"
    cut_at = time.monotonic()
    lab.cut(b, "net0")
    answers = lab.answers(ranks, 30)
    assert time.monotonic() - cut_at < 15
    for rank, answer in enumerate(answers):
        others = (2, 3) if rank < 2 else (0, 1)
        assert answer["error"] == "PeerLostError", answer
        assert answer["rank"] in others, answer
        assert answer["seconds"] < 12, answer
    assert any("nothing was heard from its host" in answer.get("text", "") for answer in answers) or (
        scenario == "wait_for_message"
    )
