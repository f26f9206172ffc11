"""Declares the report `savings`: cached tokens, their share of the input, and what the providers'
prompt caches saved.
"""

from __future__ import annotations

from sqlalchemy import func

from gateway.reports.dimensions import Dimension
from gateway.reports.report import ColumnKind
from gateway.reports.report_kind import summary
from gateway.reports.sources.aggregate import (
    ATTEMPTS,
    SPENT,
    Measure,
    money,
    token_sum,
    total_or_zero,
)
from gateway.reports.sources.facts import FigureGroup, fact

_SPLIT_INPUT = func.nullif(func.sum(fact("split_input_tokens")), 0)
CACHED_SHARE = Measure(
    name="cached_share",
    unit="share of the input whose cached part is known",
    kind=ColumnKind.SHARE,
    value=func.round(func.sum(fact("cached_input_tokens")) / _SPLIT_INPUT, 6),
    needs=FigureGroup.SAVINGS,
    is_ratio=True,
)
CACHE_SAVING = money("cache_saving_usd", of="cache_saving_usd", needs=FigureGroup.SAVINGS)
_UNKNOWN = Measure(
    name="unknown_saving_attempts",
    unit="attempts",
    kind=ColumnKind.COUNT,
    value=total_or_zero("unknown_saving_attempts"),
    needs=FigureGroup.SAVINGS,
)
REPORT = summary(
    name="savings",
    title="Savings",
    question="What did the providers' prompt caches save?",
    by=(Dimension.MODEL,),
    measures=(
        ATTEMPTS,
        token_sum("input_tokens"),
        token_sum("cached_input_tokens"),
        token_sum("cache_write_tokens"),
        CACHED_SHARE,
        CACHE_SAVING,
        _UNKNOWN,
        *SPENT,
    ),
    sorted_by=CACHE_SAVING,
    notes=(
        "cache_saving_usd is what the cached tokens would have cost at the rate of plain input of "
        "each attempt's own price, minus what they cost; the surcharge of cache writes is a "
        "negative saving. Adjustments are not in it.",
        "The saving of an attempt is unknown, and not in the sum, if its cost or its cached tokens "
        "are unknown: unknown_saving_attempts counts these.",
    ),
)
