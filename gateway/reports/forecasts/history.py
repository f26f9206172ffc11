"""Reads the spending of each day, from the sums by day, as the series that forecasts start from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from decimal import Decimal

from gateway.domain.forecasting.daily import History
from gateway.errors import BadUsage
from gateway.reports.dimensions import TIME, UNALLOCATED, Dimension, Split
from gateway.reports.question import Question
from gateway.reports.report import Report
from gateway.reports.sources.aggregate import ATTEMPTS, MAX_ROWS, TOTAL, Measure, aggregate
from gateway.reports.sources.connection import ReadSnapshot

KEPT_DAYS = 150
"""Five months: with 300 teams fewer rows than a report may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DailySpending:
    """Each part's spending by day, over the same days, and the report that it was read from."""

    parts: dict[str, History]
    whole: History
    read: Report


def today_of(snapshot: ReadSnapshot) -> date:
    """Return the present day in UTC, by Postgres."""
    found: date = snapshot.row("SELECT (now() AT TIME ZONE 'UTC')::date AS today")["today"]
    return found


def one_split(by: Sequence[Split], name: str) -> Split:
    """Return the split of a series. Raises `BadUsage` unless it is one, and no time."""
    if len(by) != 1 or by[0] in (*TIME, Dimension.TAG):
        raise BadUsage(
            f"Report {name} splits by one of team, project, cost_centre, key, model, provider, "
            "deployment, route and tag:KEY: each day needs one line of each."
        )
    return by[0]


def daily_spending(
    snapshot: ReadSnapshot,
    question: Question,
    *,
    split: Split,
    first: date,
    last: date,
    measure: Measure = TOTAL,
) -> DailySpending:
    """Return the amounts of each part and day from `first` to `last`; unknown costs count as 0.

    Raises: BadUsage: more lines than a report may have.
    """
    asked = replace(question, month=None, days=(first, last), compared=None, asks_why=False)
    read = aggregate(
        snapshot,
        asked,
        (ATTEMPTS, measure),
        name="daily",
        title="",
        by=(split, Dimension.DAY),
        sorted_by=measure,
    )
    if len(read.rows) >= MAX_ROWS:
        raise BadUsage(
            f"That is more than {MAX_ROWS:,} lines of {split.value} and day. Name fewer of them "
            "with --where, or split by team."
        )
    count = (last - first).days + 1
    amounts: dict[str, list[Decimal]] = {}
    for row in read.records():
        day = row["day"]
        assert isinstance(day, date)
        part = amounts.setdefault(str(row[split.value]), [Decimal(0)] * count)
        part[(day - first).days] += Decimal(str(row[measure.name] or 0))
    whole = tuple(sum(day, Decimal(0)) for day in zip(*amounts.values(), strict=True))
    return DailySpending(
        parts={
            name: History(first_day=first, amounts=tuple(part)) for name, part in amounts.items()
        },
        whole=History(first_day=first, amounts=whole or (Decimal(0),) * count),
        read=read,
    )


def spent_between(snapshot: ReadSnapshot, question: Question, *, first: date, last: date) -> Report:
    """Return the report of what was spent in the days that a reader asked about: its notes are on
    them, and not on the months before, which a series reads too.
    """
    asked = replace(question, month=None, days=(first, last), compared=None, asks_why=False)
    return aggregate(snapshot, asked, (ATTEMPTS, TOTAL), name="spent", title="", by=())


def in_order(parts: dict[str, Decimal]) -> Iterator[str]:
    """Yield names by their amounts, the largest first, `unallocated` last."""
    yield from sorted(parts, key=lambda name: (name == UNALLOCATED, -parts[name], name))


def days_before(day: date, count: int) -> date:
    """Return the day `count` days earlier, or the first that exists."""
    return day - timedelta(days=min(count, (day - date.min).days))
