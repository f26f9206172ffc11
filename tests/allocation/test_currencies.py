"""Reports in another currency: each line at the rate of its day, parts that add up, and never a
guessed rate. The ledger stays in USD.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
from sqlalchemy import text

from gateway.domain.allocation.currency import new_rate
from gateway.errors import BadUsage, OperatorError
from gateway.main import build_toolbox
from gateway.reports.question import ask
from gateway.reports.registry import REPORTS
from gateway.reports.reports import Reports
from gateway.settings import Settings
from gateway.storage.allocation.currencies import CurrencyStore
from gateway.storage.ledger import rollups
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests.allocation.applied_policies import apply, centre
from tests.cli.conftest import Cli
from tests.reports.conftest import Write
from tests.reports.test_gpu_report import MIDNIGHT, own, runs
from tests.storage.factories import event

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
RATE = ("--usd-per-unit", "1.25", "--from", "2026-11-01", "--source", "ECB 2026-10-30")


def rates(database: Database, *found: tuple[date, str]) -> None:
    store = CurrencyStore(database)
    for day, usd in found:
        store.add(new_rate(currency="EUR", first_day=day, usd_per_unit=Decimal(usd), source="ECB"))


def amounts(rows: Sequence[dict[str, Any]], name: str) -> Decimal:
    return sum((Decimal(str(row[name] or 0)) for row in rows), Decimal(0))


def test_a_report_in_euros_end_to_end(
    tmp_path: Path, database: Database, database_url: str
) -> None:
    """Columns end in _eur, the note names the source, and no rate is exit 1 with the remedy."""
    cli = Cli(build_toolbox(Settings(home=tmp_path / "home", database_url=database_url)))
    cli.ok("db", "upgrade")
    Ledger(database).write([event(1, cost_nusd=2_500_000_000), event(2, team="search")])
    ask_for = ("report", "spend", "--month", "2026-11", "--currency", "EUR", "--format", "json")
    missing = cli(*ask_for)
    assert (missing.code, missing.out) == (1, "")
    assert "tollgate currency add EUR --usd-per-unit X --from 2026-11-20" in missing.err
    added = json.loads(cli.ok("currency", "add", "EUR", *RATE, "--format", "json"))
    assert (added["currency"], added["from"], added["usd_per_unit"]) == ("EUR", "2026-11-01", 1.25)

    report = json.loads(cli.ok(*ask_for), parse_float=Decimal)

    columns = {column["name"]: column["unit"] for column in report["columns"]}
    assert not [name for name in columns if "usd" in name]
    assert columns["total_eur"] == "EUR, cost and adjustments"
    assert report["total"]["cost_eur"] == Decimal("2.00048")
    assert {row["team"]: row["cost_eur"] for row in report["rows"]} == {
        "payments": 2,
        "search": Decimal("0.00048"),
    }
    (note,) = [note for note in report["notes"] if "rate_source" in note]
    assert "1 EUR = 1.25 USD (ECB 2026-10-30)" in note
    table = cli.ok(*ask_for[:-2])
    assert "2.00 EUR" in table
    assert "$" not in table
    assert json.loads(cli.ok(*ask_for[:4], "--format", "json"))["total"]["cost_usd"] == 2.5006
    compared = json.loads(cli.ok(*ask_for, "--compare", "previous"))
    assert {"previous_eur", "change_eur"} <= set(compared["total"])
    refused = cli("report", "selfhost-vs-api", "--currency", "EUR")
    assert (refused.code, "it compares price lists" in refused.err) == (2, True)
    assert cli("report", "spend", "--currency", "EURO").code == 2
    listed = json.loads(cli.ok("currency", "list", "--format", "json"))
    assert [(row["currency"], row["source"]) for row in listed] == [("EUR", "ECB 2026-10-30")]
    acts = json.loads(cli.ok("audit", "list", "--format", "json"))
    assert "currency.add" in {act["action"] for act in acts}


def test_each_line_is_converted_at_the_rate_of_its_day(
    finance: Reports, write: Write, database: Database
) -> None:
    """A month with one rate for all days would book the change of the currency as spending."""
    rates(database, (date(2026, 11, 1), "1.25"), (date(2026, 11, 20), "2"))
    write(
        event(1, at=NOON - timedelta(days=1), cost_nusd=10**9),
        event(2, at=NOON.replace(hour=0, minute=0), cost_nusd=10**9),
    )
    for _ in ("from events", "from sums"):
        report = finance.run("spend", ask(month="2026-11", by=["day"], currency="eur"))
        assert [row["cost_eur"] for row in report.records()] == [Decimal("0.8"), Decimal("0.5")]
        assert report.total["cost_eur"] == Decimal("1.3")
        (month,) = finance.run("months", ask(currency="EUR")).records()
        assert (month["cost_eur"], month["total_eur"]) == (Decimal("1.3"), Decimal("1.3"))
        rollups.refresh(database)


def test_a_day_before_the_first_rate_has_none(
    finance: Reports, write: Write, database: Database
) -> None:
    """The nearest rate is a guess, and a sum without that day is wrong."""
    rates(database, (date(2026, 11, 20), "1.25"))
    write(event(1), event(2, at=NOON - timedelta(days=2)))
    with pytest.raises(OperatorError, match="no rate of EUR on 2026-11-18"):
        finance.run("spend", ask(month="2026-11", currency="EUR"))
    with pytest.raises(OperatorError, match="currency add GBP"):
        finance.run("spend", ask(month="2026-10", currency="GBP"))
    assert finance.run("spend", ask(first="2026-11-20", last="2026-11-20", currency="EUR")).rows


def test_a_newer_rate_of_a_day_replaces_the_older_one(
    finance: Reports, write: Write, database: Database
) -> None:
    """A typing error can be corrected, and the audit log keeps both."""
    rates(database, (date(2026, 11, 1), "12.5"), (date(2026, 11, 1), "1.25"))
    write(event(1, cost_nusd=10**9))
    report = finance.run("spend", ask(month="2026-11", currency="EUR"))
    assert report.total["cost_eur"] == Decimal("0.8")
    with database.begin() as connection:
        count = connection.execute(text("SELECT count(*) FROM tollgate.currency_rates"))
        assert count.scalar_one() == 2


def test_a_closed_month_keeps_its_rates(database: Database, database_url: str) -> None:
    """A report of a closed month must read the same for ever."""
    rates(database, (date(2026, 10, 5), "1.25"))
    with database.begin() as connection:
        connection.execute(
            text("INSERT INTO tollgate.periods (month, state) VALUES ('2026-10-01', 'closed')")
        )
    for day in (date(2026, 9, 1), date(2026, 10, 31)):
        with pytest.raises(OperatorError, match="closed month has its rate of EUR"):
            rates(database, (day, "1.5"))
    rates(database, (date(2026, 11, 1), "1.5"))
    first = new_rate(
        currency="GBP", first_day=date(2026, 1, 1), usd_per_unit=Decimal("1.3"), source="BoE"
    )
    CurrencyStore(database).add(first)
    with (
        psycopg.connect(database_url) as connection,
        pytest.raises(psycopg.errors.RestrictViolation),
    ):
        connection.execute("UPDATE tollgate.currency_rates SET usd_per_unit = 1")


@pytest.mark.parametrize("by", [["team"], ["cost_centre", "model"], ["tag"], ["day", "team"]])
def test_the_parts_of_any_rates_add_up(
    finance: Reports, write: Write, database: Database, rng: Random, by: list[str]
) -> None:
    """For any rates, shares and events: rows add up to the total, which is exact to half a
    nano-unit.
    """
    apply(database, {"payments": (centre("CC-1207", "0.613"), centre("CC-3100", "0.387"))})
    days = sorted(rng.sample(range(2, 30), 3))
    known = {
        date(2026, 11, day): str(Decimal(rng.randrange(1, 3_000_000)) / 1_000_000)
        for day in (1, *days)
    }
    rates(database, *known.items())
    exact, events = Fraction(0), []
    for number in range(50):
        at, nusd = NOON.replace(day=rng.randrange(1, 31)), rng.randrange(10**9)
        rate = known[max(day for day in known if day <= at.date())]
        exact += Fraction(nusd, 10**9) / Fraction(rate)
        tags = dict(rng.sample([("env", "prod"), ("app", "bot"), ("x", "y")], rng.randrange(4)))
        team, model = rng.choice(["payments", "search"]), rng.choice(["m-1", "m-2"])
        events.append(event(number, at=at, team=team, model=model, cost_nusd=nusd, tags=tags))
    write(*events)
    rollups.refresh(database)
    report = finance.run("spend", ask(month="2026-11", by=by, currency="EUR"))
    rows, total = report.records(), report.total
    for name in ("cost_eur", "adjustments_eur", "total_eur", "held_eur", "idle_eur"):
        assert amounts(rows, name) == total[name]
    assert abs(Fraction(str(total["cost_eur"])) - exact) <= Fraction(1, 2 * 10**9)
    assert total["total_eur"] == total["cost_eur"]


def test_the_gpu_bill_in_euros_adds_up(finance: Reports, write: Write, database: Database) -> None:
    """Each day at its rate; bill = applied + idle + variance in each row and in the total."""
    for day in range(2):
        runs(database, hours=24, begin=MIDNIGHT + timedelta(days=day))
    write(*(own(n, at=MIDNIGHT + timedelta(hours=n), cost_nusd=10**9 + n) for n in range(40)))
    with pytest.raises(OperatorError, match="no rate of EUR on 2026-11-20"):
        finance.run("gpu", ask(month="2026-11", currency="EUR"))
    rates(database, (MIDNIGHT.date(), "0.7"), (MIDNIGHT.date() + timedelta(days=1), "1.3"))
    report = finance.run("gpu", ask(month="2026-11", currency="EUR"))
    newest, oldest = report.records()
    assert not [column.name for column in report.columns if "usd" in column.name]
    assert oldest["bill_eur"] == Decimal("212.571428571")  # 148.80 USD at 0.7
    assert oldest["eur_per_gpu_hour"] == Decimal("4.428571429")
    for row in (newest, oldest, report.total):
        assert row["idle_eur"] == row["empty_eur"] + row["underfilled_eur"]
        assert row["bill_eur"] == row["applied_eur"] + row["idle_eur"] + row["variance_eur"]
    for name in ("bill_eur", "applied_eur", "idle_eur", "empty_eur", "estimated_eur"):
        assert amounts((newest, oldest), name) == report.total[name]
    bill = finance.run("gpu-bill", ask(month="2026-11", currency="EUR"))
    assert amounts(bill.records(), "amount_eur") == bill.total["amount_eur"]
    # Its lines are rounded by team, those of `gpu` by day.
    assert abs(bill.total["amount_eur"] - report.total["bill_eur"]) < Decimal("1e-8")
    assert bill.notes[-2].startswith("Money in EUR")


@pytest.mark.parametrize("name", REPORTS)
def test_no_report_shows_dollars_for_euros(
    finance: Reports, write: Write, database: Database, name: str
) -> None:
    """A report that has no other currency says so, with its reason."""
    rates(database, (date(2026, 11, 1), "1.25"))
    write(event(1), own(2))
    question = ask(month="2026-11", currency="EUR")
    if REPORTS[name].usd_alone:
        with pytest.raises(BadUsage, match=f"Report {name} has no other currency: ") as refused:
            finance.run(name, question)
        assert REPORTS[name].usd_alone in str(refused.value)
    else:
        report = finance.run(name, question)
        assert not [one for one in report.columns if "usd" in one.name or "USD" in one.unit]
        assert any("rate_source" in note for note in report.notes)
