"""Proves the books of a self-hosted engine on one run of the real vLLM.

`python -m bench.cost_truth`: three teams send requests through a gateway to the shipped tiny model.
Then an invoice, a file, is imported for the hour before the run, which no gateway watched, and for
the hour of the run. The engine's own token counters must equal the ledger, and teams + empty +
underfilled + variance the invoice, to the nano-dollar. `--write` puts the result into
docs/engine-report.md.
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
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import psycopg
from psycopg.rows import dict_row

from bench.demo_crash import DemoFailed, Gateway
from bench.stand import machine
from bench.stand.page import replace_between
from bench.stand.processes import free_ports
from gateway.storage.postgres.embedded import EmbeddedPostgres

REPOSITORY = Path(__file__).parents[1]
PAGE = REPOSITORY / "docs" / "engine-report.md"
OPENING, CLOSING = "<!-- bench: cost-truth -->", "<!-- /bench: cost-truth -->"
TEAMS = ("payments", "search", "support")
WITHIN_S = 300.0
ENGINE_WITHIN_S = 600
INVOICE_USD, GPU_HOURS = Decimal("2.20"), 2  # of two hours: a tenth above the declared rate
POLICY = """\
version: 1
regions: {{eu: [eu-de]}}
classes: {{internal: {{regions: [any]}}}}
deployments:
  - {{name: tiny, provider: vllm, base_url: "{url}/v1", model: tiny, region: eu-de, context_window: 4096,
     gpu: {{type: CPU, count: 1, usd_per_gpu_hour: 1, target_utilisation: 0.5,
           input_tok_per_s: 4000, output_tok_per_s: 400}}}}
routes: [{{name: assistant, deployments: [tiny]}}]
teams:
{teams}"""  # noqa: E501
LINES = ("applied", "empty", "underfilled", "variance")
EVENTS = "SELECT count(*) AS found FROM finance.usage_events"
# Without it the rate of the hour is unknown, and the dearer invoice has no variance.
UPTIME = "SELECT count(*) AS found FROM finance.gpu_cost WHERE estimated_usd > 0"
UPTIME_WITHIN_S = 200.0  # the gateway looks once a minute


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """The books after a run: the engine's counters, the ledger's sums and the hours of the bill."""

    counted: Mapping[str, int]
    metered: Mapping[str, int]
    teams: Mapping[str, Decimal]
    charged: Mapping[str, Decimal]
    hours: Sequence[Mapping[str, Any]]
    invoice_usd: Decimal

    def findings(self) -> list[str]:
        """Return everything that does not add up."""
        found = []
        if self.counted != self.metered:
            found.append(f"engine {dict(self.counted)}, ledger {dict(self.metered)}")
        if self.teams != self.charged:
            found.append(f"applied by team {self.teams}, events of the teams {self.charged}")
        for hour in self.hours:
            if sum(hour[f"{line}_usd"] for line in LINES) != hour["bill_usd"]:
                found.append(f"the hour {hour['hour']} does not add up")
            if min(hour["empty_usd"], hour["underfilled_usd"]) < 0:
                found.append(f"the hour {hour['hour']} has negative idle time")
        if sum(hour["bill_usd"] for hour in self.hours) != self.invoice_usd:
            found.append("the hours do not add up to the invoice")
        first = self.hours[0]
        if first["empty_usd"] != first["bill_usd"]:
            found.append("the hour without a request is not wholly empty")
        if sum(self.teams.values()) != sum(hour["applied_usd"] for hour in self.hours):
            found.append("the teams do not add up to the applied lines")
        return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run once. Returns 0 if all adds up, 1 if not, 3 if it could not be run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=90)
    parser.add_argument("--concurrency", type=int, default=6)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    chosen = parser.parse_args(arguments)
    began_s = time.monotonic()
    try:
        books = run(chosen)
    except DemoFailed as failed:
        print(failed, file=sys.stderr)
        return 3
    findings = books.findings()
    facts = {
        "machine": machine.describe(),
        "commit": machine.commit(),
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "command": f"python -m bench.cost_truth --requests {chosen.requests} --concurrency "
        f"{chosen.concurrency} --seed {chosen.seed} --write",
        "took": f"{time.monotonic() - began_s:.0f} s",
    }
    lines = _report(books, findings)
    print("\n".join(lines))
    if chosen.write and not findings:
        facts_lines = [f"- {name}: {value}" for name, value in facts.items()]
        replace_between(PAGE, OPENING, CLOSING, lines=[*facts_lines, "", *lines])
    return 1 if findings else 0


def run(chosen: argparse.Namespace) -> Books:
    """Start everything, send the requests, import the invoice, and return the books."""
    with ExitStack() as stack:
        home = Path(tempfile.mkdtemp(prefix="tollgate-truth-", dir="/tmp"))
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        home.chmod(0o711)  # as root, Postgres runs as another user
        engine = _engine(stack, home)
        url = stack.enter_context(EmbeddedPostgres(home)).start()
        gateway = _gateway(stack, home, url, engine)
        before = _counters(engine)
        asyncio.run(_traffic(gateway, chosen))
        _wait_for(url, EVENTS, chosen.requests, within_s=60)
        after = _counters(engine)
        _wait_for(url, UPTIME, 1, within_s=UPTIME_WITHIN_S)
        _import_bill(gateway, home, url)
        counted = {name: after[name] - before[name] for name in before}
        return _books(url, gateway, counted)


def _engine(stack: ExitStack, home: Path) -> str:
    """Start the real engine with the shipped model; return its address once it answers."""
    (port,) = free_ports(1)
    program = [sys.executable, "-m", "engine"]
    with (home / "engine.log").open("wb") as output:
        process = subprocess.Popen(
            [*program, "serve", "--port", str(port)],
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

    def end() -> None:
        process.send_signal(signal.SIGTERM)
        process.wait(120)

    stack.callback(end)
    url = f"http://127.0.0.1:{port}"
    waited = subprocess.run(
        [*program, "wait", "--url", url, "--timeout", str(ENGINE_WITHIN_S)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    if waited.returncode:
        log = (home / "engine.log").read_text(errors="replace")
        raise DemoFailed(f"The engine did not start:\n{log[-2000:]}")
    return url


def _gateway(stack: ExitStack, home: Path, url: str, engine: str) -> Gateway:
    """Start a gateway with one deployment and a key for each team."""
    port, metrics_port = free_ports(2)
    own = {name: value for name, value in os.environ.items() if not name.startswith("TOLLGATE_")}
    settings = {"HOME": home, "DATABASE_URL": url, "PORT": port, "METRICS_PORT": metrics_port}
    variables = own | {f"TOLLGATE_{name}": str(value) for name, value in settings.items()}
    gateway = Gateway(
        variables=variables | {"TOLLGATE_WORKERS": "1"}, port=port, log=home / "gateway.log"
    )
    teams = "".join(
        f"  - {{name: {team}, cost_centre: CC-{number}, data_class: internal, "
        "routes: [assistant]}\n"
        for number, team in enumerate(TEAMS, 1)
    )
    policy = home / "policy.yaml"
    policy.write_text(POLICY.format(url=engine, teams=teams))
    gateway.run("db", "upgrade")
    gateway.run("policy", "apply", str(policy), "--yes", "--no-wait")
    for team in TEAMS:
        made = json.loads(gateway.run("key", "create", team, "--format", "json"))
        gateway.keys[team] = made["key"]
    stack.callback(gateway.end, signal.SIGTERM)
    gateway.start()
    return gateway


async def _traffic(gateway: Gateway, chosen: argparse.Namespace) -> None:
    """Send the requests, so many at once, then leave the engine idle for a while."""
    random = Random(chosen.seed)
    asked = [(random.choice(TEAMS), random.randrange(3, 60)) for _ in range(chosen.requests)]
    room = asyncio.Semaphore(chosen.concurrency)
    async with httpx2.AsyncClient(
        base_url=f"http://127.0.0.1:{gateway.port}/v1", timeout=WITHIN_S
    ) as client:

        async def ask(number: int, team: str, start: int) -> None:
            body = {
                "model": "assistant",
                "messages": [{"role": "user", "content": f"Count down from {start}"}],
                "max_tokens": 200,
                "stream": number % 2 == 0,
            }
            headers = {"authorization": f"Bearer {gateway.keys[team]}"}
            async with (
                room,
                client.stream("POST", "/chat/completions", json=body, headers=headers) as answer,
            ):
                text = b"".join([part async for part in answer.aiter_bytes()])
                if answer.status_code != 200:
                    raise DemoFailed(f"A request failed: {text.decode(errors='replace')[:500]}")

        await asyncio.gather(*(ask(n, team, start) for n, (team, start) in enumerate(asked)))


def _counters(engine: str) -> dict[str, int]:
    """Return the engine's own counts of prompt and generated tokens."""
    with urllib.request.urlopen(f"{engine}/metrics", timeout=30) as answer:
        page = answer.read().decode()
    return {
        name: round(
            sum(
                float(value)
                for value in re.findall(
                    rf"^vllm:{name}_tokens_total(?:\{{.*\}})? (\S+)$", page, re.MULTILINE
                )
            )
        )
        for name in ("prompt", "generation")
    }


def _wait_for(url: str, statement: str, least: int, *, within_s: float) -> None:
    """Wait until a count is large enough. Raises `DemoFailed` if it is not in time."""
    deadline_s = time.monotonic() + within_s
    while True:
        found = _rows(url, statement)[0]["found"]
        if found >= least:
            return
        if time.monotonic() > deadline_s:
            raise DemoFailed(f"Only {found} of {least} after {within_s:.0f} s: {statement}")
        time.sleep(0.5)


def _import_bill(gateway: Gateway, home: Path, url: str) -> None:
    """Import the invoice of the hour before the first request and of the run's own, twice."""
    first = _rows(url, "SELECT min(occurred_at) AS first FROM finance.usage_events")[0]["first"]
    hour = first.replace(minute=0, second=0, microsecond=0)
    bill = home / "invoice.csv"
    bill.write_text(
        "deployment,from,to,gpu_hours,amount,currency,invoice_id\n"
        f"tiny,{hour - timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ},"
        f"{hour + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ},{GPU_HOURS},{INVOICE_USD},USD,INV-1\n"
    )
    for duplicates in (0, 1):
        text = gateway.run("engine", "bill", "import", str(bill), "--yes", "--format", "json")
        if json.loads(text)["duplicates"] != duplicates:
            raise DemoFailed(f"The invoice was imported wrongly: {text}")


def _books(url: str, gateway: Gateway, counted: Mapping[str, int]) -> Books:
    """Return the books: the report's lines, and the same from the events."""
    (sums,) = _rows(
        url,
        "SELECT sum(input_tokens)::bigint AS prompt, sum(output_tokens)::bigint AS generation "
        "FROM finance.usage_events",
    )
    charged = _rows(url, "SELECT team, sum(cost_usd) AS usd FROM finance.usage_events GROUP BY 1")
    report = json.loads(gateway.run("report", "gpu-bill", "--format", "json"), parse_float=Decimal)
    hours = _rows(url, "SELECT * FROM finance.gpu_cost WHERE bill_usd IS NOT NULL ORDER BY hour")
    return Books(
        counted=counted,
        metered=sums,
        teams={
            row["team"]: Decimal(row["amount_usd"])
            for row in report["rows"]
            if row["line"] == "applied"
        },
        charged={row["team"]: row["usd"] for row in charged},
        hours=hours,
        invoice_usd=INVOICE_USD,
    )


def _rows(url: str, statement: str) -> list[dict[str, Any]]:
    """Run one SELECT."""
    with psycopg.connect(url, row_factory=dict_row) as connection:
        return connection.execute(statement.encode()).fetchall()


def _report(books: Books, findings: Sequence[str]) -> list[str]:
    """Return the result as lines of Markdown."""
    table = [
        "| hour (UTC) | bill | applied | empty | underfilled | variance |",
        "|---|---|---|---|---|---|",
        *(
            f"| {hour['hour']:%H:%M} | "
            + " | ".join(f"{hour[f'{name}_usd']:.9f}" for name in ("bill", *LINES))
            + " |"
            for hour in books.hours
        ),
    ]
    teams = ", ".join(f"{team} {amount:.9f}" for team, amount in sorted(books.teams.items()))
    return [
        f"- tokens by the engine's own counters: {books.counted['prompt']:,} prompt, "
        f"{books.counted['generation']:,} generated; in the ledger: {books.metered['prompt']:,} "
        f"and {books.metered['generation']:,}",
        f"- applied by team, USD: {teams}",
        f"- invoice {books.invoice_usd} USD, the declared rate of its hours 2 USD; imported twice, "
        "counted once",
        f"- findings: {'; '.join(findings) or 'none'}",
        "",
        *table,
    ]


if __name__ == "__main__":
    sys.exit(main())
