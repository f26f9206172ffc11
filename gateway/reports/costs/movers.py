"""Answers the report `movers`: where spending changed most, against the time before and the same
time a year before.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from gateway.domain.reports.comparison import Compared
from gateway.reports.dimensions import Dimension, Split
from gateway.reports.question import Question
from gateway.reports.report import Cell, Report
from gateway.reports.report_kind import ReportKind
from gateway.reports.sources.aggregate import ATTEMPTS, TOTAL, aggregate
from gateway.reports.sources.comparison import (
    CHANGES,
    YEAR_CHANGES,
    require_comparable,
    with_changes,
    with_share,
)
from gateway.reports.sources.connection import ReadSnapshot
from gateway.reports.sources.notes import read_freshness

BY: tuple[Split, ...] = (Dimension.TEAM, Dimension.MODEL)
MEASURES = (ATTEMPTS, TOTAL)
NOTE = (
    "The largest change in USD first, up or down. A share is empty if the earlier amount is 0. "
    "tollgate report spend --why explains a change by volume and price."
)


def movers(snapshot: ReadSnapshot, question: Question) -> Report:
    """Return the report on the largest changes; of the newest month, if no time is asked for.

    Raises `BadUsage` for a split by time, or `DatabaseUnavailable`.
    """
    by = BY if question.by is None else question.by
    require_comparable(by)
    if question.month is None and question.days is None:
        newest = read_freshness(snapshot, question).complete_until
        if newest is not None:
            question = replace(question, month=newest.date().replace(day=1))

    def answer(asked: Question) -> Report:
        return aggregate(
            snapshot,
            asked,
            MEASURES,
            name=REPORT.name,
            title=REPORT.title,
            by=by,
            sorted_by=TOTAL,
        )

    found = with_share(answer(question)) if by else answer(question)
    if question.month is None and question.days is None:
        return found  # an empty ledger has no newest month
    for kind, columns in ((Compared.PREVIOUS, CHANGES), (Compared.YEAR, YEAR_CHANGES)):
        asked = replace(question, compared=kind)
        found = with_changes(snapshot, asked, found, answer, columns=columns)
    place = next(n for n, one in enumerate(found.columns) if one.name == "change_usd")
    rows = sorted(found.rows, key=lambda row: -_size(row[place]))
    return replace(found, rows=tuple(rows), notes=(*found.notes, NOTE))


def _size(change: Cell) -> Decimal:
    """Return the size of a change in USD; an unknown one comes last."""
    return abs(Decimal(change)) if isinstance(change, Decimal | int) else Decimal(-1)


REPORT = ReportKind(
    name="movers",
    title="Top movers",
    question="Where did spending change most, against the time before and a year before?",
    by=BY,
    run=movers,
)
