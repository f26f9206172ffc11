"""Declares the report `forecast`: a month's spending by its end, with an interval that was tested
on earlier days.
"""

from __future__ import annotations

from calendar import monthrange
from datetime import date, timedelta
from decimal import Decimal

from gateway.domain.forecasting.daily import History, expected
from gateway.domain.forecasting.interval import PROMISED, BackTest, Interval, back_test
from gateway.errors import BadUsage
from gateway.reports.dimensions import Dimension
from gateway.reports.forecasts.history import (
    KEPT_DAYS,
    daily_spending,
    days_before,
    in_order,
    one_split,
    today_of,
)
from gateway.reports.question import Question
from gateway.reports.report import Cell, Column, ColumnKind, Report
from gateway.reports.report_kind import ReportKind
from gateway.reports.sources.connection import ReadSnapshot

BY = (Dimension.TEAM,)
_NANO = Decimal("0.000000001")
AMOUNTS = ("spent_usd", "forecast_usd", "low_usd", "high_usd", "previous_usd")
COLUMNS = tuple(Column(name=name, unit="USD", kind=ColumnKind.MONEY) for name in AMOUNTS)
Amounts = tuple[Decimal | None, ...]


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
    end = month.replace(day=monthrange(month.year, month.month)[1])
    ahead = max(0, (end - today).days + 1)  # today is not over, so it is forecast too
    known_until = min(today - timedelta(days=1), end)
    first = days_before(month, KEPT_DAYS)
    spending = daily_spending(snapshot, question, split=split, first=first, last=min(today, end))
    parts = spending.parts
    tested = back_test([_full_days(part, first, known_until) for part in parts.values()], ahead)
    of_whole = back_test([_full_days(spending.whole, first, known_until)], ahead)
    rows = {
        name: amounts_of(
            part, month=month, known_until=known_until, ahead=ahead, interval=tested.interval
        )
        for name, part in parts.items()
    }
    total = _total(list(rows.values()), tested.interval, of_whole.interval)
    return Report(
        name="forecast",
        title=f"Forecast of {month:%Y-%m}",
        dataset=question.dataset,
        columns=(split.report_column, *COLUMNS),
        rows=tuple(
            (name, *rows[name])
            for name in in_order({name: row[1] or Decimal(0) for name, row in rows.items()})
        ),
        total={**total, "attempts": spending.read.total["attempts"]},
        complete_until=spending.read.complete_until,
        notes=(*_notes(tested, ahead), *spending.read.notes),
    )


def amounts_of(
    history: History, *, month: date, known_until: date, ahead: int, interval: Interval | None
) -> Amounts:
    """Return the amounts of a row: spent, forecast, low, high, and the month before.

    The forecast is the spending of full days, and `ahead` expected days; never less than
    is spent. Without a week of history it is None, and without an interval low and high are.
    """
    begin = (month - history.first_day).days
    before = (month - timedelta(days=1)).replace(day=1)
    previous = sum(history.amounts[max(0, (before - history.first_day).days) : begin], Decimal(0))
    spent = sum(history.amounts[begin:], Decimal(0))
    full = _full_days(history, history.first_day, known_until)
    booked = sum(full.amounts[begin:], Decimal(0))
    coming = expected(full, ahead) if ahead else Decimal(0)
    if coming is None:
        return (spent, None, None, None, previous)
    found = max(spent, booked + coming)
    if not ahead or not coming:
        return (spent, _rounded(found), _rounded(found), _rounded(found), previous)
    if interval is None:
        return (spent, _rounded(found), None, None, previous)
    low = min(found, max(spent, booked + coming * interval.low))
    high = max(found, booked + coming * interval.high)
    return (spent, _rounded(found), _rounded(low), _rounded(high), previous)


def _full_days(history: History, first: date, last: date) -> History:
    """Return the history up to a day that is over."""
    return History(first_day=first, amounts=history.amounts[: (last - first).days + 1])


def _total(
    rows: list[Amounts], of_part: Interval | None, of_whole: Interval | None
) -> dict[str, Cell]:
    """Return the total: the parts add up, but their ends do not; parts miss in both directions.

    So the ends come from the whole's own earlier misses or, with few of them, from the parts'.
    """
    spent, found, previous = (
        sum((row[index] or Decimal(0) for row in rows), Decimal(0)) for index in (0, 1, 4)
    )
    unknown = sum((row[0] or Decimal(0) for row in rows if row[1] is None), Decimal(0))
    found += unknown  # a part too new to forecast is at least its spending
    interval = of_whole or of_part
    coming = found - spent
    ends: tuple[Decimal | None, Decimal | None] = (None, None)
    if not coming:
        ends = (found, found)
    elif interval is not None:
        ends = (
            spent + coming * min(Decimal(1), interval.low),
            spent + coming * max(Decimal(1), interval.high),
        )
    low, high = (None if one is None else _rounded(one) for one in ends)
    return dict(zip(AMOUNTS, (_rounded(spent), _rounded(found), low, high, previous), strict=True))


def _notes(tested: BackTest, ahead: int) -> tuple[str, ...]:
    """Return how the forecast is made, and how earlier ones missed."""
    if not ahead:
        return ("The month is over: its spending is the forecast.",)
    how = (
        f"forecast_usd is the spending of full days and {ahead} expected days: each the median of "
        "its weekday in the last four weeks, times the trend. Unknown costs count as 0."
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


def _rounded(amount: Decimal) -> Decimal:
    """Return an amount in whole nano-dollars."""
    return amount.quantize(_NANO)


REPORT = ReportKind(
    name="forecast",
    title="Forecast",
    question="What will this month have cost at its end?",
    by=BY,
    run=run,
)
