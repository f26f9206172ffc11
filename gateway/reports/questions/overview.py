"""The headline figures: amount, spender and certainty."""

from __future__ import annotations

from sqlalchemy import func, not_

from gateway.reports.kind import summary
from gateway.reports.report import ColumnKind
from gateway.reports.sources.aggregate import ATTEMPTS, SPENT, Measure, count, money, tokens
from gateway.reports.sources.facts import fact


def _distinct(name: str, of: str) -> Measure:
    return Measure(
        name=name,
        unit=name,
        kind=ColumnKind.COUNT,
        value=func.count(fact(of).distinct()),
        needs_events=True,
    )


REPORT = summary(
    name="overview",
    title="Overview",
    question="How much was spent, on what, and how sure is that?",
    by=(),
    measures=(
        ATTEMPTS,
        _distinct("requests", of="request_id"),
        count("failed_attempts"),
        count("unknown_attempts"),
        count("derived_attempts"),
        *SPENT,
        money("self_hosted_cost_usd", fact("is_self_hosted")),
        money("external_cost_usd", not_(fact("is_self_hosted"))),
        tokens("input_tokens"),
        tokens("cached_input_tokens"),
        tokens("output_tokens"),
        tokens("reasoning_tokens"),
        _distinct("teams", of="team"),
    ),
)
