"""Declares the report `overview`: headline figures of cost, requests, tokens, teams and certainty,
without a split by default.
"""

from __future__ import annotations

from sqlalchemy import func, not_

from gateway.reports.report import ColumnKind
from gateway.reports.report_kind import summary
from gateway.reports.sources.aggregate import ATTEMPTS, SPENT, Measure, count_sum, money, token_sum
from gateway.reports.sources.facts import fact


def _distinct(name: str, of: str) -> Measure:
    """Return the measure that counts different values of a column."""
    return Measure(
        name=name,
        unit=name,
        kind=ColumnKind.COUNT,
        value=func.count(fact(of).distinct()),
        needs_events=True,
        adds_up=False,
    )


REPORT = summary(
    name="overview",
    title="Overview",
    question="How much was spent, on what, and how sure is that?",
    by=(),
    measures=(
        ATTEMPTS,
        _distinct("requests", of="request_id"),
        count_sum("failed_attempts"),
        count_sum("unknown_attempts"),
        count_sum("derived_attempts"),
        *SPENT,
        money("self_hosted_cost_usd", fact("is_self_hosted")),
        money("external_cost_usd", not_(fact("is_self_hosted"))),
        token_sum("input_tokens"),
        token_sum("cached_input_tokens"),
        token_sum("output_tokens"),
        token_sum("reasoning_tokens"),
        _distinct("teams", of="team"),
    ),
)
