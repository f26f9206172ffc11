"""The reports `forecast`, `outlook` and `spikes` on a ledger of ten weeks."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest

from gateway.domain.forecasting.daily import History
from gateway.errors import BadUsage
from gateway.reports.forecasts.forecast import forecast_of, total_of
from gateway.reports.question import ask
from gateway.reports.reports import Reports
from gateway.storage.ledger import rollups
from gateway.storage.postgres.database import Database
from tests.reports.conftest import Write
from tests.storage.factories import event

USD = 1_000_000_000
WEEKS = 10


def days_back(count: int) -> datetime:
    """Noon of a past day."""
    now = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)
    return now - timedelta(days=count)


@pytest.fixture
def written(write: Write, database: Database) -> date:
    """Three teams: one spends 10 USD a day, one 4, one an odd amount that grows; yesterday one key
    of the first took 500.
    """
    number = 0
    events = []
    for back in range(7 * WEEKS, 0, -1):
        for team, nusd in (
            ("payments", 10 * USD),
            ("search", 4 * USD),
            ("legal", 100_000_007 - 1_000_003 * back),
        ):
            number += 1
            events.append(event(number, at=days_back(back), team=team, cost_nusd=nusd, lines=()))
    number += 1
    odd = {"key_id": "k987654321", "model": "gpt-5.5-pro", "cost_nusd": 500 * USD, "lines": ()}
    write(*events, event(number, at=days_back(1), **odd))
    rollups.refresh(database)
    return days_back(1).date()


def test_the_parts_of_a_forecast_add_up(finance: Reports, written: date) -> None:
    """Spent, expected and the month before, for each team and in all; an interval of its own."""
    report = finance.run("forecast", ask())
    rows = {row["team"]: row for row in report.records()}
    today = datetime.now(UTC).date()
    spent = 4 * (today.day - 1)
    assert rows["search"]["spent_usd"] == spent
    next_month = (today.replace(day=1) + timedelta(days=32)).replace(day=1)
    length = (next_month - today.replace(day=1)).days
    assert rows["search"]["forecast_usd"] == 4 * length
    assert rows["search"]["previous_usd"] == 4 * (today.replace(day=1) - timedelta(days=1)).day
    for name in ("spent_usd", "forecast_usd", "previous_usd"):
        assert report.total[name] == sum(row[name] for row in rows.values())
    for row in rows.values():
        if row["low_usd"] is not None:
            assert row["spent_usd"] <= row["low_usd"] <= row["forecast_usd"] <= row["high_usd"]
    assert any("median of its weekday" in note for note in report.notes)


def test_forecasts_add_up_to_the_nano_dollar() -> None:
    """Each part is in whole nano-dollars, and so is their sum: a trend leaves longer fractions."""
    first, month = date(2026, 9, 1), date(2026, 11, 1)
    for ahead in range(1, 20):
        rows = [
            forecast_of(
                History(
                    first_day=first,
                    amounts=tuple(Decimal(7 + part + day) / 10**9 for day in range(80)),
                ),
                month=month,
                ahead=ahead,
                interval=None,
            )
            for part in range(9)
        ]
        parts = [row.cells[1] for row in rows]
        assert total_of(rows, None).cells[1] == sum(part for part in parts if part is not None)


def test_a_month_that_is_over_is_its_own_forecast(finance: Reports, written: date) -> None:
    """And one that has not begun is asked of `outlook`."""
    over = (datetime.now(UTC).date().replace(day=1) - timedelta(days=1)).replace(day=1)
    report = finance.run("forecast", ask(month=f"{over:%Y-%m}", by=["cost_centre"]))
    rows = report.records()
    assert [row["forecast_usd"] == row["spent_usd"] == row["low_usd"] for row in rows] == [True]
    last = datetime.now(UTC).date().replace(day=1) - timedelta(days=1)
    assert f"From {over} to {last}, both inclusive" in report.notes[-1]
    with pytest.raises(BadUsage, match="outlook"):
        finance.run("forecast", ask(month="2999-01"))


@pytest.mark.parametrize("by", [["day"], ["tag"], ["team", "model"]])
def test_a_series_needs_one_line_a_day(finance: Reports, by: list[str]) -> None:
    """A split that gives several, or days themselves, is bad usage that names the others."""
    with pytest.raises(BadUsage, match="splits by one of team"):
        finance.run("forecast", ask(by=by))


def test_a_spike_names_its_driver(finance: Reports, written: date) -> None:
    """The day, the model and the key that changed, in a row and in a sentence."""
    report = finance.run("spikes", ask())
    (row,) = report.records()
    assert (row["day"], row["team"]) == (written, "payments")
    assert (row["spent_usd"], row["usual_usd"], row["change_usd"]) == (510, 10, 500)
    assert (row["model"], row["key"], row["driver_usd"]) == ("gpt-5.5-pro", "k987654321", 500)
    expected = (
        f"team payments, model gpt-5.5-pro, key k987654321: 5,000 % above its usual {written:%A}"
    )
    assert expected in report.notes[0]
    assert "$500" in report.notes[0]


def test_the_outlook_has_18_months(finance: Reports, written: date) -> None:
    """Steady spending goes on: a month costs its days."""
    report = finance.run("outlook", ask(where={"team": "search"}))
    rows = report.records()
    assert len(rows) == 18
    first = rows[0]
    month = datetime.strptime(str(first["month"]), "%Y-%m").replace(tzinfo=UTC)
    length = ((month + timedelta(days=32)).replace(day=1) - month).days
    assert first["forecast_usd"] == Decimal(4 * length)
    with pytest.raises(BadUsage, match="leave out"):
        finance.run("outlook", ask(month="2026-10"))


def test_without_events_nothing_is_forecast(finance: Reports) -> None:
    """No rows, no error, and a note."""
    for name in ("forecast", "outlook", "spikes"):
        assert not finance.run(name, ask()).rows
