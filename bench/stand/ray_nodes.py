"""Two nodes of a Ray cluster in two network namespaces of this machine, joined by a bridge.

Ray listens on all addresses without a password. Here they are those of the bridge, which no other
machine reaches. Needs root and `ip`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

HOST_ADDRESS = "10.77.0.254"
GCS_PORT, METRICS_PORT, HTTP_PORT = 6399, 6400, 8000
START_WITHIN_S = 60.0
NODE_CPUS = 3
"""Room for one engine (2: its server and its rank) and one ingress: each node gets one of both."""
OBJECT_STORE_BYTES = 200_000_000


@dataclass
class RayNode:
    """One node: its namespace, its address and the programs that were started in it."""

    name: str
    address: str
    log: Path
    variables: Mapping[str, str]
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Return the address of the node's HTTP proxy."""
        return f"http://{self.address}:{HTTP_PORT}"

    def start(self, argv: Sequence[str], **variables: str) -> subprocess.Popen[bytes]:
        """Start a program in the namespace; its output goes to the node's log."""
        with self.log.open("ab") as output:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.name, *argv],
                env={**self.variables, **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self.started.append(process)
        return process

    def pids(self) -> list[int]:
        """Return the processes that run in the namespace."""
        done = subprocess.run(
            ["ip", "netns", "pids", self.name], capture_output=True, text=True, check=False
        )
        return [int(pid) for pid in done.stdout.split()]

    def kill(self) -> int:
        """Kill every process at once, as a loss of power would; return their number."""
        pids = self.pids()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(pids)

    def metrics(self) -> str:
        """Return the page on which Ray reports the figures of the node's engines."""
        with urllib.request.urlopen(
            f"http://{self.address}:{METRICS_PORT}/metrics", timeout=5
        ) as page:
            text: str = page.read().decode()
            return text

    def end(self) -> None:
        """End all that runs, and wait for it."""
        for _ in range(50):
            if not self.kill():
                break
            time.sleep(0.1)
        for process in self.started:
            process.wait()


@contextmanager
def two_nodes(
    python: Path, folder: Path, variables: Mapping[str, str]
) -> Iterator[tuple[RayNode, RayNode]]:
    """Start both nodes, the head first; end them and remove the namespaces afterwards.

    `python` is the interpreter that has Ray. Raises `CalledProcessError` if `ip` fails, and
    `TimeoutError` if the head does not start.
    """
    tag = f"tg{os.getpid() % 100_000}"
    with ExitStack() as stack:
        _ip("link", "add", tag, "type", "bridge")
        stack.callback(_ip, "link", "del", tag)
        _ip("addr", "add", f"{HOST_ADDRESS}/24", "dev", tag)
        _ip("link", "set", tag, "up")
        nodes = []
        for number in (1, 2):
            node = RayNode(
                name=f"{tag}-{number}",
                address=f"10.77.0.{number}",
                log=folder / f"node-{number}.log",
                variables=variables,
            )
            _add_namespace(stack, tag, node, number)
            stack.callback(node.end)
            nodes.append(node)
        head, other = nodes
        ray = [str(python.with_name("ray")), "start", "--block", "--num-cpus", str(NODE_CPUS)]
        ray += ["--object-store-memory", str(OBJECT_STORE_BYTES)]
        ray += ["--metrics-export-port", str(METRICS_PORT)]
        first = ["--head", "--node-ip-address", head.address, "--port", str(GCS_PORT)]
        first += ["--include-dashboard", "false", "--temp-dir", str(folder / "ray")]
        first += ["--system-config", json.dumps({"metrics_report_interval_ms": 500})]
        head.start([*ray, *first])
        _wait_until_listening(head.address, GCS_PORT)
        there = ["--address", f"{head.address}:{GCS_PORT}", "--node-ip-address", other.address]
        other.start([*ray, *there])
        yield head, other


def _add_namespace(stack: ExitStack, bridge: str, node: RayNode, number: int) -> None:
    """Make a namespace with an interface on the bridge."""
    outside = f"{bridge}v{number}"
    _ip("netns", "add", node.name)
    stack.callback(_ip, "netns", "del", node.name)
    _ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", node.name)
    _ip("link", "set", outside, "master", bridge, "up")
    inside = ("-n", node.name)
    _ip(*inside, "addr", "add", f"{node.address}/24", "dev", "eth0")
    _ip(*inside, "link", "set", "eth0", "up")
    _ip(*inside, "link", "set", "lo", "up")
    # Ray takes the address of the interface that its default route uses.
    _ip(*inside, "route", "add", "default", "via", HOST_ADDRESS)


def _wait_until_listening(address: str, port: int) -> None:
    """Wait until a port takes connections. Raises `TimeoutError` if it does not in time."""
    deadline_s = time.monotonic() + START_WITHIN_S
    while time.monotonic() < deadline_s:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex((address, port)) == 0:
                return
        time.sleep(0.2)
    raise TimeoutError(f"Nothing listens at {address}:{port} after {START_WITHIN_S:.0f} s.")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
