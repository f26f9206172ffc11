"""Answers the report `routing-savings`: what the same tokens would have cost at the dearest
eligible deployment, and at the first listed one.

It reads the decisions of single events: no sums hold them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal

from sqlalchemy import func, select

from gateway.reports.costs.elsewhere import RATES, DatedRates, elsewhere, rates_of_deployments
from gateway.reports.dimensions import Dimension, Split
from gateway.reports.question import Question
from gateway.reports.report import Cell, Column, ColumnKind, Report
from gateway.reports.report_kind import ReportKind
from gateway.reports.sources.aggregate import (
    ATTEMPTS,
    OF_EVENTS,
    SPENT,
    aggregate,
    facts_of_events,
)
from gateway.reports.sources.connection import ReadSnapshot
from gateway.reports.sources.currencies import rounded
from gateway.reports.sources.facts import fact

BY: tuple[Split, ...] = (Dimension.ROUTE,)
COMPARED = (
    Column(name="compared_attempts", unit="attempts", kind=ColumnKind.COUNT),
    Column(name="compared_usd", unit="USD", kind=ColumnKind.MONEY),
    Column(name="dearest_usd", unit="USD", kind=ColumnKind.MONEY),
    Column(name="default_usd", unit="USD", kind=ColumnKind.MONEY),
)
# The column of each saving stands beside the amount that it is a part of.
SAVINGS = {
    "dearest_usd": Column(name="dearest_saving_usd", unit="USD", kind=ColumnKind.MONEY),
    "default_usd": Column(name="default_saving_usd", unit="USD", kind=ColumnKind.MONEY),
}
MEASURES = (ATTEMPTS, *SPENT)
NOTES = (
    OF_EVENTS,
    "dearest_usd is the cost of the same tokens at the dearest deployment that could have served "
    "the attempt, default_usd at the first listed one of these; a saving is that less "
    "compared_usd.",
    "Each candidate has its standard price at that moment, and the deployment that served its true "
    "cost. An attempt is not compared if a cost is unknown, or if it used audio, images or calls. "
    "The cost at another deployment is known if that had a price then: from `policy apply` on.",
)
Key = tuple[Cell, ...]  # the values of a row's dimensions


def routing_savings(snapshot: ReadSnapshot, question: Question) -> Report:
    """Return the report on savings by routing. Raises `DatabaseUnavailable`."""
    by = BY if question.by is None else question.by
    base = aggregate(snapshot, question, MEASURES, name=REPORT.name, title=REPORT.title, by=by)
    rates = rates_of_deployments(snapshot)
    whole = _compared(snapshot, question, (), rates)[()]
    parts = _compared(snapshot, question, by, rates) if by else {}
    count = len(by)
    report = Report(
        name=base.name,
        title=base.title,
        dataset=base.dataset,
        columns=(*base.columns[:count], *COMPARED, *base.columns[count:]),
        rows=tuple(
            (*row[:count], *parts.get(row[:count], _NOTHING), *row[count:]) for row in base.rows
        ),
        total=dict(zip((column.name for column in COMPARED), whole, strict=True))
        | dict(base.total),
        complete_until=base.complete_until,
        notes=tuple(
            dict.fromkeys((*base.notes, *_compared_note(whole, base.total[ATTEMPTS.name]), *NOTES))
        )
        if base.total[ATTEMPTS.name]
        else base.notes,
    )
    return _with_savings(report if question.currency is None else rounded(report))


def _with_savings(report: Report) -> Report:
    """Return a report with the columns of the savings: differences of rounded amounts."""

    def saved(row: Mapping[str, Cell]) -> dict[str, Cell]:
        return dict(row) | {
            saving.name: _less(row[whole], row["compared_usd"]) for whole, saving in SAVINGS.items()
        }

    columns: list[Column] = []
    for one in report.columns:
        columns += (one, SAVINGS[one.name]) if one.name in SAVINGS else (one,)
    records = [saved(row) for row in report.records()]
    return replace(
        report,
        columns=tuple(columns),
        rows=tuple(tuple(row[column.name] for column in columns) for row in records),
        total=saved(report.total),
    )


def _compared_note(whole: Key, attempts: Cell) -> tuple[str, ...]:
    """Return the note on the attempts that could be compared; empty if all were."""
    compared = whole[0]
    if compared == attempts:
        return ()
    return (f"Compared are {compared:,} of {attempts:,} attempts.",)


_NOTHING: tuple[Cell, ...] = (0, *(None for _ in COMPARED[1:]))


def _compared(
    snapshot: ReadSnapshot, question: Question, by: tuple[Split, ...], rates: DatedRates
) -> Mapping[Key, tuple[Cell, ...]]:
    """Return the cells of `COMPARED` by the values of the dimensions."""
    chosen = facts_of_events(elsewhere(question.dataset), question, by=by)
    groups = [chosen.c[dimension.label] for dimension in by]
    is_compared = fact("dearest_usd").is_not(None)
    figures = {
        "compared_attempts": func.coalesce(func.sum(fact("attempts")).filter(is_compared), 0),
        **{
            name: func.sum(fact(figure)).filter(is_compared)
            for name, figure in (
                ("compared_usd", "cost_usd"),
                ("dearest_usd", "dearest_usd"),
                ("default_usd", "default_usd"),
            )
        },
    }
    found = snapshot.rows(
        select(*groups, *(figure.label(name) for name, figure in figures.items()))
        .select_from(chosen)
        .group_by(*groups),
        **{RATES: rates},
    )
    return {
        tuple(row[dimension.label] for dimension in by): (
            int(row["compared_attempts"]),
            row["compared_usd"],
            row["dearest_usd"],
            row["default_usd"],
        )
        for row in found
    }


def _less(whole: Cell, part: Cell) -> Cell:
    """Return the difference of two amounts; None if one is unknown."""
    if not isinstance(whole, Decimal) or not isinstance(part, Decimal):
        return None
    return whole - part


REPORT = ReportKind(
    name="routing-savings",
    title="Savings by routing",
    question="What did routing save, against the dearest and the default deployment?",
    by=BY,
    run=routing_savings,
)
