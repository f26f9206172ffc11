"""Records that Postgres refused: found, booked once when the tables can hold them, or dismissed
with a reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest

from gateway.storage.ledger.documents import encode_event
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests.cli.conftest import Cli
from tests.storage.factories import event

# The tables of an older release, which a gateway has outrun.
OLDER = "ALTER TABLE tollgate.usage_events ADD CONSTRAINT older CHECK (outcome <> 'ok') NOT VALID"
NEWER = "ALTER TABLE tollgate.usage_events DROP CONSTRAINT older"


@pytest.fixture
def ledger(database: Database) -> Iterator[Ledger]:
    """The ledger of the command line's database."""
    ledger = Ledger(database)
    yield ledger
    ledger.close()


def execute(url: str, statement: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(statement.encode())


def listed(cli: Cli) -> list[dict[str, Any]]:
    return list(json.loads(cli.ok("reconcile", "dead-letters", "--format", "json")))


def spent_usd(cli: Cli) -> float:
    rows = json.loads(cli.ok("report", "spend", "--month", "2026-11", "--format", "json"))["rows"]
    return float(sum(row["cost_usd"] for row in rows))


def test_events_that_the_upgraded_tables_accept_are_booked_once(
    cli: Cli, ledger: Ledger, database_url: str
) -> None:
    """A gateway was upgraded before its database: the attempts it served belong into the books all
    the same.
    """
    execute(database_url, OLDER)
    assert ledger.write_documents([encode_event(event(n)) for n in (1, 2)]).dead == 2
    first, second = listed(cli)
    assert "older" in first["error"]
    again = cli("reconcile", "retry", "--format", "json")
    assert (again.code, [row["booked"] for row in json.loads(again.out)]) == (1, [None, None])
    assert "Refused again: 2 of 2" in again.err
    execute(database_url, NEWER)

    one = json.loads(cli.ok("reconcile", "retry", first["letter"], "--format", "json"))
    after_one = spent_usd(cli)
    rest = json.loads(cli.ok("reconcile", "retry", "--format", "json"))

    assert [row["letter"] for row in one + rest] == [first["letter"], second["letter"]]
    assert (listed(cli), spent_usd(cli)) == ([], 2 * after_one)
    assert after_one > 0
    assert json.loads(cli.ok("reconcile", "retry", "--format", "json")) == []
    assert cli.month_check("2026-11", "dead-letters") == "ok"


def test_a_retry_that_was_cut_off_books_nothing_twice(
    cli: Cli, ledger: Ledger, database_url: str
) -> None:
    """The event was booked and the letter not yet noted as dealt with."""
    execute(database_url, OLDER)
    document = encode_event(event(1))
    assert ledger.write_documents([document]).dead == 1
    execute(database_url, NEWER)
    assert ledger.write_documents([document]).inserted == 1
    before = spent_usd(cli)
    (tried,) = json.loads(cli.ok("reconcile", "retry", "--format", "json"))
    assert (tried["booked"], spent_usd(cli)) == ("was in the ledger already", before)


def test_one_refused_does_not_keep_the_others_out(
    cli: Cli, ledger: Ledger, database_url: str
) -> None:
    """A bug's record beside good ones: those are booked, and it stays for whoever fixes the bug."""
    execute(database_url, OLDER)
    assert ledger.write_documents([b"no record", encode_event(event(1))]).dead == 2
    execute(database_url, NEWER)
    assert cli("reconcile", "retry").code == 1
    (left,) = listed(cli)
    assert "22P02" in left["error"]


def test_a_record_is_dismissed_with_a_reason_that_an_auditor_reads(
    cli: Cli, ledger: Ledger
) -> None:
    """No team is charged for it, so a person must have given the reason."""
    ledger.write_documents([b"no record"])
    (letter,) = listed(cli)
    assert cli.month_check("2026-11", "dead-letters") == "fail"
    assert cli("reconcile", "dismiss", letter["letter"], "--reason", " ").code == 2
    assert len(listed(cli)) == 1
    cli.ok("reconcile", "dismiss", letter["letter"], "--reason", "made by a test machine")
    assert listed(cli) == []
    assert cli.month_check("2026-11", "dead-letters") == "ok"
    assert "made by a test machine" in cli.ok("audit", "list", "--format", "json")
    assert cli("reconcile", "dismiss", letter["letter"], "--reason", "again").code == 1


@pytest.mark.parametrize(
    ("letter", "code", "message"),
    [("nonsense", 2, "is not a record's id"), (str(UUID(int=7, version=4)), 1, "waits")],
)
@pytest.mark.parametrize("command", ["retry", "dismiss"])
def test_an_unknown_record_is_reported(
    cli: Cli, command: str, letter: str, code: int, message: str
) -> None:
    """A slip must not look like something done."""
    ran = cli("reconcile", command, letter, *(["--reason", "x"] if command == "dismiss" else []))
    assert (ran.code, message in ran.err) == (code, True), ran
