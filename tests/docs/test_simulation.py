"""The simulator: parameter counts, closed forms, symmetry, bytes and messages as documented, the fit."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from simulation.events import Simulation
from simulation.fitting import Cell, fit, predict
from simulation.machine import Machine
from simulation.models import inception_v3, resnet, transformer, vgg16
from simulation.schedules import _direct_program, _ring_program, direct, ring, two_level
from simulation.training import train

MIB = 1 << 20
NEVER = float("inf")
FREE = {"latency": 0.0, "overhead": 0.0, "socket": NEVER, "reduce": NEVER, "copy": NEVER, "flag": 0.0}
REAL = Machine(
    latency=20e-6, overhead=4e-6, socket=3e9, reduce=6e9, copy=6e9, flag=1e-6, wire=25e9 / 8, cores=0
)


@pytest.mark.parametrize(
    ("network", "parameters"),
    [
        (resnet(50), 25_557_032),
        (resnet(101), 44_549_160),
        (resnet(152), 60_192_808),
        (inception_v3(), 23_834_568),
        (vgg16(), 138_357_544),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_networks_have_as_many_parameters_as_published(network, parameters: int) -> None:
    assert network.parameters == parameters


def test_multiply_adds_are_those_of_the_papers() -> None:
    """ResNet: 3.8, 7.6 and 11.3 G of convolutions in the paper; VGG-16: 15.5 G."""
    assert resnet(50).multiply_adds == pytest.approx(4.09e9, rel=0.01)
    assert resnet(101).multiply_adds == pytest.approx(7.80e9, rel=0.01)
    assert inception_v3().multiply_adds == pytest.approx(5.71e9, rel=0.01)
    assert vgg16().multiply_adds == pytest.approx(15.47e9, rel=0.01)
    assert transformer().parameters == pytest.approx(1.0e9, rel=0.02)


@pytest.mark.parametrize("n", [2, 3, 8, 64])
@pytest.mark.parametrize("symmetric", [True, False])
def test_with_bandwidth_alone_both_algorithms_take_the_least_that_is_possible(
    n: int, symmetric: bool
) -> None:
    """2 (n - 1) / n · bytes / bandwidth."""
    machine = Machine(**FREE, wire=1e9)
    size = n * 8 * MIB
    least = 2 * (n - 1) / n * size / 1e9
    assert ring(machine, n, size, symmetric=symmetric) == pytest.approx(least, rel=1e-6)
    assert direct(machine, n, size, symmetric=symmetric) == pytest.approx(least, rel=1e-6)


@pytest.mark.parametrize("n", [2, 5, 16])
def test_with_latency_alone_hops_count(n: int) -> None:
    machine = Machine(**{**FREE, "latency": 1.0}, wire=NEVER)
    assert ring(machine, n, n) == pytest.approx(2 * (n - 1))
    assert direct(machine, n, n) == pytest.approx(2)


@pytest.mark.parametrize("n", [2, 3, 4, 7])
@pytest.mark.parametrize("size", [64, 100_000, 5 * MIB, 64 * MIB])
@pytest.mark.parametrize("schedule", [ring, direct])
def test_one_rank_stands_for_all(schedule, n: int, size: int) -> None:
    whole = schedule(REAL, n, size, symmetric=False)
    assert schedule(REAL, n, size, symmetric=True) == pytest.approx(whole, rel=0.01)


@pytest.mark.parametrize("n", [2, 3, 8])
def test_bytes_and_messages_are_those_of_the_documentation(n: int) -> None:
    """2 T (n - 1) / n bytes sent by each rank; the direct exchange 2 (n - 1) messages."""
    size = n * 64
    for program, messages in ((_direct_program, 2 * (n - 1)), (_ring_program, 2 * (n - 1))):
        simulation = Simulation(REAL, lambda rank: rank)
        simulation.run({rank: program(REAL, rank, n, size, False) for rank in range(n)})
        assert simulation.bytes == n * 2 * (n - 1) * size // n
        assert simulation.messages == n * messages


def test_more_of_anything_never_takes_less_time() -> None:
    times = [two_level(REAL, hosts, 4, 100 * MIB) for hosts in (1, 2, 4, 16, 64, 256, 1024)]
    assert times == sorted(times)
    times = [two_level(REAL, 16, 4, size * MIB) for size in (1, 2, 8, 31, 64, 256)]
    assert times == sorted(times)


def test_a_program_that_waits_for_ever_is_noticed() -> None:
    def lonely():
        yield "receive", 1, "nothing"

    with pytest.raises(RuntimeError, match=r"ranks \[0\] wait for ever"):
        Simulation(REAL, lambda rank: rank).run({0: lonely()})


def test_what_backward_hides_costs_nothing() -> None:
    network = resnet(50)
    alone = train(network, 0.3, lambda size: 0.0, 0.0)
    assert alone.efficiency == pytest.approx(1.0)
    assert alone.limit == "computing"
    slow = train(network, 0.3, lambda size: size / 1e8, 0.0)
    assert slow.limit == "moving bytes"
    assert slow.total > network.parameters * 4 / 1e8
    talking = train(network, 0.3, lambda size: 0.0, 0.05)
    assert talking.limit == "agreement"
    assert talking.total <= 0.3 + 2 * 0.05


def test_the_fit_finds_a_machine_that_it_was_told_of() -> None:
    told = Machine(latency=12e-6, overhead=3e-6, socket=2e9, reduce=7e9, copy=5e9, flag=2e-6, cores=2)
    blank = [
        Cell(transport, ranks, size, 1.0)
        for transport in ("shm", "tcp")
        for ranks in (2, 4, 8)
        for size in (4, 4096, 65536, MIB, 16 * MIB)
    ]
    cells = [Cell(cell.transport, cell.ranks, cell.bytes, predict(told, cell)) for cell in blank]
    _, worst = fit(cells, cores=2).spread()
    assert worst < 1.1
