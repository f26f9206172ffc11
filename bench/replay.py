"""How long it takes to decide a month of past traffic again: `tollgate policy plan --replay 30d`, as users run it.

    python -m bench.replay [--events 1000000] [--seed 5] [--write]

A Postgres of its own gets so many requests of thirty days by one INSERT, each with what a real event keeps of its
decision, and one in a hundred with a failed attempt before. Then the command runs as a process of its own, once without
budgets and once with two hard ones a team. What it prints is compared with what SQL counts in the same rows: a plan
that left something out would be quick as well.
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

from bench import machine
from bench.page import replace_between
from gateway.storage import partitions, rollups
from gateway.storage.database import Database
from gateway.storage.embedded import EmbeddedPostgres

REPOSITORY = Path(__file__).parents[1]
PAGE = REPOSITORY / "docs" / "performance.md"
MARKS = ("<!-- replay:begin, written by `python -m bench.replay --write` -->", "<!-- replay:end -->")
MOST_S = 60.0
DAYS = 30
LEFT_OUT = timedelta(minutes=30)  # at the window's beginning: it moves on while the events are made
KEYS_A_TEAM = 12
LOOK_EVERY_S = 0.05

# Whole nano-dollars a token, so that SQL's sums need no rounding: input, cached input, output in USD per million.
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
    "payments": "confidential", "legal": "confidential", "search": "internal", "support": "internal",
    "research": "internal", "growth": "public", "mobile": "public", "data": "internal",
}  # fmt: skip
ASKS = ([], ["tools"], ["json_schema", "tools"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A command that ended well."""

    printed: str
    took_s: float
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
    """A command did not do what it should; the message is its own."""


def main() -> int:
    """Run it; 1 where a replay was too slow or does not agree with the rows."""
    parser = argparse.ArgumentParser(prog="python -m bench.replay", description="A month of traffic, decided again.")
    parser.add_argument("--events", type=int, default=1_000_000, help="past requests (1,000,000)")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="write the figures into docs/performance.md")
    chosen = parser.parse_args()
    try:
        plans, notes, findings = _run(chosen.events, chosen.seed)
    except CommandFailed as failed:
        print(failed, file=sys.stderr)
        return 3
    facts = {
        "machine": machine.describe(), "commit": machine.commit(),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "command": "python -m " + " ".join(["bench.replay", *sys.argv[1:]]), "seed": str(chosen.seed),
    }  # fmt: skip
    measured = [*(f"- {name}: {value}" for name, value in facts.items()), *(f"- {note}" for note in notes)]
    lines = [*measured, "", *_table(plans)]
    print("\n".join(lines))
    for finding in findings:
        print(f"WRONG: {finding}", file=sys.stderr)
    if chosen.write:
        replace_between(PAGE, *MARKS, lines=lines)
    return 1 if findings else 0


def _run(events: int, seed: int) -> tuple[list[Planned], list[str], list[str]]:
    """Make the past and plan twice; return what was planned, what the past is made of, and what is wrong."""
    with ExitStack() as stack:
        home = Path(tempfile.mkdtemp(prefix="tollgate-replay-", dir="/tmp"))
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        home.chmod(0o711)  # Postgres runs as another user where we are root
        url = stack.enter_context(EmbeddedPostgres(home)).start()
        variables = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TOLLGATE_")},
            "TOLLGATE_HOME": str(home), "TOLLGATE_DATABASE_URL": url,
        }  # fmt: skip

        def tollgate(*arguments: str) -> Ran:
            return _tollgate(arguments, variables=variables, folder=home)

        files = {name: home / f"{name}.yaml" for name in ("before", "without budgets", "two hard budgets a team")}
        for (name, file), text in zip(files.items(), (_before(), _after(), _after(budgets=True)), strict=True):
            file.write_text(text)
            tollgate("policy", "validate", str(file))
            if name == "before":
                tollgate("db", "upgrade")
                tollgate("policy", "apply", str(file), "--yes")
        made_s = _make_past(url, events, seed)
        with psycopg.connect(url) as connection:
            (rows, requests, cost_usd), kinds = _one(connection, COUNTED), _one(connection, KINDS)[0]
        plans = []
        for name, file in list(files.items())[1:]:
            ran = tollgate("policy", "plan", str(file), "--replay", f"{DAYS}d", "--format", "json")
            plans.append(_planned(name, ran))
    notes = [
        f"{requests:,} requests in {rows:,} rows of {DAYS} days, made in {made_s:.0f} s, of {kinds:,} kinds that differ in "
        "what a decision depends on",
        "requests and cost before are what SQL counts in the same rows" if requests == events else "",
    ]
    findings = [finding for plan in plans for finding in _findings(plan, events=events, cost_usd=cost_usd)]
    if requests != events:
        findings.append(f"{requests:,} requests were made in place of {events:,}")
    return plans, [note for note in notes if note], findings


def _findings(plan: Planned, *, events: int, cost_usd: Decimal) -> list[str]:
    """What does not hold of a plan."""
    wrong = {
        f"it printed {plan.requests:,} requests, there are {events:,}": plan.requests != events,
        f"it says they cost {plan.cost_before_usd} USD, the rows {cost_usd}": plan.cost_before_usd != cost_usd,
        "nothing moves or nothing is refused, so little was decided": not (plan.moved and plan.refused),
        f"{plan.blocked} requests do not fit a budget": bool(plan.blocked) != ("budgets a team" in plan.name),
        f"it took {plan.ran.took_s:.1f} s, more than {MOST_S:g}": plan.ran.took_s > MOST_S,
    }
    return [f"{plan.name}: {words}" for words, is_so in wrong.items() if is_so]


def _table(plans: Sequence[Planned]) -> list[str]:
    lines = [
        "| replay | requests printed | took | wanted | most memory | moved | refused | over a budget |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for plan in plans:
        lines.append(
            f"| {plan.name} | {plan.requests:,} | {plan.ran.took_s:.1f} s | ≤ {MOST_S:g} s | "
            f"{plan.ran.peak_mib:.0f} MiB | {plan.moved:,} | {plan.refused:,} | {plan.blocked:,} |"
        )
    return lines


def _planned(name: str, ran: Ran) -> Planned:
    """What the command printed."""
    replay = json.loads(ran.printed, parse_float=Decimal)["replay"]
    rows: list[dict[str, Any]] = replay["rows"]
    return Planned(
        name=name, ran=ran, requests=replay["requests"], cost_before_usd=Decimal(replay["cost_before_usd"]),
        moved=sum(row["moved"] for row in rows),
        refused=sum(value for row in rows for column, value in row.items() if column.startswith("refused_")),
        blocked=sum(row["blocked_budget"] for row in rows),
    )  # fmt: skip


def _tollgate(arguments: Sequence[str], *, variables: Mapping[str, str], folder: Path) -> Ran:
    """Run a command in a process of its own. Raises `CommandFailed`."""
    with (folder / "out").open("w+") as out, (folder / "err").open("w+") as err:
        began_s, peak_kib = time.monotonic(), 0
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway.main", *arguments], env=variables, cwd=REPOSITORY,
            stdin=subprocess.DEVNULL, stdout=out, stderr=err,
        )  # fmt: skip
        try:
            while process.poll() is None:
                peak_kib = max(peak_kib, _peak_kib(process.pid))
                time.sleep(LOOK_EVERY_S)
        finally:
            process.kill()
        took_s = time.monotonic() - began_s
        if process.returncode != 0:
            err.seek(0)
            raise CommandFailed(f"tollgate {' '.join(arguments)}: {err.read().strip()}")
        out.seek(0)
        return Ran(printed=out.read(), took_s=took_s, peak_mib=peak_kib / 1024)


def _peak_kib(pid: int) -> int:
    """The most memory a process has had, as the kernel says; a child's `ru_maxrss` begins with its parent's."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


# ---- documents


def _before() -> str:
    """The policy in force while the past happened."""
    return _document(ROUTES, DEPLOYMENTS, confidential="[eu]")


def _after(*, budgets: bool = False) -> str:
    """Other orders, one price, and a class that may go to fewer places; with `budgets` two hard ones a team."""
    routes = ROUTES | {"assistant": ("large-eu", "partner-fr"), "small": ("own-eu", "large-us")}
    deployments = DEPLOYMENTS | {"large-eu": ("eu-de", "1.1", "0.11", "9")}
    terms = ", budgets: [{period: month, limit_usd: 900}, {period: day, limit_usd: 60}]" if budgets else ""
    return _document(routes, deployments, confidential="[eu-fr]", terms=terms)


def _document(
    routes: Mapping[str, Sequence[str]], deployments: Mapping[str, Sequence[str]], *, confidential: str, terms: str = ""
) -> str:
    """A policy document; nothing is ever sent to its deployments."""
    places = "".join(
        f'  - {{name: {name}, provider: openai_compatible, base_url: "https://{name}.example.invalid/v1", '
        f"model: {name}-1, region: {region}, price: {{input_usd_per_mtok: {plain}, "
        f"cached_input_usd_per_mtok: {cached}, output_usd_per_mtok: {output}}}}}\n"
        for name, (region, plain, cached, output) in deployments.items()
    )
    ways = "".join(f"  - {{name: {name}, deployments: [{', '.join(to)}]}}\n" for name, to in routes.items())
    used = ", ".join(routes)
    teams = "".join(
        f"  - {{name: {name}, cost_centre: CC-{number}, data_class: {data_class}, routes: [{used}]{terms}}}\n"
        for number, (name, data_class) in enumerate(TEAMS.items())
    )
    classes = f"{{public: {{regions: [any]}}, internal: {{regions: [any]}}, confidential: {{regions: {confidential}}}}}"
    return (
        f"version: 1\nregions: {{eu: [eu-de, eu-fr], us: [us-east]}}\nclasses: {classes}\n"
        f"deployments:\n{places}routes:\n{ways}teams:\n{teams}"
    )


# ---- the past


def _make_past(url: str, events: int, seed: int) -> float:
    """Write the requests of thirty days, sum them up as a gateway's jobs do, and return the seconds that took."""
    began_s = time.monotonic()
    database = Database(url)
    until = datetime.now(UTC) - timedelta(minutes=1)
    since = until - timedelta(days=DAYS) + LEFT_OUT
    partitions.ensure_months(database, first=since.date(), last=until.date())
    since_ms, until_ms = (round(moment.timestamp() * 1000) for moment in (since, until))
    terms = {"events": events, "seed": seed, "since_ms": since_ms, "span_ms": until_ms - since_ms, "lines": LINES}
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET statement_timeout = 0")
        connection.execute(PLACES)
        connection.execute(KINDS_TABLE)
        with connection.cursor() as cursor:
            cursor.executemany(f"INSERT INTO places VALUES ({', '.join(['%s'] * 8)})", list(map(_place, DEPLOYMENTS)))
            cursor.executemany(f"INSERT INTO kinds VALUES ({', '.join(['%s'] * 10)})", _kinds())
        connection.execute(PRICED)
        connection.execute(PAST, terms)
        connection.execute(DIRTY)
        connection.execute("VACUUM ANALYZE tollgate.usage_events")
    rollups.refresh(database)
    database.close()
    return time.monotonic() - began_s


def _place(name: str) -> tuple[object, ...]:
    """A deployment with its rates: USD per million tokens, and nano-dollars a token."""
    region, *rates = DEPLOYMENTS[name]
    return name, region, *rates, *(int(Decimal(rate) * 1000) for rate in rates)


def _kinds() -> Sequence[tuple[object, ...]]:
    """Every kind of request: who asks for what, and what was decided then. One in eight had its class raised."""
    kinds = []
    for (number, (team, own)), key, route, asks in product(
        enumerate(TEAMS.items()), range(KEYS_A_TEAM), ROUTES, ASKS
    ):  # fmt: skip
        is_raised = key % 8 == 7 and own != "confidential"
        data_class = "confidential" if is_raised else own
        allowed = [name for name in ROUTES[route] if data_class != "confidential" or name != "large-us"]
        decision = {
            "policy": "0" * 64, "objective": "priority", "rule": data_class, "rules": [f"class:{data_class}"],
            "ranked": allowed, "candidates": [
                {"deployment": name, "region": DEPLOYMENTS[name][0], "host": f"{name}.example.invalid",
                 "obstacles": [] if name in allowed else [["residency", f"is in {DEPLOYMENTS[name][0]}"]]}
                for name in ROUTES[route]
            ],
        }  # fmt: skip
        project = f"project-{key % 3}" if key % 4 else None
        kinds.append(
            (
                len(kinds), team, project, f"CC-{number}", f"bench{number:02}{key:03}", route, data_class,
                "header" if is_raised else "team", json.dumps(asks), json.dumps(decision),
            )
        )  # fmt: skip
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
    number int PRIMARY KEY, team text, project text, cost_centre text, key_id text, route text, data_class text,
    class_source text, capabilities jsonb, decision jsonb
)
"""
# All that varies comes from one hash of the row's number and the seed, so that the same seed makes the same past. One
# request in a hundred failed somewhere before it was answered, where its route has a second place; of one in a thousand
# nobody knows what it cost.
PAST = """
INSERT INTO tollgate.usage_events (
    request_id, attempt, occurred_at, started_at, posted_period, team, project, cost_centre, key_id, tags, route,
    deployment, provider, model, region, is_self_hosted, data_class, policy_version, operation, outcome, http_status,
    streamed, input_tokens, cached_input_tokens, output_tokens, usage_source, price_id, lines, cost_nusd, held_nusd,
    ttft_s, tpot_s, duration_s, overhead_s, finish_reason, features, decision, digest
)
WITH drawn AS MATERIALIZED (
    SELECT n, hashint8extended(n, %(seed)s) & 9223372036854775807 AS hash,
           %(since_ms)s::bigint + n * %(span_ms)s::bigint / %(events)s AS at_ms
    FROM generate_series(0::bigint, %(events)s - 1) AS n
), asked AS (
    SELECT n, at_ms, md5(hash::text) AS digits, hash / 4096 AS hash, kinds.*, n %% 3 = 0 AS is_stream,
           CASE WHEN n %% 100 = 0 THEN jsonb_array_length(decision -> 'ranked') ELSE 1 END AS tries
    FROM drawn JOIN kinds ON kinds.number = hash %% (SELECT count(*) FROM kinds)
), tried AS (
    SELECT *, (lpad(to_hex(at_ms), 12, '0') || '7' || left(digits, 3) || '8' || substr(digits, 4, 15))::uuid AS id,
           decision -> 'ranked' ->> (attempt - 1) AS deployment, 500 + hash %% 9973 AS whole,
           CASE WHEN attempt < tries THEN 'failed' WHEN n %% 1000 = 1 THEN 'cut' ELSE 'ok' END AS state
    FROM asked CROSS JOIN LATERAL generate_series(1, tries) AS attempt
), used AS (
    SELECT *, tollgate.uuid7_time(id) AS at,
           CASE state WHEN 'ok' THEN whole - hash %% 480 WHEN 'failed' THEN 0 END AS plain,
           CASE state WHEN 'ok' THEN hash %% 480 WHEN 'failed' THEN 0 END AS cached,
           CASE state WHEN 'ok' THEN 20 + hash / 16 %% 1511 WHEN 'failed' THEN 0 END AS output
    FROM tried JOIN places USING (deployment)
)
SELECT id, attempt, at, at, date_trunc('month', at AT TIME ZONE 'UTC')::date, team, project, cost_centre, key_id,
       '{"env": "production"}', route, deployment, 'openai_compatible', deployment || '-1', region, false, data_class,
       1, 'chat', CASE state WHEN 'failed' THEN 'upstream_error' WHEN 'cut' THEN 'upstream_cut' ELSE 'ok' END,
       CASE state WHEN 'failed' THEN 503 ELSE 200 END, is_stream, plain + cached, cached, output,
       CASE state WHEN 'failed' THEN 'none' WHEN 'cut' THEN 'unknown' ELSE 'provider' END, price_id,
       CASE state WHEN 'ok' THEN format(%(lines)s, plain, plain_usd, plain * plain_nusd, cached, cached_usd,
                                        cached * cached_nusd, output, output_usd, output * output_nusd)::jsonb
                  ELSE '[]' END,
       plain * plain_nusd + cached * cached_nusd + output * output_nusd,
       CASE state WHEN 'cut' THEN whole * plain_nusd + 2048 * output_nusd END,
       CASE WHEN is_stream AND state = 'ok' THEN 0.1 + hash %% 97 / 100.0 END,
       CASE WHEN is_stream AND state = 'ok' THEN 0.01 + hash %% 13 / 1000.0 END, 1.5, 0.0004,
       CASE state WHEN 'ok' THEN 'stop' END,
       jsonb_build_object('max_output_tokens', CASE WHEN n %% 2 = 0 THEN 2048 END, 'input_bound_tokens', 4 * whole,
                          'capabilities', capabilities, 'features', '[]'::jsonb, 'class_source', class_source),
       decision, sha256(int8send(n))
FROM used
"""
LINES = (
    "["
    + ", ".join(
        f'{{"kind": "{kind}", "tokens": %s, "usd_per_mtok": "%s", "cost_nusd": %s}}'
        for kind in ("input", "cached_input", "output")
    )
    + "]"
)
DIRTY = """
INSERT INTO tollgate.dirty_hours (hour)
SELECT DISTINCT date_trunc('hour', occurred_at, 'UTC') FROM tollgate.usage_events
"""
COUNTED = "SELECT count(*), count(DISTINCT request_id), sum(cost_usd) FROM finance.usage_events"
KINDS = """
SELECT count(*) FROM (
    SELECT DISTINCT team, project, key_id, route, deployment, data_class, features -> 'class_source',
           features -> 'capabilities', price_id FROM finance.usage_events) AS kinds
"""


if __name__ == "__main__":
    sys.exit(main())
