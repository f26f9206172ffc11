"""`tollgate month` and `report --as-closed`: their output, refusals and records."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gateway.storage.ledger import rollups
from gateway.storage.ledger.documents import encode_event
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests.cli.conftest import Cli
from tests.storage.factories import UNKNOWN, event, request_id

OCTOBER = datetime(2026, 10, 5, 12, tzinfo=UTC)
ACCEPT = (
    *("--accept", "unpartitioned-events=a test's events"),
    *("--accept", "unreconciled-providers=a test has no bill"),
)
# Each with its own way of reading; `events` is the CSV of the single ones.
REPORTS = (
    ("spend", "--by", "team"),
    ("spend", "--by", "tag"),
    ("spend", "--by", "key,hour"),
    ("overview",),
    ("tokens",),
    ("savings",),
    ("retries",),
    ("latency",),
    ("destinations",),
    ("events",),
    ("unsettled",),
    ("gpu",),
)


def spend(database: Database) -> None:
    """Events of October: of two teams, one of unknown cost, one of our own engine."""
    Ledger(database).write(
        [
            event(1, at=OCTOBER),
            event(2, at=OCTOBER, team="search", tags={}, cost_nusd=7),
            event(3, at=OCTOBER, **UNKNOWN),
        ]
    )
    rollups.refresh(database)


def closed(cli: Cli) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(
        cli.ok(
            *("month", "close", "2026-10", "--yes", "-f", "json", *ACCEPT),
            *("--accept", "unsettled-events=the invoice comes in December"),
            *("--accept", "unknown-share=as above"),
        )
    )
    return record


def test_status_lists_stable_checks_with_what_settles_them(cli: Cli, database: Database) -> None:
    """Scripts accept checks by name; people need the next command."""
    spend(database)
    ran = cli("month", "status", "2026-10", "--format", "json")
    rows = {row["check"]: row for row in json.loads(ran.out)}
    assert ran.code == 1
    assert "2026-10 is provisional" in ran.err
    assert "tollgate month close 2026-10 --accept CHECK=WHY" in ran.err
    assert rows["unsettled-events"]["status"] == "warn"
    assert "reconcile resolve" in rows["unsettled-events"]["mend"]
    assert all(set(row) == {"check", "status", "finding", "mend"} for row in rows.values())
    assert {*rows} == {
        *("unsettled-events", "unknown-share", "unpriced-models", "stand-in-prices"),
        *("suspect-usage", "expected-costs", "conflicting-events"),
        *("unreconciled-providers", "missing-gpu-bills"),
        *("dead-letters", "silent-journals", "lost-journals", "dirty-hours"),
        "unpartitioned-events",
    }


def test_a_month_closes_only_with_each_check_settled_or_accepted(
    cli: Cli, database: Database
) -> None:
    """Else a figure that everybody knows to be wrong would stand for good."""
    spend(database)
    coming = f"{datetime.now(UTC) + timedelta(days=31):%Y-%m}"
    for arguments, code, said in (
        (("2026-10",), 2, "--yes"),
        (("2026-10", "--yes", *ACCEPT), 1, "unsettled-events, unknown-share"),
        (("2026-10", "--yes", "--accept", "unsettled-events"), 2, "CHECK=WHY"),
        (("2026-10", "--yes", "--accept", "all=x"), 2, "no check 'all'"),
        ((coming, "--yes"), 1, f"{coming} is not over"),
    ):
        ran = cli("month", "close", *arguments)
        assert (ran.code, said in ran.err) == (code, True), ran
        assert cli("month", "verify", "2026-10").code == 1, "nothing was closed"
    record = closed(cli)
    assert list(record) == [
        *("month", "state", "version", "sha256", "events", "adjustments", "total_usd"),
        *("closed_at", "author", "accepted"),
    ]
    assert (record["month"], record["state"], record["version"]) == ("2026-10", "closed", 1)
    assert (record["events"], record["adjustments"]) == (3, 0)
    assert round(record["total_usd"] * 10**9) == 600_007
    assert record["accepted"]["unknown-share"] == "as above"
    assert cli("month", "close", "2026-10", "--yes").code == 1


def test_a_month_without_attempts_closes_with_a_note(cli: Cli, database: Database) -> None:
    """September of an installation of today closed without a word."""
    empty = cli("month", "close", "2026-09", "--yes", *ACCEPT)
    assert empty.code == 0, empty
    assert "The ledger has no attempts in 2026-09. Attempts that come late" in empty.err
    spend(database)
    with_attempts = cli("month", "close", "2026-10", "--yes", *ACCEPT)
    assert "no attempts" not in with_attempts.err


def test_verify_names_what_was_changed_past_tollgate(cli: Cli, database: Database) -> None:
    """A superuser can switch a trigger off; the hash shows it."""
    spend(database)
    sha256 = closed(cli)["sha256"]
    row = json.loads(cli.ok("month", "verify", "2026-10", "--format", "json"))
    assert row["sha256"] == row["recomputed_sha256"] == sha256
    assert (row["state"], row["version"], row["differs"]) == ("closed", 1, [])
    with database.connect() as connection:
        connection.execute("ALTER TABLE tollgate.usage_events DISABLE TRIGGER rows_never_change")
        connection.execute("UPDATE tollgate.usage_events SET team = 'search' WHERE cost_nusd = 7")
        connection.execute("UPDATE tollgate.usage_events SET cost_nusd = 8 WHERE cost_nusd = 7")
        connection.commit()
    ran = cli("month", "verify", "2026-10", "--format", "json")
    row = json.loads(ran.out)
    assert (ran.code, row["sha256"] == sha256, row["differs"]) == (1, True, ["events", "figures"])
    assert row["recomputed_sha256"] != sha256
    assert "is not as it was closed: its events, figures changed" in ran.err


def test_a_closed_month_shows_the_same_bytes_for_ever(cli: Cli, database: Database) -> None:
    """Also after a late settlement, a price and cost centre that changed, and a reopening."""
    spend(database)
    assert cli("report", "spend", "--month", "2026-10", "--as-closed").code == 1
    record = closed(cli)

    def shown(*more: str) -> list[str]:
        return [
            cli.ok("report", *report, "--month", "2026-10", "--as-closed", *more, "-f", format)
            for report in REPORTS
            for format in ("json", "csv")
        ]

    before = shown()
    total = json.loads(before[0])["total"]
    assert (total["attempts"], total["unknown_attempts"]) == (3, 1)
    assert json.loads(before[0])["complete_until"][:19] == record["closed_at"][:19]
    cli.ok("reconcile", "resolve", str(request_id(3, OCTOBER)), "--as", "hold", "--reason", "x")
    Ledger(database).write(
        [event(8, at=OCTOBER, cost_centre="CC-NEW", price_id="price_fedcba9876543210")]
    )
    Ledger(database).write_documents([encode_event(event(1, at=OCTOBER, cost_nusd=9))])
    rollups.refresh(database)
    assert shown() == before
    cli.ok("month", "reopen", "2026-10", "--reason", "an invoice came", "--yes")
    assert cli("report", "spend", "--month", "2026-10", "--as-closed").code == 1
    Ledger(database).write([event(9, at=OCTOBER, cost_nusd=11)])
    assert closed(cli)["version"] == 2
    assert shown("--close-version", "1") == before
    assert shown("--close-version", "2") == shown() != before


@pytest.mark.parametrize(
    "arguments",
    [
        ("spend", "--as-closed"),
        ("spend", "--month", "2026-10", "--close-version", "1"),
        ("spend", "--month", "2026-10", "--as-closed", "--compare", "previous"),
        ("budgets", "--month", "2026-10", "--as-closed"),
    ],
)
def test_as_closed_says_what_it_goes_with(cli: Cli, arguments: tuple[str, ...]) -> None:
    """An option that is silently ignored shows the wrong figures."""
    assert cli("report", *arguments).code == 2
