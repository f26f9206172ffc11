"""The doctor looks into the ledger: journals, writers, unknown usage, partitions, dead letters,
roll-ups.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg

from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from gateway.main import build_toolbox
from gateway.settings import Settings
from gateway.storage.ledger import rollups
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests.cli.conftest import Cli
from tests.policy.documents import changed
from tests.running_server import running
from tests.storage.factories import event

READY = {
    "status": "not ready",
    "problems": ["The journal is full: bring Postgres back."],
    "checks": [
        {
            "check": "journal",
            "status": "fail",
            "finding": "full",
            "what_to_do": "see docs/runbooks/journal-filling.md",
        },
        {"check": "writer", "status": "ok", "finding": "0 event(s) wait", "what_to_do": ""},
    ],
}


def checks(cli: Cli) -> dict[str, dict[str, str]]:
    return {row["check"]: row for row in json.loads(cli("doctor", "--format", "json").out)}


def test_a_quiet_ledger_has_nothing_to_say(applied: Cli) -> None:
    """Every line is there, and none of them asks for anything."""
    found = checks(applied)
    for name in (
        "journals",
        "writers",
        "unknown usage",
        "partitions",
        "dead letters",
        "conflicting events",
        "roll-up",
        "unlisted members",
    ):
        assert (found[name]["status"], found[name]["what to do"]) == ("ok", ""), found[name]


def test_requests_that_a_hard_budget_would_refuse_are_named(
    applied: Cli, policy_file: Path, database_url: str
) -> None:
    """After an upgrade the operator hears of them before the callers do."""
    hard = "{name: payments, budgets: [{period: month, limit_usd: 5000}],"
    policy_file.write_text(changed("{name: payments,", hard))
    applied.ok("policy", "apply", str(policy_file), "--yes")
    now = datetime.now(UTC)
    database = Database(database_url)
    kept = {"features": ["unknown_fields"]}
    Ledger(database).write(
        [
            event(
                1,
                at=now,
                deployment="gpt-eu",
                features={**kept, "unlisted": ["frobnicate", "pace"]},
            ),
            event(2, at=now, deployment="gpt-eu", features={**kept, "unlisted": ["frobnicate"]}),
            event(3, at=now, deployment="gpt-eu", features={**kept, "unlisted": []}),
            event(4, at=now, deployment="gpt-eu", features=kept),
            event(
                5,
                at=now - timedelta(days=31),
                deployment="gpt-eu",
                features={**kept, "unlisted": ["old"]},
            ),
        ]
    )
    database.close()
    found = checks(applied)["unlisted members"]
    assert found["status"] == "warn"
    assert found["finding"] == (
        "a hard budget would refuse such requests of the last 30 days: payments: 2 with "
        "frobnicate, pace, 1 with members that were not recorded"
    )
    assert "unlisted: drop" in found["what to do"]


def test_each_ledger_problem_is_named_with_its_runbook(applied: Cli, database_url: str) -> None:
    """A person woken by an alert finds the same problem here, and its page with the remedy."""
    now = datetime.now(UTC)
    database = Database(database_url)
    unknown: dict[str, Any] = {
        "usage": TokenUsage(),
        "usage_source": UsageSource.UNKNOWN,
        "lines": (),
        "cost_nusd": None,
        "held_nusd": 7,
    }
    Ledger(database).write(
        [event(1, at=now, **unknown), event(2, at=now), event(3, at=now - timedelta(days=400))]
    )
    database.close()
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "INSERT INTO tollgate.dead_letters (document, error, digest) VALUES ('\\x00', "
            "'no', '\\x01')"
        )
        connection.execute(
            "INSERT INTO tollgate.journals (id, replica, heartbeat) VALUES (gen_random_uuid(), "
            "'gone', now() - interval '2 hours')"
        )
        connection.execute(
            "INSERT INTO tollgate.adjustments (adjustment_id, team, cost_centre, posted_period, "
            "occurred_at, amount_nusd, kind, reason, author) VALUES (gen_random_uuid(), 't', 'c', "
            "'2026-11-01', now(), 1, 'redelivery', 'came again', 'x')"
        )
    found = checks(applied)
    shown = {name: (row["status"], row["finding"]) for name, row in found.items()}
    assert shown["unknown usage"] == (
        "warn",
        "1 of 2 attempts of the last hour are unknown (50.0%)",
    )
    assert shown["partitions"] == ("warn", "1 event(s) in the default partition")
    assert (
        shown["dead letters"][0] == shown["conflicting events"][0] == shown["writers"][0] == "warn"
    )
    assert shown["roll-up"][0] == "ok"
    for name in ("unknown usage", "partitions", "dead letters", "conflicting events", "writers"):
        assert "docs/runbooks/" in found[name]["what to do"]


def test_a_journal_left_behind_is_named(applied: Cli) -> None:
    """Its events are in no total until somebody starts a gateway there."""
    journal_id = uuid4()
    (applied.toolbox.options.journal_path / str(journal_id)).mkdir(parents=True)
    row = checks(applied)["journals"]
    assert row["status"] == "warn"
    assert str(journal_id) in row["finding"]
    assert "start a gateway" in row["what to do"]


def test_an_entry_that_is_no_journal_is_named(applied: Cli) -> None:
    """It is no fault of Tollgate's, and the other checks go on."""
    journal_id = uuid4()
    applied.toolbox.options.journal_path.mkdir(parents=True)
    (applied.toolbox.options.journal_path / str(journal_id)).touch()
    found = checks(applied)
    assert found["journals"]["status"] == "warn"
    assert f"cannot be read: {journal_id}" in found["journals"]["finding"]
    assert found["roll-up"]["status"] == "ok"


def test_doctor_repeats_the_health_of_a_running_gateway(
    cli_at: Callable[[str], Cli], database_url: str, tmp_path: Any
) -> None:
    """Only that process knows its journal's age and its writer's lag."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503)
            self.end_headers()
            self.wfile.write(json.dumps(READY).encode())

        def log_message(self, *_: Any) -> None:
            pass

    with running(HTTPServer(("127.0.0.1", 0), Handler)) as server:
        settings = Settings(
            home=tmp_path / "home", database_url=database_url, port=server.server_address[1]
        )
        found = checks(Cli(build_toolbox(settings)))
    assert (found["gateway"]["status"], found["gateway"]["finding"]) == (
        "fail",
        READY["problems"][0],
    )
    assert found["gateway journal"]["status"] == "fail"
    assert found["gateway journal"]["what to do"] == "see docs/runbooks/journal-filling.md"
    assert found["gateway writer"]["status"] == "ok"


def test_a_wrong_sum_is_corrected_by_the_remedy_of_its_check(
    applied: Cli, database_url: str
) -> None:
    """`db upgrade` rebuilt nothing: reports showed a dollar too much for as long as nobody knew
    the statement.
    """
    now = datetime.now(UTC)
    database = Database(database_url)
    Ledger(database).write([event(1, at=now), event(2, at=now - timedelta(days=1, hours=1))])
    rollups.refresh(database)
    database.close()
    spend = ("report", "spend", "--by", "team", "--month", "all", "--format", "json")
    right = json.loads(applied.ok(*spend))["total"]
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE tollgate.spend_rollup SET cost_nusd = cost_nusd + 1000000000")
    assert json.loads(applied.ok(*spend))["total"] != right
    row = checks(applied)["roll-up"]
    assert (row["status"], row["what to do"][:19]) == ("fail", "tollgate db upgrade")
    assert "2 hour(s) had other sums than their events" in applied("db", "upgrade").err
    assert checks(applied)["roll-up"]["status"] == "ok"
    assert json.loads(applied.ok(*spend))["total"] == right
    assert "had other sums" not in applied("db", "upgrade").err
