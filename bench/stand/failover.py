"""A gateway before engines of which one is killed: its load, and the fate of each request beside
the ledger and the engines' own counters.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Literal

import httpx2
import psycopg

from bench.demo_crash import DemoFailed, Gateway
from bench.stand.processes import free_ports
from gateway.storage.postgres.embedded import EmbeddedPostgres

TEAM = "payments"
WITHIN_S, SETTLED_WITHIN_S = 120.0, 60.0
Fate = Literal["answered", "cut", "lost"]
"""`cut`: the answer had begun and did not end well. `lost`: an error before its first byte."""

POLICY = """\
version: 1
regions: {{eu: [eu-de]}}
classes: {{internal: {{regions: [any]}}}}
deployments:
{deployments}routes: [{{name: assistant, deployments: [{names}]}}]
teams: [{{name: payments, cost_centre: CC-1, data_class: internal, routes: [assistant]}}]
"""
DEPLOYMENT = (
    '  - {{name: {name}, group: tiny, provider: vllm, base_url: "{url}/v1", model: tiny, '
    "region: eu-de, native: [chat, completions], context_window: 4096, "
    "price: {{input_usd_per_mtok: 1, output_usd_per_mtok: 4}}}}\n"
)
LEDGER = """\
SELECT count(DISTINCT request_id) AS requests, coalesce(sum(input_tokens), 0)::bigint AS prompt,
       coalesce(sum(output_tokens), 0)::bigint AS generation
FROM finance.usage_events"""
FATE_HEADS = ["phase", "requests", "answered", "cut", "lost", "slowest"]
OUTCOMES = "SELECT outcome, count(*) FROM finance.usage_events GROUP BY 1 ORDER BY 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Tokens of prompts and of answers."""

    prompt: int
    generation: int

    def __sub__(self, other: Tokens) -> Tokens:
        """Return the tokens since another count."""
        return Tokens(
            prompt=self.prompt - other.prompt, generation=self.generation - other.generation
        )

    def __add__(self, other: Tokens) -> Tokens:
        """Return the tokens of both."""
        return Tokens(
            prompt=self.prompt + other.prompt, generation=self.generation + other.generation
        )

    def __str__(self) -> str:
        """Return both counts as words."""
        return f"{self.prompt:,} prompt, {self.generation:,} generated"


@dataclass(slots=True)
class Tally:
    """The fates of the requests of one phase, and the longest time without an answer."""

    fates: Counter[Fate] = field(default_factory=Counter)
    slowest_s: float = 0.0
    errors: list[str] = field(default_factory=list)

    @property
    def sent(self) -> int:
        """Return the number of requests."""
        return sum(self.fates.values())


@dataclass(frozen=True, slots=True)
class Ledger:
    """A gateway's usage events in its Postgres."""

    url: str

    def requests_and_tokens(self) -> tuple[int, Tokens]:
        """Return the number of requests with an event, and the tokens of all attempts."""
        with psycopg.connect(self.url) as connection:
            row = connection.execute(LEDGER).fetchone()
        assert row is not None
        return row[0], Tokens(prompt=row[1], generation=row[2])

    def outcomes(self) -> dict[str, int]:
        """Return the number of attempts by outcome."""
        with psycopg.connect(self.url) as connection:
            return {str(name): int(count) for name, count in connection.execute(OUTCOMES)}

    def settled(self, requests: int) -> Tokens:
        """Wait until so many requests have an event; return the tokens. Raises `DemoFailed`."""
        deadline_s = time.monotonic() + SETTLED_WITHIN_S
        while True:
            found, tokens = self.requests_and_tokens()
            if found == requests:
                return tokens
            if time.monotonic() > deadline_s:
                raise DemoFailed(f"{requests} requests were sent, {found} are in the ledger.")
            time.sleep(0.5)


def start_gateway(
    stack: ExitStack, home: Path, entrances: Mapping[str, str]
) -> tuple[Gateway, Ledger]:
    """Start a gateway whose one route has a deployment for each entrance, in their order."""
    url = stack.enter_context(EmbeddedPostgres(home)).start()
    port, metrics_port = free_ports(2)
    own = {name: value for name, value in os.environ.items() if not name.startswith("TOLLGATE_")}
    settings = {"HOME": home, "DATABASE_URL": url, "PORT": port, "METRICS_PORT": metrics_port}
    variables = own | {f"TOLLGATE_{name}": str(value) for name, value in settings.items()}
    gateway = Gateway(
        variables=variables | {"TOLLGATE_WORKERS": "1"}, port=port, log=home / "gateway.log"
    )
    policy = home / "policy.yaml"
    lines = "".join(DEPLOYMENT.format(name=name, url=at) for name, at in entrances.items())
    policy.write_text(POLICY.format(deployments=lines, names=", ".join(entrances)))
    gateway.run("db", "upgrade")
    gateway.run("policy", "apply", str(policy), "--yes", "--no-wait")
    made = json.loads(gateway.run("key", "create", TEAM, "--format", "json"))
    gateway.keys[TEAM] = made["key"]
    stack.callback(gateway.end, signal.SIGTERM)
    gateway.start()
    return gateway, Ledger(url)


async def load(
    gateway: Gateway,
    *,
    clients: int,
    seconds: float,
    seed: int,
    strike: tuple[float, Callable[[], object]] | None = None,
) -> Tally:
    """Send requests from so many clients, each its next one when the last has ended, half of them
    streams. `strike` is called after its seconds.
    """
    tally, until_s = Tally(), time.monotonic() + seconds
    async with httpx2.AsyncClient(
        base_url=f"http://127.0.0.1:{gateway.port}/v1",
        timeout=WITHIN_S,
        headers={"authorization": f"Bearer {gateway.keys[TEAM]}"},
    ) as client:

        async def work(number: int) -> None:
            random, is_stream = Random(seed * 1000 + number), number % 2 == 0
            while time.monotonic() < until_s:
                began_s = time.monotonic()
                fate, error = await _ask(client, random.randrange(20, 60), is_stream=is_stream)
                tally.slowest_s = max(tally.slowest_s, time.monotonic() - began_s)
                tally.fates[fate] += 1
                if error:
                    tally.errors.append(error)
                is_stream = not is_stream

        async def hit() -> None:
            if strike is not None:
                await asyncio.sleep(strike[0])
                await asyncio.to_thread(strike[1])

        await asyncio.gather(hit(), *(work(number) for number in range(clients)))
    return tally


async def _ask(client: httpx2.AsyncClient, start: int, *, is_stream: bool) -> tuple[Fate, str]:
    """Send one request; return its fate, and the error if there is one."""
    body: dict[str, Any] = {
        "model": "assistant",
        "messages": [{"role": "user", "content": f"Count down from {start}"}],
        "max_tokens": 200,
        "temperature": 0,
        "stream": is_stream,
    }
    text = b""
    try:
        async with client.stream("POST", "/chat/completions", json=body) as answer:
            async for part in answer.aiter_bytes():
                text += part
            status = answer.status_code
    except httpx2.HTTPError as error:
        return ("cut" if text else "lost"), repr(error)
    if status != 200:
        return "lost", f"{status} {text.decode(errors='replace')[:300]}"
    if re.search(rb'"finish_reason": ?"(stop|length)"', text) and b'"error"' not in text:
        return "answered", ""
    return "cut", text[-300:].decode(errors="replace")


def settled_counters(read: Callable[[], Tokens], *, still_s: float = 3.0) -> Tokens:
    """Return an engine's counters once they have not changed for `still_s`."""
    last, since_s = read(), time.monotonic()
    while time.monotonic() - since_s < still_s:
        time.sleep(0.25)
        if (now := read()) != last:
            last, since_s = now, time.monotonic()
    return last


def token_counters(page: str) -> Tokens:
    """Return the sums of vLLM's token counters on a metrics page, vLLM's own or Ray's."""

    def total(name: str) -> int:
        # Ray exports a counter a second time, as a gauge without the suffix.
        line = rf"^(?:ray_)?vllm[:_]{name}_tokens_total(?:\{{.*\}})? (\S+)$"
        return round(sum(float(value) for value in re.findall(line, page, re.MULTILINE)))

    return Tokens(prompt=total("prompt"), generation=total("generation"))


class LastReport:
    """The last counters of an engine that is going to be killed, read five times a second."""

    def __init__(self, page: Callable[[], str]) -> None:
        """Begin to read."""
        self._page, self._is_over = page, threading.Event()
        self.last = token_counters(page())
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        """Read until the engine is gone or `stop`. Runs in the thread."""
        while not self._is_over.wait(0.2):
            try:
                self.last = token_counters(self._page())
            except (OSError, ValueError):
                return

    def settled(self) -> Tokens:
        """Return the counters once they do not change."""
        return settled_counters(lambda: self.last)

    def stop(self) -> None:
        """Read no more."""
        self._is_over.set()
        self._thread.join()


def fate_rows(phases: Sequence[tuple[str, Tally]]) -> list[list[str]]:
    """Return the rows of a table: the phase, the requests and their fates."""
    fates: tuple[Fate, ...] = ("answered", "cut", "lost")
    return [
        [
            name,
            str(tally.sent),
            *(str(tally.fates[fate]) for fate in fates),
            f"{tally.slowest_s:.1f} s",
        ]
        for name, tally in phases
    ]
