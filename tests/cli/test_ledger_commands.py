"""Months, reconciliation and journals at the terminal: the output for scripts, the refusals, and
the bookings.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest

from gateway.storage.ledger.journals_table import JournalTable
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests.cli.conftest import Cli
from tests.journal.factories import a_journal
from tests.storage.factories import UNKNOWN, event, request_id

ID = str(request_id(1))


@pytest.fixture
def ledger(database: Database) -> Iterator[Ledger]:
    """The ledger of the command line's database."""
    ledger = Ledger(database)
    yield ledger
    ledger.close()


def test_an_unknown_attempt_is_found_resolved_and_gone(cli: Cli, ledger: Ledger) -> None:
    """The complete reconciliation: list open attempts, enter the cost, nothing is open."""
    ledger.write([event(1, **UNKNOWN)])
    assert cli.month_check("2026-11", "unsettled-events") == "warn"
    (listed,) = json.loads(cli.ok("report", "unsettled", "--format", "json"))["rows"]
    assert listed["request_id"] == ID

    out = cli.ok(
        "reconcile",
        "resolve",
        ID,
        "--as",
        "0.0000012",
        "--reason",
        "invoice 4711",
        "--format",
        "json",
    )

    booked = json.loads(out)
    assert (booked["cost_usd"], booked["posted_period"], booked["attempt"]) == (
        0.0000012,
        "2026-11",
        1,
    )
    assert json.loads(cli.ok("report", "unsettled", "--format", "json"))["rows"] == []
    assert cli.month_check("2026-11", "unsettled-events") == "ok"
    again = cli("reconcile", "resolve", ID, "--as", "zero", "--reason", "x")
    assert (again.code, again.out) == (2, "")
    assert "resolved already" in again.err


@pytest.mark.parametrize(
    "amount", ["-1", "1e400", "nan", "inf", "0.0000000001", "9000000001", "a lot", "", "1,5"]
)
def test_an_invalid_amount_books_nothing(cli: Cli, ledger: Ledger, amount: str) -> None:
    """A slip of the keyboard must not become money."""
    ledger.write([event(1, **UNKNOWN)])
    ran = cli("reconcile", "resolve", ID, f"--as={amount}", "--reason", "x")
    assert ran.code == 2, ran
    assert cli.month_check("2026-11", "unsettled-events") == "warn", "still open"


def test_a_resolution_needs_a_reason(cli: Cli, ledger: Ledger) -> None:
    """An auditor asks how it was known."""
    ledger.write([event(1, **UNKNOWN)])
    assert cli("reconcile", "resolve", ID, "--as", "zero", "--reason", "  ").code == 2
    assert cli("reconcile", "resolve", ID, "--as", "zero").code == 2


def test_an_amount_above_the_hold_is_booked_and_reported(cli: Cli, ledger: Ledger) -> None:
    """The hold is meant to be a bound: whoever sees it broken must hear of it."""
    ledger.write([event(1, **UNKNOWN)])
    ran = cli("reconcile", "resolve", ID, "--as", "$1", "--reason", "invoice")
    assert ran.code == 0
    assert "More than its hold" in ran.err


def test_a_month_is_listed_check_by_check(cli: Cli, ledger: Ledger) -> None:
    """A script that closes months reads each line."""
    ledger.write([event(1, at=datetime.now(UTC))])
    checks = json.loads(cli.ok("month", "status", "--format", "json"))
    assert {check["status"] for check in checks} == {"ok"}
    assert {
        "unsettled-events",
        "unpriced-models",
        "missing-gpu-bills",
        "dead-letters",
        "conflicting-events",
    } <= {c["check"] for c in checks}
    assert cli("month", "status", "2026-13").code == 2


def test_a_journal_that_a_gateway_here_holds_is_not_lost(
    cli: Cli, database: Database, tmp_path: Path
) -> None:
    """The lease of a running gateway was booked as spent, and then all that it went on to spend."""
    journal = a_journal(tmp_path / "home/journal")
    command = ("journal", "lost", str(journal.journal_id), "--reason", "the wrong line")
    JournalTable(database).register(journal.journal_id, replica="gateway-1")
    ran = cli(*command)
    assert (ran.code, "is held by a gateway" in ran.err) == (2, True), ran
    assert json.loads(cli.ok("journal", "list", "--format", "json"))[0]["state"] == "live"
    journal.close(is_drained=False)
    cli.ok(*command)


def test_a_journal_is_listed_and_declared_lost_once(cli: Cli, database: Database) -> None:
    """Only a live journal can be lost, and the reason stays beside it."""
    assert "No gateway has written" in cli("journal", "list").err
    journals, live, done = JournalTable(database), uuid4(), uuid4()
    journals.register(live, replica="gateway-1")
    journals.register(done, replica="gateway-2")
    journals.drained(done)

    assert cli("journal", "lost", str(live), "--reason", "disk died").code == 0

    rows = {
        row["id"]: row
        for row in csv.DictReader(io.StringIO(cli.ok("journal", "list", "--format", "csv")))
    }
    assert (rows[str(live)]["state"], rows[str(live)]["note"]) == ("lost", "disk died")
    assert rows[str(done)]["state"] == "drained"
    for journal, code, words in (
        (live, 2, "is lost"),
        (done, 2, "is drained"),
        (uuid4(), 1, "No journal"),
    ):
        ran = cli("journal", "lost", str(journal), "--reason", "x")
        assert (ran.code, words in ran.err) == (code, True), ran
    assert cli("journal", "lost", "x", "--reason", "x").code == 2
    lost_in = str(rows[str(live)]["heartbeat"])[:7]
    assert cli.month_check(lost_in, "lost-journals") == "warn", "what it held is missing"
    journals.register(live, replica="gateway-1")
    assert json.loads(cli.ok("journal", "list", "--format", "json"))[0]["state"] == "live", (
        "it turned up again"
    )
