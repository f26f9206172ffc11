"""Kills a gateway in mid-stream and shows that the ledger lost nothing: `make demo-crash`.

A gateway runs with its own Postgres in a temporary home, and an upstream that keeps its own book.
When the gateway gets SIGKILL, some requests are finished and many streams are running, some without
a first token. It is started again on the same home. Then every request in the upstream's book must
be in the ledger once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import psycopg
from psycopg.rows import dict_row

from bench.books.demo_crash_books import Outcome, compare
from bench.stand.processes import answers, free_ports
from gateway.storage.postgres.embedded import EmbeddedPostgres

REPOSITORY = Path(__file__).parents[1]
TEAMS = ("payments", "search")
STREAM_TOKENS, PLAIN_TOKENS = 400, 30
WITHIN_S = 60.0

POLICY = """\
version: 1
regions: {{eu: [eu-de]}}
classes: {{internal: {{regions: [any]}}}}
deployments:
  - {{name: own, provider: vllm, base_url: "{upstream}/v1", model: own, region: eu-de, price: {price}}}
  - {{name: hosted, provider: openai_compatible, base_url: "{upstream}/v1", model: hosted, region: eu-de,
     price: {price}}}
routes:
  - {{name: own, deployments: [own]}}
  - {{name: hosted, deployments: [hosted]}}
teams:
  - {{name: payments, cost_centre: CC-1, data_class: internal, routes: [own, hosted]}}
  - {{name: search, cost_centre: CC-2, data_class: internal, routes: [own, hosted]}}
"""  # noqa: E501
PRICE = "{input_usd_per_mtok: 1, output_usd_per_mtok: 4}"


class DemoFailed(Exception):
    """The demo could not be run; the message names the place to look."""


@dataclass
class Gateway:
    """`tollgate serve` on one home, and the keys of its teams."""

    variables: dict[str, str]
    port: int
    log: Path
    process: subprocess.Popen[bytes] | None = None
    keys: dict[str, str] = field(default_factory=dict)

    def run(self, *arguments: str) -> str:
        """Run one command on the same home."""
        done = subprocess.run(
            [sys.executable, "-m", "gateway.main", *arguments],
            env=self.variables,
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise DemoFailed(f"tollgate {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def start(self) -> None:
        """Start it and wait until it takes traffic."""
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gateway.main", "serve"],
                env=self.variables,
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        deadline_s = time.monotonic() + WITHIN_S
        while not answers(f"http://127.0.0.1:{self.port}/readyz"):
            if self.process.poll() is not None or time.monotonic() > deadline_s:
                raise DemoFailed(f"The gateway did not start:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.05)

    def end(self, how: signal.Signals) -> None:
        """Send a signal to it and to its workers, and wait for its end."""
        if self.process is not None and self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, how)
            self.process.wait(60)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo.

    Returns 0 if nothing was lost, doubled or wrong, 1 if something was, 3 if it could not be run.
    """
    chosen = _arguments(arguments)
    print(
        f"seed {chosen.seed}: {chosen.plain} plain requests, then {chosen.streams} streams and "
        "kill -9"
    )
    try:
        found, times = run(chosen)
    except DemoFailed as failed:
        print(failed, file=sys.stderr)
        return 3
    print(_text(found, times, sent=chosen.plain + chosen.streams))
    return 0 if found.is_good else 1


def run(chosen: argparse.Namespace) -> tuple[Outcome, dict[str, float]]:
    """Run the demo once and compare the books."""
    with ExitStack() as stack:
        home = Path(tempfile.mkdtemp(prefix="tollgate-crash-", dir="/tmp"))
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        home.chmod(0o711)  # as root, Postgres runs as another user
        upstream = _start_upstream(stack)
        url = stack.enter_context(EmbeddedPostgres(home)).start()
        gateway = _prepared(home, url, upstream)
        stack.callback(gateway.end, signal.SIGTERM)
        gateway.start()
        asyncio.run(_traffic(gateway, chosen))
        began_s = time.monotonic()
        gateway.start()
        ready_s = time.monotonic() - began_s
        entries = _entries(upstream)
        events = _events(url, entries)
        written_s = time.monotonic() - began_s
        return compare(entries, events), {"ready again": ready_s, "all written": written_s}


async def _traffic(gateway: Gateway, chosen: argparse.Namespace) -> None:
    """Send everything and kill the gateway in the middle."""
    random = Random(chosen.seed)
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx2.AsyncClient(
        base_url=f"http://127.0.0.1:{gateway.port}/v1", timeout=60, limits=limits
    ) as client:
        tasks = [
            asyncio.create_task(_ask(client, gateway, random, stream=False))
            for _ in range(chosen.plain)
        ]
        await asyncio.gather(*tasks)
        tasks = []
        for _ in range(chosen.streams):
            tasks.append(
                asyncio.create_task(_ask(client, gateway, random, stream=random.random() < 0.9))
            )
            # The last ones have no token yet at the kill.
            await asyncio.sleep(chosen.over_s / chosen.streams)
        await asyncio.to_thread(gateway.end, signal.SIGKILL)
        await asyncio.gather(*tasks)


async def _ask(
    client: httpx2.AsyncClient, gateway: Gateway, random: Random, *, stream: bool
) -> None:
    team, model = random.choice(TEAMS), random.choice(("own", "own", "hosted"))
    content = " ".join("word" for _ in range(random.randrange(5, 60)))
    body = {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "stream": stream,
        "max_tokens": STREAM_TOKENS if stream else PLAIN_TOKENS,
    }
    headers = {"authorization": f"Bearer {gateway.keys[team]}"}
    # The kill ends the running requests, which is the point of the demo.
    with suppress(httpx2.HTTPError):
        async with client.stream("POST", "/chat/completions", json=body, headers=headers) as answer:
            async for _ in answer.aiter_bytes():
                pass


def _start_upstream(stack: ExitStack) -> str:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.stand.demo_upstream"],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    stack.callback(process.wait)
    stack.callback(process.terminate)
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


def _prepared(home: Path, url: str, upstream: str) -> Gateway:
    """Return a gateway with its tables, policy and keys, not yet started."""
    port, metrics_port = free_ports(2)
    variables = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TOLLGATE_")},
        "TOLLGATE_HOME": str(home),
        "TOLLGATE_DATABASE_URL": url,
        "TOLLGATE_PORT": str(port),
        "TOLLGATE_METRICS_PORT": str(metrics_port),
    }
    gateway = Gateway(variables=variables, port=port, log=home / "serve.log")
    policy = home / "policy.yaml"
    policy.write_text(POLICY.format(upstream=upstream, price=PRICE))
    gateway.run("db", "upgrade")
    gateway.run("policy", "apply", str(policy), "--yes")
    for team in TEAMS:
        gateway.keys[team] = str(
            json.loads(gateway.run("key", "create", team, "--format", "json"))["key"]
        )
    return gateway


def _entries(upstream: str) -> list[dict[str, Any]]:
    """Return the upstream's book, once it has noticed that all its callers left."""
    deadline_s = time.monotonic() + WITHIN_S
    while True:
        with urllib.request.urlopen(f"{upstream}/ledger", timeout=10) as answer:
            entries: list[dict[str, Any]] = json.loads(answer.read())["entries"]
        if not any(entry["is_open"] for entry in entries):
            return entries
        if time.monotonic() > deadline_s:
            raise DemoFailed("The upstream still works for callers that are dead.")
        time.sleep(0.05)


def _events(url: str, entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return finance's events, once they cover the upstream's book, or after the time limit."""
    expected = {entry["request_id"] for entry in entries}
    deadline_s = time.monotonic() + WITHIN_S
    with psycopg.connect(url, row_factory=dict_row, autocommit=True) as connection:
        while True:
            events = connection.execute("SELECT * FROM finance.usage_events").fetchall()
            if (
                expected <= {str(event["request_id"]) for event in events}
                or time.monotonic() > deadline_s
            ):
                return events
            time.sleep(0.1)


def _text(found: Outcome, times: dict[str, float], *, sent: int) -> str:
    """Return the result for people."""
    rows = [
        ("requests sent", f"{sent}"),
        ("requests the upstream saw", f"{found.entries}"),
        (
            "events in the ledger",
            f"{found.events} ({found.not_reached} of them never reached the upstream)",
        ),
        ("lost", f"{found.lost}"),
        ("doubled", f"{found.doubled}"),
        ("with the upstream's final figure", f"{found.exact}"),
        ("derived from the last running figure", f"{found.derived}"),
        ("unknown, at their hold", f"{found.unknown} (${found.held_usd:f} held)"),
        *((f"gateway {name} after", f"{seconds:.1f} s") for name, seconds in times.items()),
    ]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {value}" for name, value in rows]
    lines += [
        "",
        f"{'team':<10} {'made':>8} {'charged':>8} {'unknown':>8} {'not noted':>10}   tokens, "
        "both books",
    ]
    for name, team in sorted(found.teams.items()):
        late = team.made - team.charged - team.made_for_unknown
        lines.append(
            f"{name:<10} {team.made:>8} {team.charged:>8} {team.made_for_unknown:>8} {late:>10}"
        )
    lines += [
        "",
        "not noted: made in the last moment before the kill, after the last running figure was "
        "written down.",
    ]
    lines += [f"WRONG {wrong}" for wrong in found.wrong]
    lines.append(
        "Nothing was lost, nothing was doubled."
        if found.is_good
        else "The ledger is wrong: see above."
    )
    return "\n".join(lines)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.demo_crash", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--seed", type=int, default=20261121)
    parser.add_argument("--plain", type=int, default=40, help="requests that end before the kill")
    parser.add_argument(
        "--streams", type=int, default=120, help="requests that are running at the kill"
    )
    parser.add_argument("--over-s", type=float, default=3.0, help="how long it takes to start them")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
