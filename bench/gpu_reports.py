"""The time of the reports of GPU cost for one month, and the rows of the ledger that they read.

    python -m bench.gpu_reports [--events 1000000] [--write]

A separate Postgres gets that many attempts of three months by one INSERT, uptime of two engines for
each hour, and a correction for one attempt in ten, as `tollgate price reprice` books them. Then
each report answers for last month, and each of its statements is run again by EXPLAIN (ANALYZE). It
fails if one of them reads a partition of the ledger from its beginning to its end.
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
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg

from bench.stand import machine
from bench.stand.explained import noted, plan_of, reads_of_ledger
from bench.stand.page import write_result
from gateway.reports.question import Question
from gateway.reports.registry import REPORTS
from gateway.reports.sources.connection import ROLE, ReadSnapshot
from gateway.storage.ledger import rollups
from gateway.storage.postgres import partitions
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.embedded import EmbeddedPostgres

REPOSITORY = Path(__file__).parents[1]
PAST = Path(__file__).with_suffix(".sql")
ASKED = ("gpu", "gpu-bill", "selfhost-vs-api")
DAYS = 92
TRIES = 5
GPU = (
    "gpu: {type: H200, count: 1, usd_per_gpu_hour: 3, target_utilisation: 0.5, "
    "input_tok_per_s: 10000, output_tok_per_s: 1000}"
)
POLICY = f"""\
version: 1
regions: {{eu: [eu-de]}}
classes: {{internal: {{regions: [any]}}}}
deployments:
  - {{name: own-a, provider: vllm, base_url: "http://own-a:8001/v1", model: m, region: eu-de, {GPU}}}
  - {{name: own-b, provider: vllm, base_url: "http://own-b:8001/v1", model: m, region: eu-de, {GPU}}}
  - {{name: api, provider: openai_compatible, base_url: "https://api.example.invalid/v1", model: m, region: eu-de,
     price: {{input_usd_per_mtok: 0.25, output_usd_per_mtok: 1}}}}
routes: [{{name: assistant, deployments: [own-a, own-b, api]}}]
teams: [{{name: team-0, cost_centre: CC-1, data_class: internal, routes: [assistant]}}]
"""  # noqa: E501
UPTIME = """
INSERT INTO tollgate.gpu_hours (
    deployment, hour, policy_version, gpu_type, gpu_count, usd_per_gpu_hour, basis, watched_ms,
    up_ms, billed_ms, bill_nusd
)
SELECT name, hour, 1, 'H200', 1, 3, 'seen', 3600000, 3600000, 3600000, 3000000000
FROM unnest(ARRAY['own-a', 'own-b']) AS name, generate_series(
    date_trunc('hour', to_timestamp(%(since_ms)s / 1000), 'UTC'), now(), interval '1 hour'
) AS hour
"""
CORRECTIONS = """
INSERT INTO tollgate.adjustments (
    adjustment_id, request_id, attempt, team, cost_centre, posted_period, occurred_at, amount_nusd,
    kind, reason, author
)
SELECT gen_random_uuid(), request_id, attempt, team, cost_centre, posted_period, occurred_at, 1000,
       'reprice', 'another price', 'bench'
FROM tollgate.usage_events WHERE get_byte(digest, 0) % 10 = 0
"""
DIRTY = """
INSERT INTO tollgate.dirty_hours (hour)
SELECT DISTINCT date_trunc('hour', occurred_at, 'UTC') FROM tollgate.usage_events
"""
COUNTED = """
SELECT (SELECT count(*) FROM tollgate.usage_events) AS events,
       (SELECT count(*) FROM tollgate.adjustments) AS adjustments,
       (SELECT count(*) FROM tollgate.gpu_hours) AS hours
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One report for one month: the best of its times, and the rows of the ledger that it read."""

    name: str
    took_s: float
    rows: int
    events_read: int
    whole_partitions: Sequence[str]


def main() -> int:
    """Make the ledger and answer the reports; return 1 if one reads a whole partition."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu_reports", description="The reports of GPU cost on a long ledger."
    )
    parser.add_argument("--events", type=int, default=1_000_000, help="attempts (1,000,000)")
    parser.add_argument("--plans", type=Path, metavar="FILE", help="also write all plans as JSON")
    parser.add_argument(
        "--write", action="store_true", help="write the figures into docs/lab/bench"
    )
    chosen = parser.parse_args()
    answers, notes = _run(chosen.events, chosen.plans)
    facts = {
        "machine": machine.describe(),
        "commit": machine.commit(),
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "command": f"python -m bench.gpu_reports --events {chosen.events} --write",
    }
    lines = [
        *(f"- {name}: {value}" for name, value in facts.items()),
        *(f"- {note}" for note in notes),
        "",
        *_table(answers),
    ]
    print("\n".join(lines))
    findings = [(one.name, name) for one in answers for name in one.whole_partitions]
    for report, partition in findings:
        print(f"WRONG: {report} reads all of {partition}", file=sys.stderr)
    if chosen.write and not findings:
        write_result("gpu-reports", lines)
    return 1 if findings else 0


def _run(events: int, plans: Path | None) -> tuple[list[Answered], list[str]]:
    """Make the ledger and answer each report; return the answers and the ledger's facts."""
    with ExitStack() as stack:
        home = Path(tempfile.mkdtemp(prefix="tollgate-gpu-reports-", dir="/tmp"))
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        home.chmod(0o711)  # as root, Postgres runs as another user
        url = stack.enter_context(EmbeddedPostgres(home)).start()
        _apply_policy(home, url)
        until = datetime.now(UTC) - timedelta(minutes=1)
        since = until - timedelta(days=DAYS)
        made_s = _make_past(url, events, since=since, until=until)
        month = (until.date().replace(day=1) - timedelta(days=1)).replace(day=1)
        with psycopg.connect(url) as connection:
            found = connection.execute(COUNTED).fetchone()
            assert found is not None
        database = Database(url, role=ROLE)
        stack.callback(database.close)
        explained: dict[str, Any] = {}
        answers = [_answer(database, name, month, explained) for name in ASKED]
        if plans is not None:
            plans.write_text(json.dumps(explained, indent=1, default=str), encoding="utf-8")
    attempts, corrections, hours = found
    notes = [
        f"{attempts:,} attempts of {DAYS} days, {corrections:,} corrections, {hours:,} hours of "
        f"two engines, made in {made_s:.0f} s; the reports are of {month:%Y-%m}"
    ]
    return answers, notes


def _apply_policy(home: Path, url: str) -> None:
    """Migrate the database and apply the policy, by the commands that an operator uses."""
    policy = home / "policy.yaml"
    policy.write_text(POLICY, encoding="utf-8")
    own = {name: value for name, value in os.environ.items() if not name.startswith("TOLLGATE_")}
    for command in (("db", "upgrade"), ("policy", "apply", str(policy), "--yes", "--no-wait")):
        subprocess.run(
            [sys.executable, "-m", "gateway.main", *command],
            cwd=REPOSITORY,
            env=own | {"TOLLGATE_HOME": str(home), "TOLLGATE_DATABASE_URL": url},
            stdout=sys.stderr,
            check=True,
        )


def _make_past(url: str, events: int, *, since: datetime, until: datetime) -> float:
    """Write attempts, uptime and corrections, sum them up as a gateway's jobs do; return the
    seconds that it took.
    """
    began_s = time.monotonic()
    database = Database(url)
    partitions.ensure_months(database, first=since.date(), last=until.date())
    since_ms, until_ms = (round(moment.timestamp() * 1000) for moment in (since, until))
    terms = {"events": events, "since_ms": since_ms, "span_ms": until_ms - since_ms}
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET statement_timeout = 0")
        connection.execute(PAST.read_text(encoding="utf-8"), terms)
        connection.execute(UPTIME, {"since_ms": since_ms})
        connection.execute(CORRECTIONS)
        connection.execute(DIRTY)
        connection.execute("VACUUM ANALYZE")
    rollups.refresh(database)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")
    database.close()
    return time.monotonic() - began_s


def _answer(database: Database, name: str, month: date, explained: dict[str, Any]) -> Answered:
    """Answer one report some times, then explain each of its statements."""
    question = Question(month=month)
    with database.engine.connect() as connection:
        snapshot = ReadSnapshot(
            connection.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )
        )
        times = []
        statements: list[tuple[str, Any]] = []
        for _ in range(TRIES):
            statements.clear()
            began_s = time.perf_counter()
            with noted(connection, statements):
                report = REPORTS[name].run(snapshot, question)
            times.append(time.perf_counter() - began_s)
        reads = []
        explained[name] = []
        for statement, values in statements:
            plan = plan_of(connection, statement, values)
            explained[name].append({"statement": statement, "plan": plan})
            reads += reads_of_ledger(plan)
    return Answered(
        name=name,
        took_s=min(times),
        rows=len(report.rows),
        events_read=sum(one.rows for one in reads),
        whole_partitions=sorted({one.table for one in reads if one.is_whole}),
    )


def _table(answers: Sequence[Answered]) -> list[str]:
    """Return the table of the reports."""
    return [
        "| report, one month | took | rows | rows of the ledger that it read |",
        "|---|--:|--:|--:|",
        *(
            f"| `{one.name}` | {one.took_s:.2f} s | {one.rows:,} | {one.events_read:,} |"
            for one in answers
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
