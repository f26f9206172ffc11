"""What did it cost, split by anything?"""

from __future__ import annotations

from gateway.reports.aggregate import ATTEMPTS, COST, HELD, Measure, aggregate, count, tokens
from gateway.reports.connection import Snapshot
from gateway.reports.dimensions import Dimension
from gateway.reports.question import Question
from gateway.reports.report import Kind, Report

TITLE = "Spend"
DEFAULT_BY = (Dimension.TEAM,)
UNKNOWN, DERIVED = "cost_usd IS NULL", "usage_source IN ('derived', 'estimated')"


def _share(name: str, condition: str) -> Measure:
    return Measure(
        name=name, unit="share of attempts", kind=Kind.SHARE,
        sql=f"round(count(*) FILTER (WHERE {condition}) / nullif(count(*), 0)::numeric, 6)",
    )  # fmt: skip


MEASURES = (
    ATTEMPTS,
    tokens("input_tokens", "input_tokens"),
    tokens("cached_input_tokens", "cached_input_tokens"),
    tokens("output_tokens", "output_tokens"),
    tokens("reasoning_tokens", "reasoning_tokens"),
    COST,
    HELD,
    count("unknown_attempts", "attempts", UNKNOWN),
    count("derived_attempts", "attempts", DERIVED),
    _share("unknown_share", UNKNOWN),
    _share("derived_share", DERIVED),
)


def spend(snapshot: Snapshot, question: Question) -> Report:
    """Attempts, tokens and cost. Input includes cached tokens, output includes reasoning tokens."""
    by = DEFAULT_BY if question.by is None else question.by
    return aggregate(snapshot, question, MEASURES, name="spend", title=TITLE, by=by)
