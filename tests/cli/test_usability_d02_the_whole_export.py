"""Usability D2: `report events --format csv` wrote 100 of 445,023 rows and exited with 0."""

from __future__ import annotations

import csv
import json

import pytest

from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests.cli.conftest import Cli
from tests.storage.factories import event, request_id

EVENTS = 1_234  # more than a page, and more than the largest page


@pytest.fixture
def filled(cli: Cli, database: Database) -> Cli:
    """A command line on a ledger with more events than any page holds."""
    Ledger(database).write([event(number) for number in range(1, EVENTS + 1)])
    return cli


def test_csv_and_json_have_every_row(filled: Cli) -> None:
    """A cron job sees no note on standard error; finance books the file."""
    wanted = {str(request_id(number)) for number in range(1, EVENTS + 1)}
    as_csv = filled.ok("report", "events", "--where", "team=payments", "--format", "csv")
    assert {row["request_id"] for row in csv.DictReader(as_csv.splitlines())} == wanted
    as_json = json.loads(filled.ok("report", "events", "--format", "json"))
    assert {row["request_id"] for row in as_json["rows"]} == wanted
    assert (len(as_json["rows"]), as_json["total"]["attempts"]) == (EVENTS, EVENTS)


def test_a_limit_still_cuts_a_page(filled: Cli) -> None:
    """A script that pages goes on as before; a table stays one page."""
    page = json.loads(
        filled.ok("report", "events", "--format", "json", "--limit", "10", "--offset", "5")
    )
    assert len(page["rows"]) == 10
    assert "Events 6 to 15 of 1,234, newest first." in page["notes"]
    # The head, 100 rows and the total.
    assert len(filled.ok("report", "events").splitlines()) == 102


def test_an_export_without_rows_is_a_complete_document(filled: Cli) -> None:
    """An empty month must stay readable for the program behind it."""
    assert (
        json.loads(filled.ok("report", "events", "--month", "2020-01", "--format", "json"))["rows"]
        == []
    )
    assert len(filled.ok("report", "unsettled", "--format", "csv").splitlines()) == 1
