"""The reports `refusals`, `prices`, `residency`, `closes` and `audit` beside the rows they read."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import psycopg
import pytest

from gateway.errors import BadUsage, RequestError
from gateway.reports.json_and_csv import to_json
from gateway.reports.question import ask
from gateway.reports.records.refusals import OTHER_REMEDY, REMEDIES
from gateway.reports.reports import Reports, open_reports
from gateway.reports.scope import WHOLE_ORGANISATION
from gateway.storage.ledger import rollups
from gateway.storage.postgres.database import Database
from tests.cli.conftest import Cli, applied, cli, cli_at, policy_file
from tests.policy.documents import EXAMPLE
from tests.refused import refuse
from tests.reports.conftest import Write
from tests.storage.factories import event

__all__ = ["applied", "cli", "cli_at", "policy_file"]  # fixtures of the command line
HOUR = datetime(2026, 11, 20, 12, tzinfo=UTC)


@pytest.fixture
def refused(database_url: str) -> None:
    """Counts of two codes, and one of shadow mode, which refused nothing."""
    gateway = Database(database_url, role="tollgate_gateway")
    refuse(
        gateway,
        HOUR,
        team="payments",
        code="residency_denied",
        times=3,
        rules=["class:restricted"],
        data_class="restricted",
        project="shop",
        key_id="k123456789",
    )
    refuse(gateway, HOUR - timedelta(hours=30), team="search", code="rate_limited", times=5)
    refuse(gateway, HOUR, team="search", code="shadow:rate_limited", times=9, rules=["search"])
    gateway.close()


def test_refusals_are_counted_by_code_team_route_and_time(finance: Reports, refused: None) -> None:
    """Shadow mode refused nothing, so its counts are in another report."""
    report = finance.run("refusals", ask(month="2026-11"))
    assert report.total == {"requests": 8}
    assert [
        (row["code"], row["team"], row["route"], row["requests"], row["share"])
        for row in report.records()
    ] == [
        ("rate_limited", "search", "assistant", 5, Decimal("0.625000")),
        ("residency_denied", "payments", "assistant", 3, Decimal("0.375000")),
    ]
    assert "requests_per_minute" in str(report.records()[0]["remedy"])
    latest = finance.run("refusals", ask(month="2026-11", by=["hour", "team"])).records()
    assert [row["hour"] for row in latest] == ["2026-11-20T12:00Z", "2026-11-19T06:00Z"]
    one_day = finance.run("refusals", ask(first="2026-11-19", last="2026-11-19", by=[]))
    assert [(row["code"], row["requests"]) for row in one_day.records()] == [("rate_limited", 5)]
    of_team = finance.run("refusals", ask(month="2026-11", where={"team": "payments"}))
    assert of_team.total == {"requests": 3}
    assert json.loads(to_json(report))["total"] == {"requests": 8}
    by_key = finance.run("refusals", ask(month="2026-11", by=["project", "key"])).records()
    assert [(row["project"], row["key"], row["rule"], row["requests"]) for row in by_key] == [
        (None, None, None, 5),
        ("shop", "k123456789", "class:restricted", 3),
    ]
    with pytest.raises(BadUsage, match="does not know model"):
        finance.run("refusals", ask(by=["model"]))


def test_each_remedy_is_of_a_code_that_exists() -> None:
    """A remedy of a misspelt code would never be shown."""
    codes: set[str] = set()
    classes: list[type[RequestError]] = [RequestError]
    while classes:
        last = classes.pop()
        classes += last.__subclasses__()
        codes.add(str(getattr(last, "code", "")))
    assert set(REMEDIES) <= codes
    assert OTHER_REMEDY not in REMEDIES.values()


def test_residency_adds_up_to_the_events(
    finance: Reports, write: Write, refused: None, database: Database
) -> None:
    """Each attempt went to one place; refused requests went nowhere."""
    write(
        event(1),
        event(2, team="search", data_class="internal", region="us"),
        event(3, deployment="qwen-eu", is_self_hosted=True, data_class="restricted"),
    )
    rollups.refresh(database)
    report = finance.run("residency", ask(month="2026-11"))
    assert report.total == {"attempts": 3, "refused_requests": 3}
    rows = report.records()
    assert {
        (row["team"], row["data_class"], row["region"], row["destination"], row["attempts"])
        for row in rows
        if row["decision"] == "sent"
    } == {
        ("payments", "confidential", "eu", "external", 1),
        ("search", "internal", "us", "external", 1),
        ("payments", "restricted", "eu", "self-hosted", 1),
    }
    (denied,) = [row for row in rows if row["decision"] == "refused"]
    assert (denied["rules"], denied["refused_requests"]) == ("class:restricted", 3)
    in_us = finance.run("residency", ask(month="2026-11", where={"region": "us"}))
    assert in_us.total == {"attempts": 1, "refused_requests": 0}
    with pytest.raises(BadUsage, match="cannot be filtered by tag"):
        finance.run("residency", ask(where={"tag": "a=b"}))


def test_prices_have_source_date_and_calibration(applied: Cli, database_url: str) -> None:
    """The current ones are those that `price list` prints."""
    applied.ok(
        *("price", "add", "--deployment", "gpt-eu", "--input", "9", "--output", "18"),
        *("--effective-from", "2999-01-01", "--source", "contract 4711", "--reason", "announced"),
    )
    listed = json.loads(applied.ok("price", "list", "--format", "json"))
    with open_reports(database_url, scope=WHOLE_ORGANISATION) as finance:
        rows = finance.run("prices", ask()).records()
        month = finance.run("prices", ask(month="2999-01", where={"deployment": "gpt-eu"}))
    current = {
        (row["deployment"], Decimal(str(row["input_usd_per_mtok"])))
        for row in rows
        if row["state"] == "current" and row["input_usd_per_mtok"] is not None
    }
    assert current == {
        (one["deployment"], Decimal(str(one["usd_per_mtok"])))
        for one in listed
        if one["kind"] == "input"
    }
    own = [row for row in rows if row["deployment"] == "qwen-eu"]
    assert {row["calibration"] for row in own} == {"uncalibrated: the policy's declared speed"}
    assert all(row["source"] for row in rows)
    assert [(row["state"], row["input_usd_per_mtok"]) for row in month.records()][-1] == (
        "coming",
        Decimal(9),
    )


def test_the_audit_report_is_the_log_and_its_chain(applied: Cli, database_url: str) -> None:
    """Newest first, with the hash; a changed row is found."""
    with open_reports(database_url, scope=WHOLE_ORGANISATION) as finance:
        report = finance.run("audit", ask(month=None))
        chain = finance.audit_chain()
    acts = json.loads(applied.ok("audit", "list", "--all", "--format", "json"))
    rows = report.records()
    assert [row["seq"] for row in rows] == [act["seq"] for act in reversed(acts)]
    assert report.total == {"acts": len(acts)}
    assert "policy.apply" in {row["action"] for row in rows}
    assert (chain.rows, chain.findings) == (len(acts), ())
    assert chain.head is not None
    assert chain.head.hash == rows[0]["hash"]
    with psycopg.connect(database_url) as connection:
        connection.execute("ALTER TABLE tollgate.audit_log DISABLE TRIGGER USER")
        connection.execute("UPDATE tollgate.audit_log SET reason = 'another' WHERE seq = 1")
        connection.execute("ALTER TABLE tollgate.audit_log ENABLE TRIGGER USER")
    with open_reports(database_url, scope=WHOLE_ORGANISATION) as finance:
        assert [one.seq for one in finance.audit_chain().findings][:1] == [1]


def test_the_dashboard_counts_the_hours_that_the_policies_declare(
    applied: Cli, database_url: str
) -> None:
    """`month status` passes them; the dashboard lets the report read them."""
    always = EXAMPLE.replace("target_utilisation: 0.5}", "target_utilisation: 0.5, hours: always}")
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "INSERT INTO tollgate.policies (sha256, document, author, message, is_demo, "
            "applied_at) VALUES ('', %s, '', '', false, '2026-10-05T00:00Z')",
            (always,),
        )
    october = datetime(2026, 10, 1, tzinfo=UTC).date()
    listed = json.loads(applied("month", "status", "2026-10", "--format", "json").out)
    with open_reports(database_url, scope=WHOLE_ORGANISATION) as finance:
        checks = {one.name: one.finding for one in finance.month_status(october).checks}
    assert {row["check"]: row["finding"] for row in listed} == checks
    assert "hour(s) of self-hosted GPUs have no known bill: qwen-eu" in checks["missing-gpu-bills"]


def test_closes_lists_each_version(applied: Cli, write: Write, database: Database) -> None:
    """The first version stays after a reopening, with the reason."""
    write(event(1, at=datetime(2026, 10, 5, 12, tzinfo=UTC)))
    rollups.refresh(database)
    accept = [
        *("--accept", "unreconciled-providers=a test", "--accept", "unpartitioned-events=a test")
    ]
    applied.ok("month", "close", "2026-10", "--yes", *accept)
    applied.ok("month", "reopen", "2026-10", "--yes", "--reason", "a credit note")
    rows = json.loads(applied.ok("report", "closes", "--format", "json"))["rows"]
    assert [(row["month"], row["version"], row["state"]) for row in rows] == [
        ("2026-10-01", 1, "reopened")
    ]
    assert rows[0]["reopen_reason"] == "a credit note"
    assert rows[0]["accepted"] == "unpartitioned-events: a test; unreconciled-providers: a test"
