"""Declares the report `spikes`: days that differ from a part's usual weekday, and their driver."""

from __future__ import annotations

from calendar import monthrange
from dataclasses import dataclass, replace
from datetime import date, timedelta
from decimal import Decimal

from gateway.domain.forecasting.daily import USED_DAYS
from gateway.domain.forecasting.spikes import (
    COMPARED_DAYS,
    Spike,
    largest_driver,
    sentence,
    spikes,
    weekdays_before,
)
from gateway.errors import BadUsage
from gateway.reports.dimensions import UNALLOCATED, Dimension, Split
from gateway.reports.forecasts.history import (
    daily_spending,
    days_before,
    one_split,
    spent_between,
    today_of,
)
from gateway.reports.question import Question
from gateway.reports.report import Column, ColumnKind, Report
from gateway.reports.report_kind import ReportKind
from gateway.reports.sources.aggregate import ATTEMPTS, TOTAL, aggregate
from gateway.reports.sources.connection import ReadSnapshot

BY = (Dimension.TEAM,)
DRIVERS = (Dimension.DAY, Dimension.MODEL, Dimension.KEY)
MOST = 20
"""Spikes that are listed; each asks a question for its driver."""
MOST_DAYS = 366
COLUMNS = (
    Column(name="spent_usd", unit="USD", kind=ColumnKind.MONEY),
    Column(name="usual_usd", unit="USD", kind=ColumnKind.MONEY),
    Column(name="change_usd", unit="USD", kind=ColumnKind.MONEY),
    Column(name="model", unit="", kind=ColumnKind.TEXT),
    Column(name="key", unit="", kind=ColumnKind.TEXT),
    Column(name="driver_usd", unit="USD", kind=ColumnKind.MONEY),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A spike of one part, and the model and key that changed most on that day."""

    part: str
    spike: Spike
    model: str
    key: str
    driver_usd: Decimal


def run(snapshot: ReadSnapshot, question: Question) -> Report:
    """Return the days of the asked time that stand out, the largest change first; without a time,
    of the last four weeks. Days that are not over are left out.

    Raises: BadUsage: a split that is not one line a day, or too many days.
    """
    split = one_split(BY if question.by is None else question.by, "spikes")
    first, last = _days(question, today_of(snapshot))
    if (last - first).days >= MOST_DAYS:
        raise BadUsage(f"Report spikes looks at {MOST_DAYS} days at most: name a later --from.")
    begin = days_before(first, COMPARED_DAYS)
    read_to = max(begin, last)
    spending = daily_spending(snapshot, question, split=split, first=begin, last=read_to)
    seen = [
        (part, spike)
        for part, history in spending.parts.items()
        for spike in spikes(history)
        if first <= spike.day <= last
    ]
    seen.sort(key=lambda one: (-abs(one[1].change), one[0], one[1].day))
    found = [_explained(snapshot, question, split, part, spike) for part, spike in seen[:MOST]]
    read = spent_between(snapshot, question, first=first, last=max(first, last))
    return Report(
        name="spikes",
        title="Days that stand out",
        dataset=question.dataset,
        columns=(Dimension.DAY.report_column, split.report_column, *COLUMNS),
        rows=tuple(
            (
                one.spike.day,
                one.part,
                one.spike.amount,
                one.spike.usual,
                one.spike.change,
                one.model,
                one.key,
                one.driver_usd,
            )
            for one in found
        ),
        total={"attempts": read.total["attempts"]},
        complete_until=read.complete_until,
        notes=(*_notes(found, split, count=len(seen)), *read.notes),
    )


def _days(question: Question, today: date) -> tuple[date, date]:
    """Return the first and the last day to look at."""
    yesterday = today - timedelta(days=1)
    if question.days is not None:
        return question.days[0], min(question.days[1], yesterday)
    if question.month is not None:
        end = question.month.replace(day=monthrange(question.month.year, question.month.month)[1])
        return question.month, min(end, yesterday)
    return today - timedelta(days=USED_DAYS), yesterday


def _explained(
    snapshot: ReadSnapshot, question: Question, split: Split, part: str, spike: Spike
) -> Found:
    """Return a spike with the model and key whose change was largest, in the spike's direction."""
    value = None if part == UNALLOCATED else part
    asked = replace(
        question,
        month=None,
        compared=None,
        asks_why=False,
        where=(*question.where, (split, value)),
    )
    before = weekdays_before(spike.day)
    read = aggregate(
        snapshot,
        replace(asked, days=(before[-1], spike.day)),
        (ATTEMPTS, TOTAL),
        name="driver",
        title="",
        by=DRIVERS,
        sorted_by=TOTAL,
    )
    by_day: dict[object, dict[tuple[str, str], Decimal]] = {}
    for row in read.records():
        driver = str(row["model"]), str(row["key"])
        by_day.setdefault(row["day"], {})[driver] = Decimal(str(row["total_usd"] or 0))
    (model, key), driver_usd = largest_driver(
        spike, now=by_day.get(spike.day, {}), before=[by_day.get(day, {}) for day in before]
    )
    return Found(part=part, spike=spike, model=model, key=key, driver_usd=driver_usd)


def _notes(found: list[Found], split: Split, *, count: int) -> tuple[str, ...]:
    """Return the rule, and each of the three largest spikes as a sentence."""
    rule = (
        "A day stands out if it differs from the median of its weekday in the four weeks before by "
        "more than 3.5 times the usual share, by a quarter at least, and by more than 1 USD."
    )
    left = (f"Only the {MOST} largest of {count} are listed.",) if count > MOST else ()
    return (*(_sentence(one, split) for one in found[:3]), rule, *left)


def _sentence(one: Found, split: Split) -> str:
    """Return a spike in words."""
    return sentence(one.spike, part=f"{split.value} {one.part}", model=one.model, key=one.key)


REPORT = ReportKind(
    name="spikes",
    title="Spikes",
    question="Which days stand out, and which model and key drove them?",
    by=BY,
    run=run,
    usd_alone="a change of the rate would look like a change of use",
)
