"""Declares the report `forecast`: a month's spending by its end, with an interval that was tested
on earlier days.
"""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal

from gateway.domain.calendar_months import last_month
from gateway.domain.forecasting.daily import History, expected
from gateway.domain.forecasting.interval import PROMISED, BackTest, Interval, back_test
from gateway.errors import BadUsage
from gateway.reports.dimensions import Dimension, Split
from gateway.reports.forecasts.history import (
    KEPT_DAYS,
    daily_spending,
    days_before,
    in_order,
    one_split,
    spent_between,
    today_of,
)
from gateway.reports.question import Question
from gateway.reports.report import Column, ColumnKind, Report
from gateway.reports.report_kind import ReportKind
from gateway.reports.sources.aggregate import ATTEMPTS, TOTAL, aggregate
from gateway.reports.sources.closes import closed_at
from gateway.reports.sources.connection import ReadSnapshot

BY = (Dimension.TEAM,)
_NANO = Decimal("0.000000001")
AMOUNTS = ("spent_usd", "forecast_usd", "low_usd", "high_usd", "previous_usd")
COLUMNS = tuple(Column(name=name, unit="USD", kind=ColumnKind.MONEY) for name in AMOUNTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthForecast:
    """The amounts of a part, in USD, in the order of the report's columns.

    `expected` is None without a week of history; `low` and `high` also without an interval.
    """

    spent: Decimal
    expected: Decimal | None
    low: Decimal | None
    high: Decimal | None
    previous: Decimal

    @property
    def cells(self) -> tuple[Decimal | None, ...]:
        """Return the amounts in whole nano-dollars."""
        amounts = (self.spent, self.expected, self.low, self.high, self.previous)
        return tuple(None if one is None else one.quantize(_NANO) for one in amounts)


def run(snapshot: ReadSnapshot, question: Question) -> Report:
    """Return the forecast of the asked month, the running one if none is named.

    Raises: BadUsage: a month that has not begun, days, or a split that is not one line a day.
    """
    if question.days is not None:
        raise BadUsage("Report forecast is about a month: name it with --month YYYY-MM.")
    today = today_of(snapshot)
    month = question.month or today.replace(day=1)
    if month > today:
        raise BadUsage(f"{month:%Y-%m} has not begun. Ask for: tollgate report outlook")
    split = one_split(BY if question.by is None else question.by, "forecast")
    if closed_at(snapshot, replace(question, month=month)) is not None:
        return _closed_month(snapshot, question, month, split)
    end = month.replace(day=monthrange(month.year, month.month)[1])
    ahead = max(0, (end - today).days + 1)  # today is not over, so it is forecast too
    first = days_before(month, KEPT_DAYS)
    spending = daily_spending(snapshot, question, split=split, first=first, last=min(today, end))
    tested = back_test([_full_days(part, ahead) for part in spending.parts.values()], ahead)
    of_whole = back_test([_full_days(spending.whole, ahead)], ahead)
    rows = {
        name: forecast_of(part, month=month, ahead=ahead, interval=tested.interval)
        for name, part in spending.parts.items()
    }
    total = total_of(list(rows.values()), of_whole.interval or tested.interval)
    read = spent_between(snapshot, question, first=month, last=min(today, end))
    return _report(month, split, rows, total=total, read=read, notes=_notes(tested, ahead))


def _closed_month(snapshot: ReadSnapshot, question: Question, month: date, split: Split) -> Report:
    """Return the report of a closed month: the sums posted to it and to the month before, which do
    not change any more.
    """
    before = last_month(month)
    read, earlier = (
        aggregate(
            snapshot,
            replace(question, month=one, limit=None, compared=None, asks_why=False),
            (ATTEMPTS, TOTAL),
            name="spent",
            title="",
            by=(split,),
            sorted_by=TOTAL,
        )
        for one in (month, before)
    )
    spent, previous = (
        {str(row[split.value]): Decimal(str(row[TOTAL.name] or 0)) for row in one.records()}
        for one in (read, earlier)
    )
    rows = {
        name: _spent_alone(spent.get(name, Decimal(0)), previous.get(name, Decimal(0)))
        for name in (*spent, *(name for name in previous if name not in spent))
    }
    note = "The month is closed: the sum posted to it is the forecast."
    total = total_of(list(rows.values()), None)
    return _report(month, split, rows, total=total, read=read, notes=(note,))


def _report(
    month: date,
    split: Split,
    rows: Mapping[str, MonthForecast],
    *,
    total: MonthForecast,
    read: Report,
    notes: Sequence[str],
) -> Report:
    """Return the report of a month's forecasts, the largest first; `read` is the spending that was
    read for them.
    """
    expected = {name: row.expected or Decimal(0) for name, row in rows.items()}
    return Report(
        name="forecast",
        title=f"Forecast of {month:%Y-%m}",
        dataset=read.dataset,
        columns=(split.report_column, *COLUMNS),
        rows=tuple((name, *rows[name].cells) for name in in_order(expected)),
        total={
            **dict(zip(AMOUNTS, total.cells, strict=True)),
            "attempts": read.total["attempts"],
        },
        complete_until=read.complete_until,
        notes=(*notes, *read.notes),
    )


def _spent_alone(spent: Decimal, previous: Decimal) -> MonthForecast:
    """Return the amounts of a part whose month is over."""
    return MonthForecast(spent=spent, expected=spent, low=spent, high=spent, previous=previous)


def forecast_of(
    history: History, *, month: date, ahead: int, interval: Interval | None
) -> MonthForecast:
    """Return a part's forecast: the spending of full days, and `ahead` expected days; never less
    than is spent.
    """
    begin = (month - history.first_day).days
    before = last_month(month)
    previous = sum(history.amounts[max(0, (before - history.first_day).days) : begin], Decimal(0))
    spent = sum(history.amounts[begin:], Decimal(0))
    full = _full_days(history, ahead)
    booked = sum(full.amounts[begin:], Decimal(0))
    coming = expected(full, ahead) if ahead else Decimal(0)
    found = low = high = None
    if coming is not None:
        coming = coming.quantize(_NANO)  # the parts are to add up to the total
        found = max(spent, booked + coming)
        if not coming:
            low = high = found
        elif interval is not None:
            low = min(found, max(spent, booked + coming * interval.low))
            high = max(found, booked + coming * interval.high)
    return MonthForecast(spent=spent, expected=found, low=low, high=high, previous=previous)


def total_of(rows: Sequence[MonthForecast], interval: Interval | None) -> MonthForecast:
    """Return the total: the parts add up, but their ends do not, because parts miss in both
    directions; so it has an interval of its own.

    A part too new to forecast is at least its spending.
    """
    spent = sum((row.spent for row in rows), Decimal(0))
    found = sum((row.spent if row.expected is None else row.expected for row in rows), Decimal(0))
    coming = found - spent
    low = high = None
    if not coming:
        low = high = found
    elif interval is not None:
        low = spent + coming * min(Decimal(1), interval.low)
        high = spent + coming * max(Decimal(1), interval.high)
    previous = sum((row.previous for row in rows), Decimal(0))
    return MonthForecast(spent=spent, expected=found, low=low, high=high, previous=previous)


def _full_days(history: History, ahead: int) -> History:
    """Return the history up to the last day that is over: in a running month without today."""
    return history.until(1 if ahead else 0)


def _notes(tested: BackTest, ahead: int) -> tuple[str, ...]:
    """Return how the forecast is made, and how earlier ones missed."""
    if not ahead:
        return ("The month is over: its spending is the forecast.",)
    how = (
        f"forecast_usd is the spending of full days and {ahead} expected days: each the median of "
        "its weekday in the last four weeks, times the trend. Unknown costs count as 0. A fee or "
        "another adjustment counts once it is booked: those to come are not foreseen."
    )
    if tested.interval is None or tested.coverage is None or tested.median_error is None:
        return (
            how,
            f"No interval: it needs ten earlier forecasts of {ahead} days, and {tested.windows} "
            "could be compared.",
        )
    return (
        how,
        f"low_usd to high_usd is to hold {PROMISED:.0%} of the amounts. Tested on {tested.windows} "
        f"earlier forecasts of {ahead} days: it held {tested.coverage:.0%}; the median error was "
        f"{tested.median_error:.1%}.",
    )


REPORT = ReportKind(
    name="forecast",
    title="Forecast",
    question="What will this month have cost at its end?",
    by=BY,
    run=run,
    whole_months=True,
    usd_alone="the days to come have no rate yet",
)
