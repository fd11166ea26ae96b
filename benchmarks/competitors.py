"""Who takes part and how its ranks are started. One that cannot be had says why and is left out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
PEERS = Path(os.environ.get("BENCHMARK_PEERS", HERE.parent / ".peers"))  # where `make peers` puts them
OURS = ("shm", "own", "tcp")
ONE_HOST = ("shm", "own", "gloo", "openmpi", "mpich", "intel", "horovod", "hardware")
TCP_ONLY = ("tcp", "gloo", "gloo-reno", "openmpi-tcp", "hardware")
NAMESPACE = "spark-ring-benchmark"


@dataclass(frozen=True)
class Competitor:
    """How to start the ranks of one library.

    Attributes:
        name: as in the tables.
        program: what a rank runs: interpreter, file in ``peers/``, arguments.
        launcher: a command that starts all ranks itself; ``{size}`` is their number. Empty: one by one.
        env: more variables.
        restless: its ranks work also when nobody asks; they are stopped while others have their turn.
    """

    name: str
    program: list[str]
    launcher: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    restless: bool = False

    def commands(self, size: int) -> list[list[str]]:
        """Return the processes to start."""
        if self.launcher:
            return [[part.format(size=size) for part in self.launcher] + self.program]
        return [self.program] * size


def find(name: str) -> Competitor | str:
    """Return a competitor, or why it is not there."""
    if name in OURS:
        return Competitor(name, [sys.executable, str(HERE / "peers/ring_rank.py"), name])
    if name == "hardware":
        return Competitor(name, [sys.executable, str(HERE / "peers/hardware_rank.py")])
    if name in ("gloo", "gloo-reno"):
        return _gloo(name)
    if name == "horovod":
        return _horovod()
    return _mpi(name)


def _gloo(name: str) -> Competitor | str:
    if find_spec("torch") is None:
        return "torch is not installed"
    program = [sys.executable, str(HERE / "peers/gloo_rank.py")]
    if name == "gloo":
        return Competitor(name, program)
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "another congestion control for one process needs root and the command ip (iproute2)"
    enter = ["ip", "netns", "exec", NAMESPACE]
    subprocess.run(["ip", "netns", "add", NAMESPACE], check=False, capture_output=True)
    for command in (
        ["ip", "link", "set", "lo", "up"],
        ["sysctl", "-qw", "net.ipv4.tcp_congestion_control=reno"],
    ):
        done = subprocess.run([*enter, *command], check=False, capture_output=True, text=True)
        if done.returncode != 0:
            return f"{' '.join(command)} in a network namespace failed: {done.stderr.strip()}"
    return Competitor(name, [*enter, *program])


def remove_namespace() -> None:
    """Take away what :func:`find` made."""
    if os.geteuid() == 0 and shutil.which("ip") is not None:
        subprocess.run(["ip", "netns", "delete", NAMESPACE], check=False, capture_output=True)


def _mpi(name: str) -> Competitor | str:
    folder = PEERS / name.removesuffix("-tcp")
    if not (folder / "bin/mpirun").exists():
        return f"{folder}/bin/mpirun is not there; run `make peers`"
    program = [str(folder / "bin/python"), str(HERE / "peers/mpi_rank.py")]
    launcher = [str(folder / "bin/mpirun"), "-n", "{size}"]
    env = {"PATH": f"{folder}/bin:{os.environ['PATH']}"}
    if name.startswith("openmpi"):
        launcher += ["--oversubscribe"]
        env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        if name.endswith("-tcp"):
            launcher += ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"]
    return Competitor(name, program, launcher, env)


def _horovod() -> Competitor | str:
    folder = PEERS / "horovod"
    if not (folder / "bin/horovodrun").exists():
        return f"{folder}/bin/horovodrun is not there; run `make peers`"
    program = [str(folder / "bin/python"), str(HERE / "peers/horovod_rank.py")]
    launcher = [str(folder / "bin/horovodrun"), "-np", "{size}", "-H", "localhost:{size}", "--gloo"]
    env = {"PATH": f"{folder}/bin:{os.environ['PATH']}"}
    return Competitor(
        "horovod", program, launcher, env, restless=True
    )  # a thread that wakes every millisecond
