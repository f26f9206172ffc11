"""Declares the report `outlook`: spending and volume of the next 18 months, to plan capacity."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from gateway.domain.forecasting.daily import History
from gateway.domain.forecasting.outlook import LEAST_WEEKS, growth_of, outlook
from gateway.errors import BadUsage
from gateway.reports.dimensions import Dimension
from gateway.reports.forecasts.history import KEPT_DAYS, daily_spending, days_before, today_of
from gateway.reports.question import Question
from gateway.reports.report import Cell, Column, ColumnKind, Report
from gateway.reports.report_kind import ReportKind
from gateway.reports.sources.aggregate import TOTAL, token_sum
from gateway.reports.sources.connection import ReadSnapshot

MONTHS = 18
TOKENS = token_sum("total_tokens")
COLUMNS = (
    Column(name="month", unit="UTC", kind=ColumnKind.TEXT),
    *(
        Column(name=f"{name}_usd", unit="USD", kind=ColumnKind.MONEY)
        for name in ("forecast", "low", "high")
    ),
    *(
        Column(name=f"{name}_tokens", unit="tokens", kind=ColumnKind.COUNT)
        for name in ("forecast", "low", "high")
    ),
)


def run(snapshot: ReadSnapshot, question: Question) -> Report:
    """Return the coming months. Filters choose what is carried on.

    Raises: BadUsage: a month or days, because the months ahead follow from today.
    """
    if question.month is not None or question.days is not None:
        raise BadUsage("Report outlook is about the months ahead: leave out --month, --from, --to.")
    last = today_of(snapshot) - timedelta(days=1)
    first = days_before(last, KEPT_DAYS)
    chosen = replace(question, by=None)
    money, tokens = (
        daily_spending(
            snapshot, chosen, split=Dimension.TEAM, first=first, last=last, measure=measure
        )
        for measure in (TOTAL, TOKENS)
    )
    usd, volume = (outlook(one.whole, MONTHS) for one in (money, tokens))
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            f"{of_usd.month:%Y-%m}",
            of_usd.expected,
            of_usd.low,
            of_usd.high,
            *(int(amount) for amount in (of_tokens.expected, of_tokens.low, of_tokens.high)),
        )
        for of_usd, of_tokens in zip(usd, volume, strict=False)
    )
    return Report(
        name="outlook",
        title=f"The next {MONTHS} months",
        dataset=question.dataset,
        columns=COLUMNS,
        rows=rows,
        total={"attempts": money.read.total["attempts"]},
        complete_until=money.read.complete_until,
        notes=(_note(money.whole), *money.read.notes),
    )


def _note(history: History) -> str:
    """Return how the months are made, or the reason that there are none."""
    growth = growth_of(history)
    if growth is None:
        return f"No outlook: it needs {LEAST_WEEKS} weeks with spending."
    return (
        f"The level of the last four weeks, with spending growing by {growth.middle:+.1%} a week "
        f"({growth.low:+.1%} to {growth.high:+.1%}: four fifths of the pairs of distant weeks). "
        "It carries the past on, and knows of no plan: for a budget, add the changes that you plan."
    )


REPORT = ReportKind(
    name="outlook",
    title="Outlook",
    question="What will the next 18 months cost if they go on as the last half year?",
    by=None,
    run=run,
    whole_months=True,
    usd_alone="the months to come have no rate yet",
)
