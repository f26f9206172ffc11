"""Declares the type of a report's definition (name, question, answering function), and builds the
definitions of reports of sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from gateway.reports.dimensions import Split
from gateway.reports.question import Question
from gateway.reports.report import Cell, Report
from gateway.reports.sources.aggregate import COST, TOTAL, Measure, aggregate
from gateway.reports.sources.comparison import require_comparable, with_changes, with_share
from gateway.reports.sources.connection import ReadSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportKind:
    """One report. `by` is its default split; None: it cannot be split.

    `each_row` reads the rows of a report that lists attempts one by one; other reports hold theirs.
    `compares`: it can be compared with an earlier time. `explains`: and can say why it changed.
    `usd_alone`: why its money has no other currency; empty if it can be shown in one.
    `reproduces`: it reads booked facts alone, so it can show a month as it was closed.
    `whole_months`: it takes no first and last day.
    """

    name: str
    title: str
    question: str
    by: tuple[Split, ...] | None
    run: Callable[[ReadSnapshot, Question], Report]
    each_row: Callable[[ReadSnapshot, Question], Iterator[tuple[Cell, ...]]] | None = None
    compares: bool = False
    explains: bool = False
    usd_alone: str = ""
    reproduces: bool = False
    whole_months: bool = False


def summary(
    *,
    name: str,
    title: str,
    question: str,
    by: tuple[Split, ...],
    measures: Sequence[Measure],
    sorted_by: Measure = COST,
    notes: tuple[str, ...] = (),
) -> ReportKind:
    """Return the definition of a report that sums facts in groups: its measures, split by `by` or
    by the reader.

    Its rows are in the order of their time, then by `sorted_by`, largest first. `notes` follow the
    general ones if there are events. A report with `total_usd` has each row's share of it, and can
    be compared with an earlier time.
    """

    def run(snapshot: ReadSnapshot, asked: Question) -> Report:
        split = by if asked.by is None else asked.by

        def answer(to: Question) -> Report:
            return aggregate(
                snapshot, to, measures, name=name, title=title, by=split, sorted_by=sorted_by
            )

        found = answer(asked)
        if TOTAL in measures and split:
            found = with_share(found)
        if asked.compared is not None:
            require_comparable(split)
            found = with_changes(snapshot, asked, found, answer)
        return replace(found, notes=(*found.notes, *notes)) if found.total["attempts"] else found

    return ReportKind(
        name=name,
        title=title,
        question=question,
        by=by,
        run=run,
        compares=TOTAL in measures,
        reproduces=True,
    )
