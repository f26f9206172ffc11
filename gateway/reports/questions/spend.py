"""The cost, split by any dimension."""

from __future__ import annotations

from gateway.reports.dimensions import Dimension
from gateway.reports.question import Question
from gateway.reports.report import ColumnKind, Report
from gateway.reports.sources.aggregate import ATTEMPTS, SPENT, Measure, aggregate, count, tokens
from gateway.reports.sources.connection import ReadSnapshot

TITLE = "Spend"
DEFAULT_BY = (Dimension.TEAM,)


def _share(name: str, part: str) -> Measure:
    return Measure(
        name=name,
        unit="share of attempts",
        kind=ColumnKind.SHARE,
        is_ratio=True,
        sql=f"round(sum({part}) / nullif(sum(attempts), 0), 6)",
    )


MEASURES = (
    ATTEMPTS,
    tokens("input_tokens"),
    tokens("cached_input_tokens"),
    tokens("output_tokens"),
    tokens("reasoning_tokens"),
    *SPENT,
    count("unknown_attempts"),
    count("derived_attempts"),
    _share("unknown_share", "unknown_attempts"),
    _share("derived_share", "derived_attempts"),
)


def spend(snapshot: ReadSnapshot, question: Question) -> Report:
    """Return attempts, tokens and cost. Input includes cached tokens, output includes reasoning
    tokens.
    """
    by = DEFAULT_BY if question.by is None else question.by
    return aggregate(snapshot, question, MEASURES, name="spend", title=TITLE, by=by)
