"""How training would scale on clusters that are not here, from the schedules and this machine's measurements.

    python benchmarks/collectives.py --peers shm,tcp --no-gradients --no-others --json measured.json
    python benchmarks/simulate.py measured.json --write docs/simulation.md --plot docs/simulation.png

Costs (latency, processor time of messages and bytes, reducing, copying) are fitted to half of the
measurements and checked on the other half. Then the same schedules run on clusters of four ranks a host,
on 25 and 100 Gb/s Ethernet.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from dataclasses import replace
from pathlib import Path

from report import short, write_into
from simulation.fitting import Cell, Fit, fit
from simulation.machine import Machine
from simulation.models import Network, inception_v3, resnet, transformer, vgg16
from simulation.schedules import agreement, two_level
from simulation.training import Step, train

LOCAL = 4  # ranks on a host
RANKS = (16, 64, 256, 512, 1024, 4096)
GIGABITS = (25, 100)
WIRE_SHARE = 0.94  # of a link's bits that are payload: Ethernet, IP and TCP headers at an MTU of 1500
ETHERNET_LATENCY = 20e-6  # assumed, one way between two hosts
BATCH = 64
# Images per second of one P100, batch 64: TensorFlow's benchmarks of May 2017,
# docs_src/performance/benchmarks.md.
P100 = {"Inception V3": 142.0, "VGG-16": 154.0, "ResNet-50": 219.0, "ResNet-152": 91.8}
TRANSFORMER_FLOPS = 125e12  # assumed: 40 % of an A100's 312 Tflop/s in bfloat16
TRANSFORMER_BATCH = 8  # sequences
PUBLISHED = {"ResNet-101": "88–90 %", "Inception V3": "88–90 %", "VGG-16": "68 %"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("measured", nargs="+", help="JSON of benchmarks/collectives.py with shm and tcp")
    parser.add_argument("--write", metavar="FILE", help="put the tables between the marks of this page")
    parser.add_argument("--plot", metavar="FILE", help="draw the efficiencies")
    options = parser.parse_args()
    found = fit(read_cells(options.measured), os.cpu_count() or 1)
    results = {
        (network.name, gigabits, ranks): scale(found.machine, network, seconds, gigabits, ranks)
        for network, seconds in workloads()
        for gigabits in GIGABITS
        for ranks in RANKS
    }
    text = f"{fit_text(found)}\n\n{scaling_text(results)}\n"
    if options.write:
        write_into(Path(options.write), text)
    if options.plot:
        draw(results, options.plot)
    print(text)


def read_cells(files: list[str]) -> list[Cell]:
    """Return the medians of the ring's own allreduces."""
    cells = [cell for file in files for cell in json.loads(Path(file).read_text())["cells"]]
    return [
        Cell(cell["who"], cell["ranks"], cell["bytes"], statistics.median(cell["seconds"]))
        for cell in cells
        if cell["who"] in ("shm", "tcp") and cell["verb"] == "allreduce" and cell["bytes"] <= 64 << 20
    ]


def workloads() -> list[tuple[Network, float]]:
    """Return networks and the seconds of one step of one rank, without communication."""
    return [
        (resnet(101), BATCH / p100_resnet101()),
        (inception_v3(), BATCH / P100["Inception V3"]),
        (vgg16(), BATCH / P100["VGG-16"]),
        (large := transformer(), 6 * large.multiply_adds * TRANSFORMER_BATCH / TRANSFORMER_FLOPS),
    ]


def p100_resnet101() -> float:
    """Return images per second, between those of ResNet-50 and -152 by multiply-adds."""
    few, middle, many = (resnet(depth).multiply_adds for depth in (50, 101, 152))
    share = (middle - few) / (many - few)
    return 1 / ((1 - share) / P100["ResNet-50"] + share / P100["ResNet-152"])


def scale(fitted: Machine, network: Network, seconds: float, gigabits: int, ranks: int) -> Step:
    """Simulate one step of ``ranks`` ranks, four a host, in bfloat16 for the transformer and float32 else."""
    wire = gigabits * 1e9 / 8 * WIRE_SHARE
    machine = replace(fitted, latency=ETHERNET_LATENCY, wire=wire, cores=0)
    item = 2 if network.name.startswith("transformer") else 4
    return train(
        network,
        seconds,
        lambda size: two_level(machine, ranks // LOCAL, LOCAL, size),
        agreement(machine, ranks),
        item,
    )


def fit_text(found: Fit) -> str:
    """Return the fitted costs and the check."""
    machine = found.machine
    median, worst = found.spread()
    lines = [
        "| cost | fitted |",
        "|---|---:|",
        f"| latency of a message over loopback TCP | {machine.latency * 1e6:.1f} µs |",
        f"| processor time of a message, each end | {machine.overhead * 1e6:.1f} µs |",
        f"| processor time of a byte in a socket, each end | 1 / {machine.socket / 1e9:.1f} GB/s |",
        f"| reducing | {machine.reduce / 1e9:.1f} GB/s |",
        f"| copying within the host | {machine.copy / 1e9:.1f} GB/s |",
        f"| one wait in shared memory | {machine.flag * 1e6:.2f} µs |",
        "",
        f"Of {len(found.checked)} measurements that the fit has not seen, the median is off by a factor of "
        f"{median:.2f}, the worst by {worst:.2f}:",
        "",
        "| transport | ranks | bytes | measured | predicted / measured |",
        "|---|---:|---:|---:|---:|",
    ]
    for cell, ratio in found.checked.items():
        place = f"{cell.transport} | {cell.ranks} | {short(cell.bytes)}"
        lines.append(f"| {place} | {cell.seconds * 1e6:.4g} µs | {ratio:.2f} |")
    return "\n".join(lines)


def scaling_text(results: dict[tuple[str, int, int], Step]) -> str:
    """Return the efficiencies, a row for each network and speed."""
    lines = [
        "| network | Gb/s | "
        + " | ".join(f"{ranks:,}" for ranks in RANKS)
        + " | Horovod, 512 ranks | limited by |",
        "|---|---:|" + "---:|" * (len(RANKS) + 1) + "---|",
    ]
    for name, gigabits in dict.fromkeys((name, gigabits) for name, gigabits, _ in results):
        steps = [results[name, gigabits, ranks] for ranks in RANKS]
        limits = list(dict.fromkeys(step.limit for step in steps))
        lines.append(
            f"| {name} | {gigabits} | "
            + " | ".join(f"{step.efficiency:.0%}" for step in steps)
            + f" | {PUBLISHED.get(name, '–') if gigabits == 25 else '–'} | {', then '.join(limits)} |"
        )
    return "\n".join(lines)


def draw(results: dict[tuple[str, int, int], Step], path: str) -> None:
    """Plot efficiency over ranks, one panel per speed, with what Horovod published."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(GIGABITS), figsize=(10, 4), sharey=True, layout="constrained")
    names = list(dict.fromkeys(name for name, _, _ in results))
    for panel, gigabits in zip(panels, GIGABITS, strict=True):
        for color, name in enumerate(names):
            efficiency = [100 * results[name, gigabits, ranks].efficiency for ranks in RANKS]
            panel.plot(RANKS, efficiency, marker="o", color=f"C{color}", label=name)
        if gigabits == 25:
            panel.plot([512], [68], "*", color=f"C{names.index('VGG-16')}", markersize=14)
            panel.plot([512], [89], "*", color=f"C{names.index('ResNet-101')}", markersize=14)
            panel.plot([], [], "k*", markersize=12, label="Horovod, published (VGG-16; the other two)")
        panel.set(xscale="log", xlabel="ranks, 4 a host", title=f"{gigabits} Gb/s Ethernet", ylim=(0, 105))
        panel.set_xticks(RANKS, [f"{ranks:,}" for ranks in RANKS])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("predicted scaling efficiency, %")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, ncols=5, loc="outside lower center")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
