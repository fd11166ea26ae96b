"""Network namespaces as hosts: each with interfaces, addresses and routes of its own, joined by bridges.

::

    host a  eth0 ─┐
                  ├─ bridge "net0" (in the namespace of the switch)
    host b  eth0 ─┘

Everything has names of its own in this process and is removed with the lab, also after a failure. Nothing is
added to the namespace in which the tests themselves run.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
_numbers = itertools.count()


def why_not() -> str:
    """Return why there can be no lab here; empty if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "there is no program 'ip' (iproute2)"
    name = f"sr-probe-{os.getpid()}"
    steps = (
        ("netns", "add", name),
        ("-n", name, "link", "add", "v0", "type", "veth", "peer", "name", "v1"),
        ("-n", name, "link", "add", "b0", "type", "bridge"),
    )
    try:
        for step in steps:
            done = subprocess.run(["ip", *step], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                return f"'ip {' '.join(step)}' says: {done.stderr.strip()}"
        return ""
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


class Lab:
    """Some hosts and the networks between them."""

    def __init__(self) -> None:
        """Begin with a switch and no host."""
        self._prefix = f"sr-{os.getpid()}-{next(_numbers)}"
        self._spaces: list[str] = []
        self._processes: list[subprocess.Popen[str]] = []
        self._networks: set[str] = set()
        self._switch = self._add_space("switch")

    def host(self, name: str) -> str:
        """Add a host; return its namespace."""
        return self._add_space(name)

    def plug(self, host: str, network: str, *addresses: str) -> str:
        """Give a host an interface on a network, with addresses ``"10.0.0.1/24"``; return the interface."""
        if network not in self._networks:
            self._networks.add(network)
            self.ip("-n", self._switch, "link", "add", network, "type", "bridge")
            self.ip("-n", self._switch, "link", "set", network, "up")
        interface = f"{network}-if"
        port = f"{network}.{self._spaces.index(host)}"
        self.ip(
            "-n", self._switch, "link", "add", port, "type", "veth", "peer", "name", interface, "netns", host
        )
        self.ip("-n", self._switch, "link", "set", port, "master", network, "up")
        self.ip("-n", host, "link", "set", interface, "up")
        for address in addresses:
            nodad = ["nodad"] if ":" in address else []
            self.ip("-n", host, "addr", "add", address, "dev", interface, *nodad)
        return interface

    def rename(self, host: str, interface: str, name: str) -> None:
        """Give an interface another name."""
        self.ip("-n", host, "link", "set", interface, "down")
        self.ip("-n", host, "link", "set", interface, "name", name)
        self.ip("-n", host, "link", "set", name, "up")

    def cut(self, host: str, network: str) -> None:
        """Pull a host's plug at the switch: its interface stays up, and nobody is told."""
        self.ip("-n", self._switch, "link", "set", f"{network}.{self._spaces.index(host)}", "down")

    def start(self, host: str, *arguments: str) -> subprocess.Popen[str]:
        """Start ``python -m tests.hosts.there arguments`` on a host."""
        command = ["ip", "netns", "exec", host, sys.executable, "-m", "tests.hosts.there", *arguments]
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._processes.append(process)
        return process

    def run(
        self,
        places: list[str],
        scenario: str,
        driver: tuple[str, str],
        zones: dict[str, str] | None = None,
        **given: Any,
    ) -> list[subprocess.Popen[str]]:
        """Start a rank of ``scenario`` on each of ``places``; a server on a host brings them together.

        Args:
            places: the host of each rank.
            scenario: a function of tests/hosts/there.py.
            driver: host and address of the server.
            zones: the interface by which each host reaches a link-local ``driver``.
            given: settings of each rank.
        """
        host, address = driver
        server = self.start(host, "server", address)
        assert server.stdout is not None
        meeting = server.stdout.readline().strip()
        assert meeting, "the rendezvous server did not start"
        return [
            self.start(
                place,
                scenario,
                json.dumps(
                    {
                        "rank": rank,
                        "size": len(places),
                        "rendezvous": re.sub("%[^]]*", f"%{zones[place]}", meeting) if zones else meeting,
                        "host_id": place,
                        "connect_timeout": 30.0,
                        **given,
                    }
                ),
            )
            for rank, place in enumerate(places)
        ]

    @staticmethod
    def answers(ranks: list[subprocess.Popen[str]], timeout: float) -> list[Any]:
        """Wait for the ranks' answers, in rank order."""
        results = []
        for rank, process in enumerate(ranks):
            out, _ = process.communicate(timeout=timeout)
            lines = out.strip().splitlines()
            assert process.returncode == 0, f"rank {rank} ended with {process.returncode}: {out}"
            assert lines, f"rank {rank} did not answer"
            results.append(json.loads(lines[-1]))
        return results

    def ip(self, *arguments: str) -> None:
        """Call ``ip``."""
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"

    def _add_space(self, name: str) -> str:
        space = f"{self._prefix}-{name}"
        self.ip("netns", "add", space)
        self._spaces.append(space)
        # Addresses are of use at once, without the second in which others may object.
        # No host is a router for others.
        for key in ("ipv6/conf/default/accept_dad", "ipv6/conf/default/accept_ra", "ipv4/ip_forward"):
            command = f"echo 0 > /proc/sys/net/{key}"
            subprocess.run(["ip", "netns", "exec", space, "sh", "-c", command], check=True)
        self.ip("-n", space, "link", "set", "lo", "up")
        return space

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()  # tells the server to end
        for process in self._processes:
            try:
                process.wait(1 if kind is not None else 10)
            except subprocess.TimeoutExpired:
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
                process.kill()
                process.wait()
        for space in self._spaces:
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)
