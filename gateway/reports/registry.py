"""All reports. The CLI, the CSV export and the docs table come from here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gateway.reports.dimensions import Dimension
from gateway.reports.month import months
from gateway.reports.question import Question
from gateway.reports.questions import (
    budgets,
    destinations,
    events,
    gpu,
    latency,
    overview,
    shadow,
    spend,
    tokens,
    unsettled,
)
from gateway.reports.report import Cell, Report
from gateway.reports.sources.connection import ReadSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportKind:
    """One report. `by` is its default split; None: it cannot be split.

    `each_row` reads the rows of a report that lists attempts one by one; other reports hold theirs.
    """

    name: str
    title: str
    question: str
    by: tuple[Dimension, ...] | None
    run: Callable[[ReadSnapshot, Question], Report]
    each_row: Callable[[ReadSnapshot, Question], Iterator[tuple[Cell, ...]]] | None = None


REPORTS: dict[str, ReportKind] = {
    kind.name: kind
    for kind in (
        ReportKind(
            name="overview",
            title=overview.TITLE,
            by=(),
            run=overview.overview,
            question="How much was spent, on what, and how sure is that?",
        ),
        ReportKind(
            name="spend",
            title=spend.TITLE,
            by=spend.DEFAULT_BY,
            run=spend.spend,
            question="What did it cost, split by team, model, tag, day or anything else?",
        ),
        ReportKind(
            name="events",
            title=events.TITLE,
            by=None,
            run=events.events,
            each_row=events.event_rows,
            question="Which attempts are behind a total?",
        ),
        ReportKind(
            name="tokens",
            title=tokens.TITLE,
            by=tokens.DEFAULT_BY,
            run=tokens.tokens_by_kind,
            question="Which kinds of tokens were used, over time?",
        ),
        ReportKind(
            name="latency",
            title=latency.TITLE,
            by=latency.DEFAULT_BY,
            run=latency.latency,
            question="How long did callers wait, against what their routes promise, and how "
            "often did it go wrong?",
        ),
        ReportKind(
            name="destinations",
            title=destinations.TITLE,
            by=destinations.DEFAULT_BY,
            run=destinations.destinations,
            question="Where did data and money go: own GPUs or external providers, and in "
            "which region?",
        ),
        ReportKind(
            name="gpu",
            title=gpu.TITLE,
            by=None,
            run=gpu.gpu_cost,
            question="What did our own GPUs cost, and how much of that did requests pay for?",
        ),
        ReportKind(
            name="budgets",
            title=budgets.TITLE,
            by=None,
            run=budgets.budgets,
            question="How much of each budget is used, what is left, and what will it be at "
            "the end of the period?",
        ),
        ReportKind(
            name="unsettled",
            title=unsettled.TITLE,
            by=None,
            run=unsettled.unsettled,
            each_row=unsettled.unsettled_rows,
            question="Which attempts have an unknown cost, for how long, and why?",
        ),
        ReportKind(
            name="shadow",
            title=shadow.TITLE,
            by=None,
            run=shadow.shadow,
            question="What would rules, limits and routes in shadow have done?",
        ),
        ReportKind(
            name="months",
            title=months.TITLE,
            by=None,
            run=months.months,
            question="Which months are there, and can they still change?",
        ),
    )
}
