"""The edge under the audit's attacks, at its own sizes: their cost for the gateway and its other
callers.

    python -m bench.attacks                 # all of them, each against a fresh gateway
    python -m bench.attacks f2-fields-10    # some of them

For each: memory and `/healthz` (p99, slowest) idle and during the attack, memory 3 s after it, and
whether another team's request and the ledger still worked. Exits 1 if a figure is over its limit. A
busy machine shows its own pauses: run it on a quiet one.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path

import psycopg

from bench.stand import machine, processes
from gateway.storage.postgres.embedded import EmbeddedPostgres

REPOSITORY = Path(__file__).parents[1]
MIB = 2**20
IDLE_S = 5.0
EVERY_S = 0.01
AFTER_S = 3.0
MEMORY_BYTES = 64 * MIB
P99_S, TIMES_IDLE, SLOWEST_S = 0.15, 5, 0.6
CHAT = "/v1/chat/completions"
POLICY = """\
version: 1
classes: {{internal: {{regions: [any]}}}}
deployments:
  - {{name: plain, model: m, provider: openai_compatible, region: unknown, base_url: "http://127.0.0.1:{port}/v1",
     price: {{input_usd_per_mtok: 1, output_usd_per_mtok: 4}}}}
routes: [{{name: plain, deployments: [plain]}}]
teams:
  - {{name: red, cost_centre: CC-1, data_class: internal, routes: [plain]}}
  - {{name: blue, cost_centre: CC-2, data_class: internal, routes: [plain]}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """`act` attacks the port with red's key; it runs in a process of its own and ends by itself."""

    act: Callable[[int, str], None]
    settings: dict[str, str]
    descriptors: int | None = None
    held_bytes: int = 0  # the amount that the limits allow to be held meanwhile, counted twice


@dataclass(slots=True)
class Seen:
    """Another caller's observations, in seconds; `failed` are requests without an answer."""

    answers_s: list[float]
    failed: int = 0

    def p99_s(self) -> float:
        """The 99th of a hundred."""
        return (
            sorted(self.answers_s)[int(len(self.answers_s) * 0.99)]
            if self.answers_s
            else float("inf")
        )

    def slowest_s(self) -> float:
        """The slowest answer."""
        return max(self.answers_s, default=float("inf"))


# ---- the attacks


def _connect(port: int, *, receive_buffer: int | None = None) -> socket.socket:
    connection = socket.socket()
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(30)
    connection.connect(("127.0.0.1", port))
    return connection


def _head_of(size: int, line: bytes, *, sockets: int) -> Callable[[int, str], None]:
    """Send `line` over and over within one head, up to `size`, on so many sockets, and keep them
    open.
    """

    def act(port: int, key: str) -> None:
        def send() -> None:
            with contextlib.suppress(OSError), _connect(port) as connection:
                connection.sendall(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\n".encode())
                connection.sendall(line * (size // len(line)))
                time.sleep(IDLE_S)

        threads = [threading.Thread(target=send) for _ in range(sockets)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return act


def _one_value(size: int, *, sockets: int) -> Callable[[int, str], None]:
    """One header's value, which grows."""
    return _head_of(size, b"a" * 65_536, sockets=sockets)


def _idle_sockets(count: int, for_s: float) -> Callable[[int, str], None]:
    """Connect again whenever one is closed."""

    def act(port: int, key: str) -> None:
        until_s = time.monotonic() + for_s
        with ExitStack() as stack:
            held: list[socket.socket] = []
            while time.monotonic() < until_s:
                with contextlib.suppress(OSError):
                    if len(held) < count:
                        held.append(stack.enter_context(_connect(port)))
                        continue
                    time.sleep(0.05)
                for one in list(held):
                    one.setblocking(False)
                    with contextlib.suppress(BlockingIOError):
                        with contextlib.suppress(ConnectionError):
                            one.recv(1)
                        one.close()
                        held.remove(one)

    return act


def _unfinished_bodies(count: int, for_s: float) -> Callable[[int, str], None]:
    """`content-length: 100` and one byte, again whenever one is refused."""

    def act(port: int, key: str) -> None:
        sent = (
            f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer "
            f"{key}\r\ncontent-length: 100\r\n\r\n{{"
        )
        _hold(port, sent.encode(), count=count, for_s=for_s)

    return act


def _unread_streams(count: int, for_s: float) -> Callable[[int, str], None]:
    """Ask for an endless stream and read nothing of it."""

    def act(port: int, key: str) -> None:
        body = json.dumps({"model": "plain", "stream": True, "max_tokens": 1000, "messages": []})
        head = (
            f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer "
            f"{key}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        _hold(port, (head + body).encode(), count=count, for_s=for_s, receive_buffer=4096)

    return act


def _hold(
    port: int, sent: bytes, *, count: int, for_s: float, receive_buffer: int | None = None
) -> None:
    with ExitStack() as stack:
        for _ in range(count):
            one = stack.enter_context(_connect(port, receive_buffer=receive_buffer))
            one.sendall(sent)
        time.sleep(for_s)


ATTACKS = {
    "f2-fields-1": Attack(act=_head_of(12_000_000, b"a:\r\n", sockets=1), settings={}),
    "f2-fields-10": Attack(act=_head_of(12_000_000, b"a:\r\n", sockets=10), settings={}),
    "f2-value-1": Attack(act=_one_value(30_000_000, sockets=1), settings={}),
    "f2-value-10": Attack(act=_one_value(30_000_000, sockets=10), settings={}),
    "f3-idle-320": Attack(act=_idle_sockets(320, 30.0), settings={}, descriptors=300),
    "f4-bodies-40": Attack(
        act=_unfinished_bodies(40, 20.0), settings={"TOLLGATE_MAX_STREAMS": "40"}
    ),
    "f4-streams-10": Attack(
        act=_unread_streams(10, 75.0), settings={"TOLLGATE_MAX_STREAMS": "40"}, held_bytes=10 * MIB
    ),
}


# ---- the stand


class Upstream:
    """Answers at once; a stream has no end."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            asked = b""
            while b"\r\n\r\n" not in asked or not asked.rstrip().endswith(b"}"):
                received = connection.recv(65_536)
                if not received:
                    return
                asked += received
            if b'"stream":true' in asked.replace(b" ", b""):
                connection.sendall(
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: "
                    b"close\r\n\r\n"
                )
                chunk = {"id": "1", "choices": [{"index": 0, "delta": {"content": "x" * 16_000}}]}
                for _ in itertools.count():
                    connection.sendall(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            body = json.dumps(
                {"id": "1", "object": "chat.completion", "choices": [], "usage": usage}
            ).encode()
            connection.sendall(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: "
                b"close\r\ncontent-length: %d\r\n\r\n" % len(body) + body
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A gateway with two teams' keys."""

    port: int
    pid: int
    keys: dict[str, str]
    database_url: str

    def resident_bytes(self) -> int:
        """Its memory."""
        return (
            int(Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1])
            * resource.getpagesize()
        )

    def chat(self, team: str) -> int:
        """The status of a plain request of a team, on a new connection; 0 without an answer."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        headers = {"authorization": f"Bearer {self.keys[team]}", "content-type": "application/json"}
        try:
            connection.request(
                "POST", CHAT, json.dumps({"model": "plain", "messages": []}), headers
            )
            return connection.getresponse().status
        except (OSError, HTTPException):
            return 0
        finally:
            connection.close()

    def events(self) -> int:
        """Return the number of usage events in Postgres."""
        with psycopg.connect(self.database_url) as connection:
            found = connection.execute(
                "SELECT count(*) FROM finance.usage_events WHERE team = 'blue'"
            ).fetchone()
            return int(found[0]) if found else 0


@contextlib.contextmanager
def running(attack: Attack, url: str, home: Path, upstream: Upstream) -> Iterator[Running]:
    """Run a fresh gateway on an existing database."""
    port, metrics_port = processes.free_ports(2)
    variables = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TOLLGATE_")},
        "TOLLGATE_HOME": str(home),
        "TOLLGATE_DATABASE_URL": url,
        "TOLLGATE_PORT": str(port),
        "TOLLGATE_METRICS_PORT": str(metrics_port),
        "TOLLGATE_SHED_LAG_S": "30",
        **attack.settings,
    }

    def tollgate(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "gateway.main", *arguments],
            env=variables,
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise SystemExit(f"tollgate {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    policy = home / "policy.yaml"
    policy.write_text(POLICY.format(port=upstream.port), encoding="utf-8")
    tollgate("db", "upgrade")
    tollgate("policy", "apply", str(policy), "--yes")
    keys = {
        team: json.loads(tollgate("key", "create", team, "--format", "json"))["key"]
        for team in ("red", "blue")
    }

    def limit() -> None:
        if attack.descriptors is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (attack.descriptors, attack.descriptors))

    with (home / "serve.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway.main", "serve"],
            env=variables,
            cwd=REPOSITORY,
            stdout=log,
            stderr=log,
            preexec_fn=limit,
        )
    try:
        until_s = time.monotonic() + 60
        while not processes.answers(f"http://127.0.0.1:{port}/readyz"):
            if process.poll() is not None or time.monotonic() > until_s:
                raise SystemExit(
                    f"The gateway did not start: {(home / 'serve.log').read_text()[-2000:]}"
                )
            time.sleep(0.1)
        yield Running(port=port, pid=process.pid, keys=keys, database_url=url)
    finally:
        processes.end(process)


# ---- the other callers' view


def probe(gateway: Running, until: Callable[[], bool]) -> tuple[Seen, int]:
    """Ask `/healthz` on one kept connection until then; also the most memory meanwhile."""
    seen, most = Seen([]), 0
    request = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
    connection = _connect(gateway.port)
    while not until():
        began_s = time.monotonic()
        try:
            connection.sendall(request)
            answer = HTTPResponse(connection)
            answer.begin()
            answer.read()
            seen.answers_s.append(time.monotonic() - began_s)
        except (OSError, HTTPException):
            seen.failed += 1
            connection.close()
            with contextlib.suppress(OSError):
                connection = _connect(gateway.port)
        most = max(most, gateway.resident_bytes())
        time.sleep(EVERY_S)
    connection.close()
    return seen, most


def measure(name: str, attack: Attack, gateway: Running) -> list[str]:
    """Run one attack, print its effect, and return the figures over their limits."""
    assert gateway.chat("blue") == 200
    done_s = time.monotonic() + IDLE_S
    idle, _ = probe(gateway, lambda: time.monotonic() > done_s)
    idle_bytes = gateway.resident_bytes()
    events = gateway.events()
    attacker = multiprocessing.get_context("fork").Process(
        target=attack.act, args=(gateway.port, gateway.keys["red"])
    )
    attacker.start()
    statuses: list[int] = []
    asking = threading.Thread(target=lambda: _ask_while(gateway, attacker, statuses))
    asking.start()
    during, most_bytes = probe(gateway, lambda: not attacker.is_alive())
    attacker.join()
    asking.join()
    time.sleep(AFTER_S)
    after_bytes = gateway.resident_bytes()
    served, asked = statuses.count(200), len(statuses)
    until_s = time.monotonic() + 16
    while gateway.chat("blue") != 200 and time.monotonic() < until_s:
        time.sleep(0.2)
    recovered_s = max(0.0, time.monotonic() - (until_s - 16))
    written = gateway.events() - events
    print(
        f"{name:14} memory {idle_bytes / MIB:.0f} MiB idle, {most_bytes / MIB:.0f} at most, "
        f"{after_bytes / MIB:.0f} {AFTER_S:.0f} s after · healthz p99 {idle.p99_s() * 1e3:.1f} ms "
        f"idle, {during.p99_s() * 1e3:.1f} during, slowest {during.slowest_s() * 1e3:.0f}, "
        f"{during.failed} of {len(during.answers_s) + during.failed} without an answer · blue "
        f"{served} of {asked} served on new connections, {written} written · a new caller "
        f"{recovered_s:.1f} s after",
        flush=True,
    )
    allowed_s = max(TIMES_IDLE * idle.p99_s(), P99_S)
    checks = {
        "memory after": after_bytes - idle_bytes <= MEMORY_BYTES,
        "memory during": most_bytes - idle_bytes <= MEMORY_BYTES + 2 * attack.held_bytes,
        f"healthz p99 over {allowed_s * 1e3:.0f} ms": during.p99_s() <= allowed_s,
        "a single healthz": during.slowest_s() <= SLOWEST_S,
        "a served connection was closed": during.failed == 0,
        "blue was not served": served == asked or attack.descriptors is not None,
        "no new caller within 16 s": recovered_s < 16,
    }
    return [f"{name}: {what}" for what, is_right in checks.items() if not is_right]


def _ask_while(
    gateway: Running, attacker: multiprocessing.process.BaseProcess, statuses: list[int]
) -> None:
    while attacker.is_alive():
        statuses.append(gateway.chat("blue"))
        time.sleep(0.2)


def main() -> int:
    """Run the named attacks, or all."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.attacks", description="The edge under attack."
    )
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help=", ".join(ATTACKS))
    chosen = parser.parse_args().attacks or list(ATTACKS)
    for name in chosen:
        if name not in ATTACKS:
            parser.error(f"{name} is none of {', '.join(ATTACKS)}")
    print(f"{machine.describe()}, commit {machine.commit()}")
    wrong: list[str] = []
    upstream = Upstream()
    for name in chosen:
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder) / "home"
            home.mkdir()
            home.parent.chmod(0o711)  # as root, Postgres runs as another user
            home.chmod(0o711)
            with (
                EmbeddedPostgres(home) as postgres,
                running(ATTACKS[name], postgres.start(), home, upstream) as gateway,
            ):
                wrong += measure(name, ATTACKS[name], gateway)
    for line in wrong:
        print(f"over the limit: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
