"""Approving a bill's differences: true-ups, once each, in a month that is not closed."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

from gateway.storage.ledger.month_findings import CHECKS
from gateway.storage.ledger.months import MonthStore
from gateway.storage.postgres.database import Database
from tests.cli.conftest import Cli
from tests.invoices.generator import ACCOUNT, make_month
from tests.invoices.test_planted_gaps import OPTIONS, by_cause, import_of, loaded, shown

SEED = 2  # one CSV
APPROVED = ("aborted", "price", "rounding", "unmetered", "fee")


def approve(cli: Cli, provider: str, *more: str) -> Any:
    """Approve the month's differences; return the record that is printed."""
    out = cli.ok(
        *("reconcile", "approve", "--provider", provider, *OPTIONS, "--yes"),
        *("--reason", "invoice 4711", *more),
    )
    return json.loads(out, parse_float=Decimal)


def booked(database: Database) -> list[Any]:
    """Return the true-ups by cause and team."""
    with database.begin() as connection:
        return [
            tuple(row)
            for row in connection.exec_driver_sql(
                "SELECT bill.cause, team, cost_centre, posted_period::text, sum(amount_usd), "
                "bool_and(booked.provider = bill.provider) "
                "FROM finance.adjustments AS booked JOIN finance.true_ups AS bill "
                "USING (adjustment_id) WHERE kind = 'true_up' GROUP BY 1, 2, 3, 4 ORDER BY 1, 2"
            )
        ]


def test_an_approval_books_each_difference_once(
    cli: Cli, database: Database, tmp_path: Path
) -> None:
    """A second approval changes nothing, and the report adds up to the bill."""
    month = make_month(SEED)
    provider = loaded(cli, database, tmp_path, month)
    planted = {cause: Decimal(nusd).scaleb(-9) for cause, nusd in month.planted.items()}
    fee = approve(cli, provider, "--cause", "fee", "--team", "platform")
    assert (fee["adjustments"], fee["amount_usd"]) == (1, planted["fee"])
    rest = approve(cli, provider)
    assert rest["posted_period"] == "2026-10"
    assert rest["amount_usd"] == sum(planted[cause] for cause in APPROVED) - planted["fee"]
    assert approve(cli, provider)["adjustments"] == 0
    # The bill and the metered usage are as before: a true-up is on neither side.
    assert by_cause(shown(cli, provider)) == month.planted

    found = booked(database)
    assert all(row[3] == "2026-10-01" and row[5] for row in found)
    sums: dict[str, Decimal] = {}
    for cause, team, _, _, amount, _ in found:
        sums[cause] = sums.get(cause, Decimal(0)) + amount
        assert (team is None) == (cause == "unmetered"), cause
    assert sums == {cause: planted[cause] for cause in APPROVED}
    assert ("fee", "platform", "CC-0001") in {row[:3] for row in found}

    report = json.loads(
        cli.ok("report", "spend", "--month", "2026-10", "--by", "team", "--format", "json"),
        parse_float=Decimal,
    )
    lines = {row["team"]: row["adjustments_usd"] for row in report["rows"]}
    assert lines["unallocated"] == planted["unmetered"]
    assert sum(lines.values()) == report["total"]["adjustments_usd"] == sum(sums.values())
    cli.ok("audit", "verify")


def test_a_newer_bill_books_the_change_alone(cli: Cli, database: Database, tmp_path: Path) -> None:
    """The provider corrects its fee after the approval."""
    month = make_month(SEED)
    provider = loaded(cli, database, tmp_path, month)
    before = approve(cli, provider)["amount_usd"]
    path = tmp_path / "csv"
    old = next(line for line in month.files["csv"].splitlines() if "support plan" in line)
    day = old.partition(",")[0]
    lines = [line for line in month.files["csv"].splitlines() if line.startswith((day, "day"))]
    path.write_text("\n".join(line for line in lines if line != old) + "\n")
    cli.ok(*import_of(path, provider, "csv"))
    change = approve(cli, provider)
    assert (change["adjustments"], change["amount_usd"]) == (
        1,
        -Decimal(month.planted["fee"]).scaleb(-9),
    )
    assert sum(row[4] for row in booked(database)) == before + change["amount_usd"]
    assert ACCOUNT in month.files["csv"]


def test_it_is_posted_to_the_oldest_month_that_is_not_closed(
    cli: Cli, database: Database, tmp_path: Path
) -> None:
    """A closed month never changes, although its bill may still come and be approved."""
    month, months = make_month(SEED), MonthStore(database)
    provider = loaded(cli, database, tmp_path, month)
    with database.begin() as connection:
        over = connection.exec_driver_sql(
            "SELECT month FROM finance.periods WHERE state = 'provisional' ORDER BY month"
        )
        closing = list(over.scalars())
    for one in closing:
        months.close(one, billed=(), accepted={check.name: "a test" for check in CHECKS})
    path = tmp_path / "csv"
    path.write_text(month.files["csv"].replace("support plan", "support contract"))
    assert json.loads(cli.ok(*import_of(path, provider, "csv")))["import_id"]
    assert approve(cli, provider)["posted_period"] == "2026-11"
    assert {row[3] for row in booked(database)} == {"2026-11-01"}
    for one in closing:
        assert [found.differing for found in months.verify(one)] == [[]]


def test_what_is_never_approved(cli: Cli, database: Database, tmp_path: Path) -> None:
    """The next bill ends timing and missing days; a mapping ends unmapped lines."""
    provider = loaded(cli, database, tmp_path, make_month(SEED))
    for cause in ("timing", "missing_bill", "unmapped", "none"):
        ran = cli(
            *("reconcile", "approve", "--provider", provider, *OPTIONS, "--yes"),
            *("--reason", "x", "--cause", cause),
        )
        assert (ran.code, "cannot be approved" in ran.err) == (2, True)
    unasked = cli("reconcile", "approve", "--provider", provider, *OPTIONS, "--reason", "x")
    assert (unasked.code, "--yes" in unasked.err) == (2, True)
    assert booked(database) == []
    unknown = cli(
        *("reconcile", "approve", "--provider", provider, *OPTIONS, "--yes"),
        *("--reason", "x", "--team", "nobody-knows"),
    )
    assert (unknown.code, "nobody-knows" in unknown.err) == (1, True)
    assert booked(database) == []


def test_an_approval_names_what_it_leaves_open(
    cli: Cli, database: Database, tmp_path: Path
) -> None:
    """A missing bill is never booked: it does not count as booked already."""
    month = make_month(SEED)
    provider = loaded(cli, database, tmp_path, month)
    command = ("reconcile", "approve", "--provider", provider, "--month", "2026-10", "--yes")
    first = cli(*command, "--reason", "invoice 4711").err
    assert "Still open, because it is never booked: missing_bill, timing." in first
    assert "nothing was changed" not in first
    again = cli(*command, "--reason", "invoice 4711").err
    assert "Everything is booked already: nothing was changed." in again
    assert "Still open, because it is never booked: missing_bill, timing." in again
