"""The time to decide a month of past traffic again: `tollgate policy plan --replay 30d`, as users
run it.

    python -m bench.replay [--events 1000000] [--seed 5] [--write]

A separate Postgres gets that many requests of thirty days by one INSERT, each with a real event's
record of its decision, and one in a hundred with a failed attempt before. Then the command runs as
a process, once without budgets and once with two hard ones per team. Its output is compared with
SQL's counts of the same rows: a plan that left something out would be quick as well.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import psycopg

from bench.stand import machine
from bench.stand.page import write_result
from gateway.storage.ledger import rollups
from gateway.storage.postgres import partitions
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.embedded import EmbeddedPostgres

REPOSITORY = Path(__file__).parents[1]
PAST = Path(__file__).with_suffix(".sql")
FREE, LIMITED = "without budgets", "two hard budgets a team"
MOST_S = 60.0
DAYS = 30
# at the window's beginning, which moves on while the events are made
LEFT_OUT = timedelta(minutes=30)
KEYS_A_TEAM = 12
# Of all teams' requests, for each team.
MONTH_USD_A_REQUEST, DAY_USD_A_REQUEST = (
    Decimal("0.0005"),
    Decimal("0.00004"),
)
LOOK_EVERY_S = 0.05

# Whole nano-dollars per token, so that SQL's sums need no rounding: input, cached input, output in
# USD per million.
DEPLOYMENTS = {
    "own-eu": ("eu-de", "0.25", "0.025", "1"),
    "partner-fr": ("eu-fr", "0.8", "0.2", "3.2"),
    "large-eu": ("eu-de", "1.25", "0.125", "10"),
    "large-us": ("us-east", "1", "0.1", "8"),
}
ROUTES = {
    "assistant": ("partner-fr", "large-eu"),
    "small": ("large-us", "own-eu"),
    "analyst": ("large-eu", "large-us"),
    "coder": ("own-eu", "partner-fr"),
}
TEAMS = {
    "payments": "confidential",
    "legal": "confidential",
    "search": "internal",
    "support": "internal",
    "research": "internal",
    "growth": "public",
    "mobile": "public",
    "data": "internal",
}
ASKS: tuple[list[str], ...] = ([], ["tools"], ["json_schema", "tools"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A command that ended well."""

    printed: str
    took_s: float
    cpu_s: float
    peak_mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One replay as its command printed it."""

    name: str
    ran: Ran
    requests: int
    cost_before_usd: Decimal
    moved: int
    refused: int
    blocked: int


class CommandFailed(Exception):
    """A command failed; the message is its own."""


def main() -> int:
    """Run it; 1 if a replay was too slow or disagrees with the rows."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.replay", description="A month of traffic, decided again."
    )
    parser.add_argument("--events", type=int, default=1_000_000, help="past requests (1,000,000)")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument(
        "--write", action="store_true", help="write the figures into docs/lab/bench"
    )
    chosen = parser.parse_args()
    load, *_ = os.getloadavg()
    try:
        plans, notes, findings = _run(chosen.events, chosen.seed)
    except CommandFailed as failed:
        print(failed, file=sys.stderr)
        return 3
    facts = {
        "machine": machine.describe(),
        "commit": machine.commit(),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "command": "python -m " + " ".join(["bench.replay", *sys.argv[1:]]),
        "seed": str(chosen.seed),
        "load average as it began": f"{load:.2f}",
    }
    measured = [
        *(f"- {name}: {value}" for name, value in facts.items()),
        *(f"- {note}" for note in notes),
    ]
    lines = [*measured, "", *_table(plans)]
    print("\n".join(lines))
    for finding in findings:
        print(f"WRONG: {finding}", file=sys.stderr)
    if chosen.write:
        write_result("replay", lines)
    return 1 if findings else 0


def _run(events: int, seed: int) -> tuple[list[Planned], list[str], list[str]]:
    """Make the past and plan twice; return the plans, the past's facts, and the problems."""
    with ExitStack() as stack:
        home = Path(tempfile.mkdtemp(prefix="tollgate-replay-", dir="/tmp"))
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        home.chmod(0o711)  # as root, Postgres runs as another user
        url = stack.enter_context(EmbeddedPostgres(home)).start()
        variables = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith("TOLLGATE_")
            },
            "TOLLGATE_HOME": str(home),
            "TOLLGATE_DATABASE_URL": url,
        }

        def tollgate(*arguments: str) -> Ran:
            return _tollgate(arguments, variables=variables, folder=home)

        before = home / "before.yaml"
        before.write_text(_before())
        tollgate("db", "upgrade")
        tollgate("policy", "apply", str(before), "--yes")
        made_s = _make_past(url, events, seed)
        with psycopg.connect(url) as connection:
            (rows, requests, cost_usd), kinds = (
                _one(connection, COUNTED),
                _one(connection, KINDS)[0],
            )
        plans = []
        for name, text in ((FREE, _after()), (LIMITED, _after(budgets_for=events))):
            after = home / "after.yaml"
            after.write_text(text)
            ran = tollgate("policy", "plan", str(after), "--replay", f"{DAYS}d", "--format", "json")
            plans.append(_planned(name, ran))
    notes = [
        f"{requests:,} requests in {rows:,} rows of {DAYS} days, made in {made_s:.0f} s",
        f"{kinds:,} kinds of them differ in what a decision depends on",
    ]
    findings = [
        finding for plan in plans for finding in _findings(plan, events=events, cost_usd=cost_usd)
    ]
    if requests != events:
        findings.append(f"{requests:,} requests were made in place of {events:,}")
    return plans, notes, findings


def _findings(plan: Planned, *, events: int, cost_usd: Decimal) -> list[str]:
    """Return the problems of a plan."""
    wrong = {
        f"it printed {plan.requests:,} requests, there are {events:,}": plan.requests != events,
        f"it says they cost {plan.cost_before_usd} USD, the rows {cost_usd}": plan.cost_before_usd
        != cost_usd,
        "nothing moves or nothing is refused, so little was decided": not (
            plan.moved and plan.refused
        ),
        f"{plan.blocked} requests do not fit a budget": bool(plan.blocked)
        != (plan.name == LIMITED),
        f"it took {plan.ran.took_s:.1f} s, more than {MOST_S:g}": plan.ran.took_s > MOST_S,
    }
    return [f"{plan.name}: {words}" for words, is_so in wrong.items() if is_so]


def _table(plans: Sequence[Planned]) -> list[str]:
    lines = [
        "| replay | requests printed | took | wanted | its own CPU | most memory | moved | "
        "refused | over a budget |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for plan in plans:
        lines.append(
            f"| {plan.name} | {plan.requests:,} | {plan.ran.took_s:.1f} s | ≤ {MOST_S:g} s | "
            f"{plan.ran.cpu_s:.1f} s | {plan.ran.peak_mib:.0f} MiB | {plan.moved:,} | "
            f"{plan.refused:,} | {plan.blocked:,} |"
        )
    return lines


def _planned(name: str, ran: Ran) -> Planned:
    """Return the command's output."""
    replay = json.loads(ran.printed, parse_float=Decimal)["replay"]
    rows: list[dict[str, Any]] = replay["rows"]
    return Planned(
        name=name,
        ran=ran,
        requests=replay["requests"],
        cost_before_usd=Decimal(replay["cost_before_usd"]),
        moved=sum(row["moved"] for row in rows),
        refused=sum(
            value for row in rows for column, value in row.items() if column.startswith("refused_")
        ),
        blocked=sum(row["blocked_budget"] for row in rows),
    )


def _tollgate(arguments: Sequence[str], *, variables: Mapping[str, str], folder: Path) -> Ran:
    """Run a command in a separate process. Raises `CommandFailed`."""
    with (folder / "out").open("w+") as out, (folder / "err").open("w+") as err:
        began_s, began, peak_kib = time.monotonic(), os.times(), 0
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway.main", *arguments],
            env=variables,
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )
        try:
            while process.poll() is None:
                peak_kib = max(peak_kib, _peak_kib(process.pid))
                time.sleep(LOOK_EVERY_S)
        finally:
            process.kill()
        took_s, ended = time.monotonic() - began_s, os.times()
        cpu_s = sum(ended[2:4]) - sum(began[2:4])  # of ended children; there is only one
        if process.returncode != 0:
            err.seek(0)
            raise CommandFailed(f"tollgate {' '.join(arguments)}: {err.read().strip()}")
        out.seek(0)
        return Ran(printed=out.read(), took_s=took_s, cpu_s=cpu_s, peak_mib=peak_kib / 1024)


def _peak_kib(pid: int) -> int:
    """Return the most memory a process has had, from the kernel; a child's `ru_maxrss` begins
    with its parent's.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


# ---- documents


def _before() -> str:
    """Return the policy in force during the past."""
    return _document(ROUTES, DEPLOYMENTS, confidential="[eu]")


def _after(*, budgets_for: int | None = None) -> str:
    """Return a policy with other orders, one price, and a class with fewer allowed places.

    With two hard budgets per team, that many requests slightly exceed them.
    """
    routes = ROUTES | {"assistant": ("large-eu", "partner-fr"), "small": ("own-eu", "large-us")}
    deployments = DEPLOYMENTS | {"large-eu": ("eu-de", "1.1", "0.11", "9")}
    terms = ""
    if budgets_for is not None:
        month_usd, day_usd = budgets_for * MONTH_USD_A_REQUEST, budgets_for * DAY_USD_A_REQUEST
        terms = (
            f", budgets: [{{period: month, limit_usd: {month_usd}}}, {{period: day, "
            f"limit_usd: {day_usd}}}]"
        )
    return _document(routes, deployments, confidential="[eu-fr]", terms=terms)


def _document(
    routes: Mapping[str, Sequence[str]],
    deployments: Mapping[str, Sequence[str]],
    *,
    confidential: str,
    terms: str = "",
) -> str:
    """Return a policy document; nothing is ever sent to its deployments."""
    places = "".join(
        f"  - {{name: {name}, provider: openai_compatible, base_url: "
        f'"https://{name}.example.invalid/v1", '
        f"model: {name}-1, region: {region}, price: {{input_usd_per_mtok: {plain}, "
        f"cached_input_usd_per_mtok: {cached}, output_usd_per_mtok: {output}}}}}\n"
        for name, (region, plain, cached, output) in deployments.items()
    )
    ways = "".join(
        f"  - {{name: {name}, deployments: [{', '.join(to)}]}}\n" for name, to in routes.items()
    )
    used = ", ".join(routes)
    teams = "".join(
        f"  - {{name: {name}, cost_centre: CC-{number}, data_class: {data_class}, routes: "
        f"[{used}]{terms}}}\n"
        for number, (name, data_class) in enumerate(TEAMS.items())
    )
    classes = (
        f"{{public: {{regions: [any]}}, internal: {{regions: [any]}}, confidential: "
        f"{{regions: {confidential}}}}}"
    )
    return (
        f"version: 1\nregions: {{eu: [eu-de, eu-fr], us: [us-east]}}\nclasses: {classes}\n"
        f"deployments:\n{places}routes:\n{ways}teams:\n{teams}"
    )


# ---- the past


def _make_past(url: str, events: int, seed: int) -> float:
    """Write the requests of thirty days, sum them up as a gateway's jobs do, and return the
    seconds it took.
    """
    began_s = time.monotonic()
    database = Database(url)
    until = datetime.now(UTC) - timedelta(minutes=1)
    since = until - timedelta(days=DAYS) + LEFT_OUT
    partitions.ensure_months(database, first=since.date(), last=until.date())
    since_ms, until_ms = (round(moment.timestamp() * 1000) for moment in (since, until))
    terms = {"events": events, "seed": seed, "since_ms": since_ms, "span_ms": until_ms - since_ms}
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET statement_timeout = 0")
        connection.execute(PLACES)
        connection.execute(KINDS_TABLE)
        with connection.cursor() as cursor:
            cursor.executemany(
                f"INSERT INTO places VALUES ({', '.join(['%s'] * 8)})",
                list(map(_place, DEPLOYMENTS)),
            )
            cursor.executemany(f"INSERT INTO kinds VALUES ({', '.join(['%s'] * 10)})", _kinds())
        connection.execute(PRICED)
        connection.execute(PAST.read_text(), terms)
        connection.execute(DIRTY)
        connection.execute("VACUUM ANALYZE tollgate.usage_events")
    rollups.refresh(database)
    database.close()
    return time.monotonic() - began_s


def _place(name: str) -> tuple[object, ...]:
    """Return a deployment with its rates: USD per million tokens, and nano-dollars per token."""
    region, *rates = DEPLOYMENTS[name]
    return name, region, *rates, *(int(Decimal(rate) * 1000) for rate in rates)


def _kinds() -> Sequence[tuple[object, ...]]:
    """Return every kind of request with its team, route and past decision.

    One in eight had its class raised.
    """
    kinds: list[tuple[object, ...]] = []
    for (number, (team, own)), key, route, asks in product(
        enumerate(TEAMS.items()), range(KEYS_A_TEAM), ROUTES, ASKS
    ):
        is_raised = key % 8 == 7 and own != "confidential"
        data_class = "confidential" if is_raised else own
        allowed = [
            name for name in ROUTES[route] if data_class != "confidential" or name != "large-us"
        ]
        decision = {
            "policy": "0" * 64,
            "objective": "priority",
            "rule": data_class,
            "rules": [f"class:{data_class}"],
            "ranked": allowed,
            "candidates": [
                {
                    "deployment": name,
                    "region": DEPLOYMENTS[name][0],
                    "host": f"{name}.example.invalid",
                    "obstacles": []
                    if name in allowed
                    else [["residency", f"is in {DEPLOYMENTS[name][0]}"]],
                }
                for name in ROUTES[route]
            ],
        }
        project = f"project-{key % 3}" if key % 4 else None
        kinds.append(
            (
                len(kinds),
                team,
                project,
                f"CC-{number}",
                f"bench{number:02}{key:03}",
                route,
                data_class,
                "header" if is_raised else "team",
                json.dumps(asks),
                json.dumps(decision),
            )
        )
    return kinds


def _one(connection: psycopg.Connection[Any], statement: str) -> tuple[Any, ...]:
    """The only row of a statement."""
    row = connection.execute(statement).fetchone()
    assert row is not None, "an aggregate has a row"
    return tuple(row)


PLACES = """
CREATE TEMPORARY TABLE places (
    deployment text PRIMARY KEY, region text, plain_usd text, cached_usd text, output_usd text,
    plain_nusd int, cached_nusd int, output_nusd int, price_id text
)
"""
PRICED = """
UPDATE places SET price_id = priced.price_id FROM tollgate.deployment_prices AS priced
WHERE priced.deployment = places.deployment
"""
KINDS_TABLE = """
CREATE TEMPORARY TABLE kinds (
    number int PRIMARY KEY, team text, project text, cost_centre text, key_id text, route text,
      data_class text,
    class_source text, capabilities jsonb, decision jsonb
)
"""
DIRTY = """
INSERT INTO tollgate.dirty_hours (hour)
SELECT DISTINCT date_trunc('hour', occurred_at, 'UTC') FROM tollgate.usage_events
"""
COUNTED = "SELECT count(*), count(DISTINCT request_id), sum(cost_usd) FROM finance.usage_events"
KINDS = """
SELECT count(*) FROM (
    SELECT DISTINCT team, project, key_id, route, deployment, data_class, features ->
      'class_source',
           features -> 'capabilities', price_id FROM finance.usage_events) AS kinds
"""


if __name__ == "__main__":
    sys.exit(main())
