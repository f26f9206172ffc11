"""The reports `movers` and `meter-quality`: what changed most, and how sure the figures are."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from random import Random

import pytest
from sqlalchemy import text

from gateway.domain.ledger.usage_event import UsageEvent
from gateway.domain.pricing.tokens import UsageSource
from gateway.errors import BadUsage
from gateway.reports.dimensions import Dimension
from gateway.reports.question import ask
from gateway.reports.reports import Reports
from gateway.storage.ledger import rollups
from gateway.storage.ledger.adjustments import resolve
from gateway.storage.postgres.database import Database
from tests.reports.conftest import Write
from tests.reports.random_events import parts_of, random_event
from tests.reports.test_report_contents import UNKNOWN
from tests.storage.factories import event, request_id

USD = 1_000_000_000


def spent(number: int, team: str, usd: int, month: str) -> UsageEvent:
    """Return an event of a team in a month that cost so much."""
    at = datetime.fromisoformat(f"{month}-03").replace(tzinfo=UTC)
    return event(number, team=team, cost_nusd=usd * USD, lines=(), at=at)


def test_the_largest_changes_come_first(finance: Reports, write: Write) -> None:
    """Up or down, new or gone: the absolute change decides, with both times beside it."""
    write(
        spent(1, "a", 10, "2025-10"),
        spent(2, "a", 4, "2026-09"),
        spent(3, "gone", 9, "2026-09"),
        spent(4, "a", 5, "2026-10"),
        spent(5, "new", 3, "2026-10"),
        spent(6, "old", 2, "2025-10"),
    )
    report = finance.run("movers", ask(month="2026-10", by=["team"]))
    names = ("team", "total_usd", "previous_usd", "change_usd", "year_before_usd")
    assert [tuple(row[name] for name in names) for row in report.records()] == [
        ("gone", 0, 9, -9, 0),
        ("new", 3, 0, 3, 0),
        ("a", 5, 4, 1, 10),
        ("old", 0, 0, 0, 2),
    ]
    shares = {
        row["team"]: (row["change_share"], row["year_change_share"]) for row in report.records()
    }
    assert shares["a"] == (Decimal("0.25"), Decimal("-0.5"))
    assert shares["new"] == (None, None)
    total = report.total
    assert (total["total_usd"], total["change_usd"], total["year_change_usd"]) == (8, -5, -4)
    for name in ("total_usd", "previous_usd", "change_usd", "year_before_usd", "year_change_usd"):
        assert sum(Decimal(str(row[name])) for row in report.records()) == total[name], name
    note = "year_before_usd and year_change_usd: 2026-10 against the whole month 2025-10."
    assert note in report.notes


def test_without_a_time_it_is_the_newest_month(finance: Reports, write: Write) -> None:
    """The bare command answers; all months have nothing before them."""
    write(spent(1, "a", 4, "2026-09"), spent(2, "a", 5, "2026-10"))
    (row,) = finance.run("movers", ask()).records()
    assert (row["total_usd"], row["change_usd"], row["share"]) == (5, 1, 1)
    with pytest.raises(BadUsage, match="cannot be compared"):
        finance.run("movers", ask(by=["day"]))


def test_an_unknown_change_comes_last(finance: Reports, write: Write) -> None:
    """It is not 0, and it is not the largest."""
    write(event(1, team="a", **UNKNOWN), event(2, team="b"))
    rows = finance.run("movers", ask(by=["team"])).records()
    assert [(row["team"], row["change_usd"]) for row in rows] == [
        ("b", Decimal("0.0006")),
        ("a", None),
    ]


QUALITY = ("final_attempts", "running_attempts", "estimated_attempts", "unreported_usage_attempts")


def test_quality_is_counted_by_the_source_of_usage(
    finance: Reports, write: Write, database: Database, rng: Random
) -> None:
    """From sums and from events alike, and the parts add up."""
    events = [random_event(number, rng) for number in range(120)]
    write(*events[:80])
    rollups.refresh(database)
    with database.begin() as connection:
        connection.execute(text("SELECT tollgate.refresh_hours(400), tollgate.refresh_days(200)"))
    write(*events[80:])
    for by in (Dimension.PROVIDER, Dimension.TEAM, Dimension.DAY, Dimension.KEY, Dimension.TAG):
        report = finance.run("meter-quality", ask(by=[by.value]))
        for row in report.records():
            parts = [
                (one, times)
                for one in events
                for value, times in parts_of(one, by)
                if value == row[by.value]
            ]
            assert [row[name] for name in QUALITY] == counted(parts), (by, row)
        assert [report.total[name] for name in QUALITY] == counted([(one, 1) for one in events])
        assert report.total["final_usd"] + report.total["derived_usd"] == report.total["cost_usd"]  # type: ignore[operator]
        for name in (*QUALITY, "attempts", "held_usd", "final_usd", "derived_usd", "total_usd"):
            whole = sum(Decimal(str(row[name] or 0)) for row in report.records())
            assert whole == report.total[name], (by, name)


def counted(parts: list[tuple[UsageEvent, int]]) -> list[int]:
    """The counts of attempts by the source of their usage."""
    by_source = (
        {UsageSource.PROVIDER, UsageSource.NONE},
        {UsageSource.DERIVED},
        {UsageSource.ESTIMATED},
        {UsageSource.UNKNOWN},
    )
    return [
        sum(times for one, times in parts if one.usage_source in wanted) for wanted in by_source
    ]


def test_a_settled_hold_is_open_no_more(finance: Reports, write: Write, database: Database) -> None:
    """Its usage stays unknown; its cost does not."""
    write(event(1, **UNKNOWN), event(2, **UNKNOWN), event(3))
    resolve(database, request_id(1), attempt=None, cost=30, reason="invoice")
    row = finance.run("meter-quality", ask()).total
    assert (row["unreported_usage_attempts"], row["unknown_attempts"]) == (2, 1)
    assert (row["held_usd"], row["unknown_share"]) == (Decimal("0.04"), Decimal("0.333333"))
