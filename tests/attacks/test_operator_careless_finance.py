"""A careless finance person: months that are not, weeks that no year has, an entry for 2062, a rate
of 400 digits, a filter twice. Each is an answer in words, and nothing changes.

Found by an attacker who simulated that person, on 2026-11-26.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from gateway.errors import OperatorError
from gateway.main import build_toolbox
from gateway.settings import Settings
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.ledger.month_findings import CHECKS
from gateway.storage.ledger.months import MonthStore
from gateway.storage.postgres.database import Database
from tests.cli.conftest import Cli, cli, cli_at
from tests.storage.factories import event

__all__ = ["cli", "cli_at"]

ENTRY = ("--from", "A", "--to", "B", "--amount-usd", "1", "--reason", "x")
AUGUST = date(2026, 8, 1)
RATE = ("--from", "2026-11-01", "--source", "x")
LAST_ID = "ffffffff-ffff-7fff-bfff-ffffffffffff"
REFUSED: tuple[tuple[int, tuple[str, ...], str], ...] = (
    *(
        (2, (*command, month), "from 1970-01 to 2999-12")
        for month in ("9999-12", "0001-01", "0000-01", "3000-01")
        for command in (
            ("month", "status"),
            ("month", "close", "--yes"),
            ("month", "verify"),
            ("report", "spend", "--month"),
            ("report", "forecast", "--month"),
            ("report", "spikes", "--month"),
            ("export", "events", "--month"),
            ("reconcile", "show", "--provider", "openai", "--month"),
            ("reconcile", "approve", "--provider", "openai", "--reason", "x", "--yes", "--month"),
            ("reallocation", "add", *ENTRY, "--month"),
            ("audit", "residency", "--team", "payments", "--month"),
        )
    ),
    (2, ("report", "spend", "--month", "２０２６-10"), "is not a month"),
    (2, ("report", "spend", "--where", "week=2025-W53"), "is not a week"),
    (2, ("report", "spend", "--where", "week=2026-W00"), "is not a week"),
    (2, ("report", "spend", "--where", "hour=2026-11-31T10:00Z"), "is not an hour"),
    (2, ("report", "spend", "--where", "hour=2026-11-30T24:00Z"), "is not an hour"),
    (2, ("report", "spend", "--where", "quarter=0000-Q1"), "is not a quarter"),
    (2, ("report", "spend", "--where", "team=a", "--where", "team=b"), "names team twice"),
    (2, ("report", "spend", "--by", "tag:\0"), "NUL"),
    (2, ("report", "spend", "--where", "end_user=\0"), "NUL"),
    (2, ("report", "receipt", LAST_ID), "is not a request id"),
    (2, ("reallocation", "add", *ENTRY, "--month", "2062-11"), "2062-11 has not begun"),
    (2, ("currency", "add", "EUR", "--usd-per-unit", "1e400", *RATE), "--usd-per-unit is from"),
    (2, ("currency", "add", "EUR", "--usd-per-unit", "1e-400", *RATE), "--usd-per-unit is from"),
)


def test_a_slip_is_answered_in_words_and_changes_nothing(cli: Cli, database: Database) -> None:
    """An `OverflowError` names no next step, and an entry for 2062 is found by nobody."""
    Ledger(database).write([event(1)])
    before = cli.ok("reallocation", "list", "--format", "json")
    for code, command, words in REFUSED:
        ran = cli(*command)
        assert (ran.code, ran.out) == (code, ""), (command, ran)
        assert words in ran.err, (command, ran.err)
        assert "failed in a way" not in ran.err
    assert cli.ok("reallocation", "list", "--format", "json") == before
    assert cli.ok("currency", "list", "--format", "csv").count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ("--month", "1970-01", "--compare", "year"),
        ("--month", "2999-12", "--compare", "previous"),
        ("--month", "last", "--compare", "previous"),
        ("--from", "0001-01-01", "--to", "9999-12-31", "--by", "quarter"),
        ("--from", "2024-02-29", "--to", "2024-02-29", "--compare", "year"),
        ("--where", "week=2026-W53"),
    ],
    ids=" ".join,
)
def test_a_rare_time_is_a_time(cli: Cli, words: tuple[str, ...]) -> None:
    """A leap day, a week 53 and the ends of the calendar are asked for too."""
    assert cli("report", "spend", *words, "--format", "json").code == 0


def test_two_terminals_close_a_month_once(cli: Cli, database: Database) -> None:
    """Two people of finance follow the same list; the second one gets an answer, not a version."""
    Ledger(database).write([event(1, at=datetime(2026, 8, 3, tzinfo=UTC))])
    accepted = {check.name: "a test" for check in CHECKS}

    def close(_: int) -> str:
        try:
            made = MonthStore(database).close(AUGUST, billed=(), accepted=accepted)
        except OperatorError as refused:
            return str(refused)
        return f"version {made.version}"

    with ThreadPoolExecutor(4) as people:
        found = sorted(people.map(close, range(4)))
    assert found.count("version 1") == 1, found
    assert sum("Nothing was changed" in one for one in found) == 3, found
    assert len(MonthStore(database).closes(AUGUST)) == 1


@pytest.mark.parametrize("purpose", ["reports", "gateway"])
def test_a_login_without_rights_closes_and_approves_nothing(
    cli: Cli, database: Database, database_url: str, tmp_path: Path, purpose: str
) -> None:
    """The wrong line of `db url` was pasted: the answer names the login and the right it lacks."""
    Ledger(database).write([event(1, at=datetime(2026, 8, 3, tzinfo=UTC))])
    entry = json.loads(
        cli.ok("reallocation", "add", *ENTRY, "--month", "2026-08", "--format", "json")
    )
    wrong = cli.ok("db", "url", "--as", purpose).strip()
    settings = Settings(
        home=tmp_path / "home", database_url=database_url, finance_database_url=wrong
    )
    pasted = Cli(build_toolbox(settings))
    accepts = [word for check in CHECKS for word in ("--accept", f"{check.name}=a test")]
    for command in (
        ("month", "close", "2026-08", "--yes", *accepts),
        ("reallocation", "approve", entry["reallocation_id"], "--reason", "x", "--yes"),
    ):
        ran = pasted(*command)
        assert (ran.code, ran.out) == (3, ""), ran
        assert "finance" in ran.err
        assert "failed in a way" not in ran.err
    assert MonthStore(database).closes(AUGUST) == []
    (listed,) = json.loads(cli.ok("reallocation", "list", "--format", "json"))
    assert listed["state"] == "proposed"


@pytest.mark.parametrize(
    ("purpose", "command"),
    [
        ("finance", ("month", "verify", "2026-08")),
        ("admin", ("reallocation", "add", *ENTRY, "--month", "2026-08")),
        ("reports", ("report", "spend")),
        ("gateway", ("demo-data",)),
    ],
)
def test_a_wrong_address_names_its_own_variable(
    cli: Cli, database_url: str, tmp_path: Path, purpose: str, command: tuple[str, ...]
) -> None:
    """The password in TOLLGATE_FINANCE_DATABASE_URL was wrong, and the message said to fix
    TOLLGATE_DATABASE_URL, which was right.
    """
    nowhere = {f"{purpose}_database_url": f"postgresql://me:hunter2@/tollgate?host={tmp_path}"}
    settings = Settings(home=tmp_path / "home", database_url=database_url, **nowhere)
    ran = Cli(build_toolbox(settings))(*command)
    assert (ran.code, ran.out) == (3, ""), ran
    assert f"fix TOLLGATE_{purpose.upper()}_DATABASE_URL" in ran.err
    assert "hunter2" not in ran.err
