"""A real engine at its capacity: a route with a latency bound keeps it by spilling; the same route
without does not.

    python -m bench.spill [--seconds 60] [--clients 24] [--bound-ms 1500] [--write]

One vLLM on this machine's CPU with the tiny model, one `tollgate serve` with its own Postgres, and
a dearer API that makes tokens up and keeps its own book (`bench.stand.demo_upstream`). Two routes
have both deployments and prefer the cheaper one; one has a bound. The same callers, each asking
again as soon as it is answered, use both routes, there and back. Exit 1 if the bound is missed, if
it is kept without spilling, or if the books disagree.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import psycopg
from psycopg.rows import dict_row

from bench.books.spill_books import (
    API,
    BOUNDED,
    ENGINE,
    UNBOUNDED,
    Call,
    Phase,
    misses,
    table,
    wrongs,
)
from bench.demo_crash import DemoFailed, Gateway
from bench.stand import machine
from bench.stand.page import replace_between
from bench.stand.processes import answers, end, free_ports
from gateway.domain.deployments.engine_load import read_page
from gateway.storage.postgres.embedded import EmbeddedPostgres

REPOSITORY = Path(__file__).parents[1]
PAGE = REPOSITORY / "docs" / "routing.md"
MARKS = ("<!-- spill:begin, written by `python -m bench.spill --write` -->", "<!-- spill:end -->")
TEAM = "bench"
SEQUENCES = 2  # so few at once that callers on the same two cores fill it
# vLLM's processes wait for each other by spinning. On two cores, any other process on the same core
# is woken up to two seconds late (measured: Linux 6.18, callers, gateway and vLLM's own web server
# alike). In one process they do not wait: a token arrives 12 ms after its request instead of 700,
# and a third more requests are answered.
ENGINE_VARIABLES = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1"}
ENGINE_ARGUMENTS = ("--distributed-executor-backend", "uni", "--max-num-seqs", str(SEQUENCES))
ANSWER_TOKENS = 100  # a fifth of the bound: the bound limits a queue of several, not one answer
NO_VARIABLES: Mapping[str, str] = {}
ROOM_S = 10.0  # seconds that one caller alone asks first
ENGINE_WITHIN_S, WITHIN_S = 240.0, 60.0
ORDER = (
    UNBOUNDED,
    BOUNDED,
    BOUNDED,
    UNBOUNDED,
)  # there and back: neither profits from the earlier phase
FIRST_CONTENT = re.compile(rb'"content": ?"(?!")')  # the event with the role has an empty one

POLICY = """\
version: 1
regions: {{eu: [eu-de]}}
classes: {{internal: {{regions: [any]}}}}
deployments:
  - {{name: {engine}, provider: vllm, base_url: "{engine_url}/v1", model: tiny, region: eu-de, context_window: 4096,
     price: {{input_usd_per_mtok: 0.1, output_usd_per_mtok: 0.4}}}}
  - {{name: {api}, provider: openai_compatible, base_url: "{api_url}/v1", model: hosted, region: eu-de,
     price: {{input_usd_per_mtok: 1, output_usd_per_mtok: 4}}}}
routes:
  - {{name: {unbounded}, deployments: [{engine}, {api}], objective: cheapest}}
  - {{name: {bounded}, deployments: [{engine}, {api}], objective: cheapest, latency: {{ttft_p95_ms: {bound_ms}}}}}
teams:
  - {{name: {team}, cost_centre: CC-1, data_class: internal, routes: [{unbounded}, {bounded}]}}
"""  # noqa: E501


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it: 0 if it shows the expected result, 1 if not, 3 if it could not be run."""
    chosen = _arguments(arguments)
    load, *_ = os.getloadavg()
    try:
        with ExitStack() as stack:
            stand = Stand(stack, bound_ms=chosen.bound_ms)
            phases = asyncio.run(_phases(stand, chosen))
            entries = stand.entries()
            events = stand.events(
                {call.request_id for phase in phases for call in phase.calls if not call.problem}
            )
    except DemoFailed as failed:
        print(failed, file=sys.stderr)
        return 3
    room, *loaded = phases
    found = [wrong for phase in phases for wrong in wrongs(phase, events=events, entries=entries)]
    found += misses(room, loaded, bound_s=chosen.bound_ms / 1000)
    lines = [*_facts(chosen, load), "", *table(phases)]
    print("\n".join(lines))
    for line in found:
        print(f"WRONG {line}", file=sys.stderr)
    if chosen.write:
        replace_between(PAGE, *MARKS, lines=lines)
    return 1 if found else 0


# ---- the parts


@dataclass(frozen=True, slots=True)
class Cpu:
    """CPU seconds so far: of the engine, of the whole run, and of all programs on this machine."""

    at_s: float
    engine_s: float
    own_s: float
    all_s: float

    def shares_until(self, later: Cpu) -> tuple[float, float]:
        """Return shares of all cores in between: the engine's, and that of programs outside of
        the run.
        """
        cores_s = (later.at_s - self.at_s) * (os.cpu_count() or 1)
        strangers_s = (later.all_s - self.all_s) - (later.own_s - self.own_s)
        return (later.engine_s - self.engine_s) / cores_s, max(strangers_s / cores_s, 0.0)


class Stand:
    """Engine, API, Postgres and gateway, all separate; the owner of the stack ends them."""

    def __init__(self, stack: ExitStack, *, bound_ms: int) -> None:
        self._stack, self._pids = stack, [os.getpid()]
        home = Path(tempfile.mkdtemp(prefix="tollgate-spill-", dir="/tmp"))
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        home.chmod(0o711)  # as root, Postgres runs as another user
        self._engine, self.engine_url = self._start_engine(home)
        self._api_url = self._start_api()
        self._database_url = stack.enter_context(EmbeddedPostgres(home)).start()
        self._pids.append(int((home / "pg" / "data" / "postmaster.pid").read_text().split()[0]))
        self.gateway = self._start_gateway(home, bound_ms)
        self.key = self.gateway.keys[TEAM]

    def cpu(self) -> Cpu:
        """Return the CPU use until now."""
        own = set[int]().union(*(machine.tree(pid) for pid in self._pids))
        return Cpu(
            time.monotonic(),
            machine.cpu_s(machine.tree(self._engine.pid)),
            machine.cpu_s(own),
            machine.busy_s(),
        )

    def engine_finished(self) -> int:
        """Return the engine's own count of finished requests."""
        with urllib.request.urlopen(f"{self.engine_url}/metrics", timeout=10) as answer:
            return int(read_page(answer.read().decode(), model="tiny").finished or 0)

    def entries(self) -> list[dict[str, Any]]:
        """Return the API's book."""
        with urllib.request.urlopen(f"{self._api_url}/ledger", timeout=30) as answer:
            entries: list[dict[str, Any]] = json.loads(answer.read())["entries"]
            return entries

    def events(self, expected: AbstractSet[str]) -> list[dict[str, Any]]:
        """Return finance's events, once these requests are there, or after the time limit."""
        deadline_s = time.monotonic() + WITHIN_S
        with psycopg.connect(
            self._database_url, row_factory=dict_row, autocommit=True
        ) as connection:
            while True:
                events = connection.execute("SELECT * FROM finance.usage_events").fetchall()
                if (
                    expected <= {str(event["request_id"]) for event in events}
                    or time.monotonic() > deadline_s
                ):
                    return events
                time.sleep(0.2)

    def _start(
        self, argv: Sequence[str], output: Any, *, variables: Mapping[str, str] = NO_VARIABLES
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", *argv],
            env={**os.environ, **variables},
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output is not subprocess.PIPE else None,
            start_new_session=True,
        )
        self._stack.callback(end, process)
        self._pids.append(process.pid)
        return process

    def _start_engine(self, home: Path) -> tuple[subprocess.Popen[bytes], str]:
        """Start vLLM with the tiny model, and wait until it answers.

        Without a parser for thinking its first token is content.
        """
        (port,) = free_ports(1)
        url, log = f"http://127.0.0.1:{port}", home / "engine.log"
        with log.open("wb") as output:
            process = self._start(
                [
                    "engine",
                    "serve",
                    "--port",
                    str(port),
                    "--served-model-name",
                    "tiny",
                    "--reasoning-parser",
                    "none",
                    "--",
                    *ENGINE_ARGUMENTS,
                ],
                output,
                variables=ENGINE_VARIABLES,
            )
        deadline_s = time.monotonic() + ENGINE_WITHIN_S
        while not answers(f"{url}/health"):
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise DemoFailed(
                    f"The engine did not start:\n{log.read_text(errors='replace')[-2000:]}\n"
                    "It needs: python -m engine setup"
                )
            time.sleep(0.5)
        return process, url

    def _start_api(self) -> str:
        process = self._start(["bench.stand.demo_upstream"], subprocess.PIPE)
        assert process.stdout is not None, "it was asked for"
        return process.stdout.readline().decode().strip()

    def _start_gateway(self, home: Path, bound_ms: int) -> Gateway:
        port, metrics_port = free_ports(2)
        variables = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith("TOLLGATE_")
            },
            "TOLLGATE_HOME": str(home),
            "TOLLGATE_DATABASE_URL": self._database_url,
            "TOLLGATE_PORT": str(port),
            "TOLLGATE_METRICS_PORT": str(metrics_port),
        }
        gateway = Gateway(variables=variables, port=port, log=home / "serve.log")
        policy = home / "policy.yaml"
        policy.write_text(
            POLICY.format(
                engine=ENGINE,
                engine_url=self.engine_url,
                api=API,
                api_url=self._api_url,
                unbounded=UNBOUNDED,
                bounded=BOUNDED,
                bound_ms=bound_ms,
                team=TEAM,
            )
        )
        gateway.run("db", "upgrade")
        gateway.run("policy", "apply", str(policy), "--yes")
        gateway.keys[TEAM] = str(
            json.loads(gateway.run("key", "create", TEAM, "--format", "json"))["key"]
        )
        self._stack.callback(gateway.end, signal.SIGTERM)
        gateway.start()
        assert gateway.process is not None, "it was started"
        self._pids.append(gateway.process.pid)
        return gateway


# ---- the callers


async def _phases(stand: Stand, chosen: argparse.Namespace) -> list[Phase]:
    """Run one caller alone first, then all of them, by route."""
    random = Random(chosen.seed)
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    base_url = f"http://127.0.0.1:{stand.gateway.port}/v1"
    headers = {"authorization": f"Bearer {stand.key}"}
    async with httpx2.AsyncClient(
        base_url=base_url, headers=headers, timeout=300, limits=limits
    ) as client:
        await _ask(client, UNBOUNDED, random)  # the first one ever triggers late loading
        phases = [
            await _phase(
                stand,
                client,
                "one caller alone",
                UNBOUNDED,
                clients=1,
                seconds=ROOM_S,
                random=random,
            )
        ]
        for number, route in enumerate(ORDER, start=1):
            name = f"{number}. `{route}`"
            phases.append(
                await _phase(
                    stand,
                    client,
                    name,
                    route,
                    clients=chosen.clients,
                    seconds=chosen.seconds,
                    random=random,
                )
            )
            print(f"{name}: p95 {phases[-1].ttft_s(0.95):.2f} s", file=sys.stderr)
    return phases


async def _phase(
    stand: Stand,
    client: httpx2.AsyncClient,
    name: str,
    route: str,
    *,
    clients: int,
    seconds: float,
    random: Random,
) -> Phase:
    """Let callers ask one after the other for that long, and wait until the last is answered."""
    loop = asyncio.get_running_loop()
    finished, before, calls = stand.engine_finished(), stand.cpu(), list[Call]()
    until_s = loop.time() + seconds

    async def caller() -> None:
        while loop.time() < until_s:
            calls.append(await _ask(client, route, random))

    callers = [asyncio.create_task(caller()) for _ in range(clients)]
    await asyncio.sleep(seconds)
    engine_share, strangers_share = before.shares_until(stand.cpu())
    await asyncio.gather(*callers)
    return Phase(
        name=name,
        route=route,
        clients=clients,
        calls=calls,
        engine_finished=stand.engine_finished() - finished,
        engine_cpu_share=engine_share,
        strangers_cpu_share=strangers_share,
    )


async def _ask(client: httpx2.AsyncClient, route: str, random: Random) -> Call:
    """Send one streamed chat and wait for its end, good or bad."""
    content = f"Count down from {random.randrange(10, 100)}"
    # The model would stop earlier by itself: all answers have one length.
    body = {
        "model": route,
        "messages": [{"role": "user", "content": content}],
        "stream": True,
        "max_tokens": ANSWER_TOKENS,
        "ignore_eos": True,
    }
    began_s, call, received = time.perf_counter(), Call(), b""
    try:
        async with client.stream("POST", "/chat/completions", json=body) as answer:
            call = _call_from_headers(answer.headers)
            async for piece in answer.aiter_bytes():
                received += piece
                if call.ttft_s is None and FIRST_CONTENT.search(received):
                    call = replace(call, ttft_s=time.perf_counter() - began_s)
            status = answer.status_code
    except httpx2.HTTPError as error:
        return replace(call, problem=type(error).__name__)
    if status != 200:
        return replace(call, problem=f"status {status}")
    is_whole = received.endswith(b"data: [DONE]\n\n") and b'"error"' not in received
    return (
        call
        if is_whole and call.ttft_s is not None
        else replace(call, problem="a stream without its end")
    )


def _call_from_headers(headers: Mapping[str, str]) -> Call:
    return Call(
        request_id=headers.get("x-request-id", ""),
        deployment=headers.get("x-tollgate-deployment", ""),
        degraded=headers.get("x-tollgate-degraded"),
    )


# ---- output


def _facts(chosen: argparse.Namespace, load: float) -> list[str]:
    return [
        f"- machine: {machine.describe()}",
        f"- commit: {machine.commit()}",
        f"- date: {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}",
        f"- command: python -m bench.spill --seconds {chosen.seconds:g} --clients {chosen.clients} "
        f"--bound-ms {chosen.bound_ms}, seed {chosen.seed}",
        f"- load average as it began: {load:.2f}",
        f"- engine: vLLM on CPU, the tiny model, {SEQUENCES} sequences at once; answers of "
        f"{ANSWER_TOKENS} tokens; bound of `{BOUNDED}`: TTFT p95 ≤ {chosen.bound_ms / 1000:g} s",
    ]


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="how long callers ask in each phase"
    )
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument(
        "--bound-ms", type=int, default=1500, help="the bound of the route that has one"
    )
    parser.add_argument("--seed", type=int, default=6)
    parser.add_argument("--write", action="store_true", help="put the table into docs/routing.md")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
