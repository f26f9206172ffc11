"""A re-allocation moves cost between cost centres only after a second login approved it, and
Postgres itself refuses every other way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from gateway.main import build_toolbox
from gateway.reports.question import ask
from gateway.reports.reports import Reports, open_reports
from gateway.reports.scope import WHOLE_ORGANISATION
from gateway.settings import Settings
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests.cli.conftest import Cli
from tests.storage.factories import event

ADD = ("--month", "2026-11", "--from", "CC-1207", "--to", "CC-3100", "--amount-usd", "0.000150")
NOVEMBER, DECEMBER = date(2026, 11, 1), date(2026, 12, 1)
Run = Callable[..., Cli]


@pytest.fixture
def as_login(tmp_path: Path, database_url: str) -> Run:
    """Return a function that makes a command line of one home, with more settings."""
    made = Cli(build_toolbox(Settings(home=tmp_path / "home", database_url=database_url)))
    made.ok("db", "upgrade")
    return lambda **more: Cli(
        build_toolbox(Settings(home=tmp_path / "home", database_url=database_url, **more))
    )


@pytest.fixture
def author(as_login: Run) -> Cli:
    """Return the command line of the author, with the administration's login."""
    return as_login()


@pytest.fixture
def approver(as_login: Run, author: Cli) -> Cli:
    """Return the command line of the approver, with finance's login of the same home."""
    return as_login(finance_database_url=url_as(author, "finance"))


@pytest.fixture
def finance(database_url: str) -> Iterator[Reports]:
    """The reports of this test's database."""
    with open_reports(database_url, scope=WHOLE_ORGANISATION) as opened:
        yield opened


def url_as(cli: Cli, purpose: str) -> str:
    return cli.ok("db", "url", "--as", purpose).strip()


def added(cli: Cli, *more: str) -> str:
    text = cli.ok("reallocation", "add", *ADD, "--reason", "shared runs", "--format", "json", *more)
    record = json.loads(text)
    assert record["state"] == "proposed"
    return str(record["reallocation_id"])


def approve(reallocation_id: str) -> tuple[str, ...]:
    return ("reallocation", "approve", reallocation_id, "--reason", "agreed", "--yes")


def sql(url: str, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        found = connection.execute(statement.encode(), values)
        return found.fetchall() if found.description else []


def adjustments(url: str) -> list[tuple[Any, ...]]:
    return sql(
        url,
        "SELECT team, cost_centre, amount_nusd, kind, posted_period FROM tollgate.adjustments "
        "ORDER BY amount_nusd",
    )


def test_cost_moves_only_after_another_login_approved(
    author: Cli, approver: Cli, database: Database, database_url: str, finance: Reports
) -> None:
    """One person alone must not move cost to another cost centre."""
    Ledger(database).write([event(1), event(2, team="search", cost_centre="CC-3100")])
    reallocation_id = added(author)
    assert sql(database_url, "SELECT sum(amount_usd), count(*) FROM finance.reallocations") == [
        (0, 2)
    ]
    refused = author(*approve(reallocation_id))
    assert (refused.code, adjustments(database_url)) == (1, [])
    assert "db url --as finance" in refused.err

    approved = json.loads(approver.ok(*approve(reallocation_id), "--format", "json"))

    assert approved == {
        "reallocation_id": reallocation_id,
        "state": "approved",
        "amount_usd": 0.00015,
        "posted_period": "2026-11",
    }
    assert adjustments(database_url) == [
        (None, "CC-1207", -150_000, "reallocation", NOVEMBER),
        (None, "CC-3100", 150_000, "reallocation", NOVEMBER),
    ]
    report = finance.run("spend", ask(month="2026-11", by=["cost_centre"]))
    rows = {row["cost_centre"]: row for row in report.records()}
    assert {name: row["adjustments_usd"] for name, row in rows.items()} == {
        "CC-1207": Decimal("-0.00015"),
        "CC-3100": Decimal("0.00015"),
    }
    assert sum(Decimal(str(row["total_usd"])) for row in rows.values()) == report.total["total_usd"]
    assert report.total["cost_usd"] == report.total["total_usd"] == Decimal("0.0012")


def test_the_status_of_a_month_names_what_waits(author: Cli, approver: Cli) -> None:
    """Finance would close a month whose cost was still to move."""
    reallocation_id = added(author)
    words = "1 proposed re-allocation(s) of 2026-11 wait for an approval."
    assert words in author("month", "status", "2026-11").err
    assert "wait for an approval" not in author("month", "status", "2026-10").err
    approver.ok(*approve(reallocation_id))
    assert "wait for an approval" not in author("month", "status", "2026-11").err


def test_a_second_approval_changes_nothing(author: Cli, approver: Cli, database_url: str) -> None:
    """A retry after a lost answer must not move the cost again."""
    reallocation_id = added(author)
    approver.ok(*approve(reallocation_id))
    before = adjustments(database_url)
    again = approver(*approve(reallocation_id))
    assert (again.code, adjustments(database_url)) == (0, before)
    assert "nothing was changed" in again.err
    listed = json.loads(author.ok("reallocation", "list", "--format", "json"))
    assert [(row["state"], row["posted_period"]) for row in listed] == [("approved", "2026-11")]
    assert listed[0]["author_login"] != listed[0]["approver_login"]
    assert (
        json.loads(author.ok("reallocation", "list", "--month", "2026-10", "--format", "json"))
        == []
    )


def test_it_asks_before_it_books(author: Cli, approver: Cli, database_url: str) -> None:
    """Without a terminal and without --yes nothing happens, and a script learns why."""
    reallocation_id = added(author)
    ran = approver("reallocation", "approve", reallocation_id, "--reason", "agreed")
    assert (ran.code, adjustments(database_url)) == (2, [])
    assert "$0.0001500 of 2026-11 moves from CC-1207 to CC-3100" in ran.err


def test_a_person_who_signed_in_approves_no_own_entry(
    author: Cli, approver: Cli, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everyone in the dashboard acts with one login, so there the person counts too."""
    monkeypatch.setenv("TOLLGATE_OPERATOR", "ada@example.com")
    reallocation_id = added(author)
    ran = approver(*approve(reallocation_id))
    assert (ran.code, adjustments(database_url)) == (1, [])
    assert "ada@example.com entered" in ran.err
    monkeypatch.setenv("TOLLGATE_OPERATOR", "bob@example.com")
    approver.ok(*approve(reallocation_id))
    (row,) = json.loads(author.ok("reallocation", "list", "--format", "json"))
    assert (row["author"], row["approver"]) == ("ada@example.com", "bob@example.com")


def test_a_closed_month_stays_as_it_is(author: Cli, approver: Cli, database_url: str) -> None:
    """Its adjustments go to the oldest month that is not closed."""
    sql(
        database_url,
        "INSERT INTO tollgate.periods (month, state) VALUES (%s, 'closed'), (%s, 'open')",
        NOVEMBER,
        DECEMBER,
    )
    reallocation_id = added(author)
    ran = approver(*approve(reallocation_id))
    assert ran.code == 0, ran
    assert "posted to 2026-12" in ran.err
    assert {row[-1] for row in adjustments(database_url)} == {DECEMBER}


def test_each_step_is_in_the_audit_log(author: Cli, approver: Cli, database_url: str) -> None:
    """An auditor sees who entered it, who approved it, and why."""
    reallocation_id = added(author)
    approver.ok(*approve(reallocation_id))
    acts = sql(
        database_url,
        "SELECT action, db_user, reason FROM tollgate.audit_log WHERE subject = %s ORDER BY seq",
        reallocation_id,
    )
    admin, finance = (urlsplit(url_as(author, of)).username for of in ("admin", "finance"))
    assert acts == [
        ("reallocation.add", admin, "shared runs"),
        ("reallocation.approve", finance, "agreed"),
    ]
    author.ok("audit", "verify")


def test_a_wrong_option_is_named(author: Cli) -> None:
    """A text that is no amount, month or id must not be guessed."""
    wrong = (("--amount-usd", "much"), ("--amount-usd", "NaN"), ("--month", "2026-13"))
    for option in wrong:
        assert author("reallocation", "add", *ADD, "--reason", "r", *option).code == 2
    assert author(*approve("7")).code == 2
    assert author(*approve("7d9c1f3a-2b4c-4d5e-8f60-718293a4b5c6")).code == 1


INSERT_ENTRY = (
    "INSERT INTO tollgate.reallocations (month, from_cost_centre, to_cost_centre, amount_nusd, "
    "reason) VALUES (%s, 'a', 'b', 5, 'r') RETURNING reallocation_id"
)
INSERT_APPROVAL = (
    "INSERT INTO tollgate.reallocation_approvals (reallocation_id, reason) VALUES (%s, 'r')"
)
INSERT_ADJUSTMENT = (
    "INSERT INTO tollgate.adjustments (adjustment_id, cost_centre, posted_period, occurred_at, "
    "amount_nusd, kind, reason, author, reallocation_id) VALUES (gen_random_uuid(), %s, "
    "'2026-11-01', now(), %s, 'reallocation', 'r', 'x', %s)"
)


OTHER_AUTHOR = (
    "INSERT INTO tollgate.reallocations (month, from_cost_centre, to_cost_centre, amount_nusd, "
    "reason, author_login) VALUES ('2026-11-01', 'a', 'b', 5, 'r', 'somebody')"
)
OTHER_APPROVER = (
    "INSERT INTO tollgate.reallocation_approvals (reallocation_id, reason, approver_login, "
    "posted_period) VALUES (gen_random_uuid(), 'r', 'somebody', '2026-11-01')"
)


def test_no_login_approves_its_own_entry(author: Cli, database_url: str) -> None:
    """Not by SQL either, and not as the owner of the tables; and none states another author."""
    narrow = [url_as(author, purpose) for purpose in ("admin", "finance")]
    for url in (database_url, *narrow):
        ((entry,),) = sql(url, INSERT_ENTRY, NOVEMBER)
        with pytest.raises(psycopg.errors.CheckViolation, match="may not approve it"):
            sql(url, INSERT_APPROVAL, entry)
    for url in narrow:
        for statement in (OTHER_AUTHOR, OTHER_APPROVER):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                sql(url, statement)


def test_no_adjustment_is_one_that_was_not_approved(
    author: Cli, approver: Cli, database_url: str
) -> None:
    """The administration may insert adjustments, but a re-allocation only by its approval."""
    admin = url_as(author, "admin")
    reallocation_id = added(author)
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        sql(admin, INSERT_ADJUSTMENT, "CC-3100", 150_000, reallocation_id)
    with pytest.raises(psycopg.errors.CheckViolation, match="reallocations_are_named"):
        sql(admin, INSERT_ADJUSTMENT, "CC-3100", 150_000, None)
    approver.ok(*approve(reallocation_id))
    before = adjustments(database_url)
    with pytest.raises(psycopg.errors.CheckViolation, match="not one of its two sides"):
        sql(admin, INSERT_ADJUSTMENT, "CC-9", 1, reallocation_id)
    with pytest.raises(psycopg.errors.UniqueViolation):
        sql(admin, INSERT_ADJUSTMENT, "CC-3100", 150_000, reallocation_id)
    assert adjustments(database_url) == before


def test_an_approved_one_never_changes(author: Cli, approver: Cli, database_url: str) -> None:
    """Not even by the owner of the tables."""
    approver.ok(*approve(added(author)))
    changes = (
        "UPDATE tollgate.{} SET reason = 'x'",
        "DELETE FROM tollgate.{}",
        "TRUNCATE tollgate.{} CASCADE",
    )
    for table in ("reallocations", "reallocation_approvals"):
        for change in changes:
            with pytest.raises(psycopg.errors.RestrictViolation, match="never changed"):
                sql(database_url, change.format(table))
    assert len(adjustments(database_url)) == 2
