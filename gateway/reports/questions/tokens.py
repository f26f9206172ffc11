"""The kinds of used tokens over time."""

from __future__ import annotations

from gateway.reports.dimensions import Dimension
from gateway.reports.question import Question
from gateway.reports.report import Report
from gateway.reports.sources.aggregate import ATTEMPTS, SPENT, aggregate, count, tokens
from gateway.reports.sources.connection import ReadSnapshot

TITLE = "Tokens by kind"
DEFAULT_BY = (Dimension.DAY,)

# Disjoint kinds, so that they can be stacked. A part that a provider does not report stays in its
# whole.
MEASURES = (
    ATTEMPTS,
    tokens("uncached_input_tokens"),
    tokens("cached_input_tokens"),
    tokens("cache_write_tokens"),
    tokens("plain_output_tokens"),
    tokens("reasoning_tokens"),
    count("unreported_attempts"),
    *SPENT,
)


def tokens_by_kind(snapshot: ReadSnapshot, question: Question) -> Report:
    """Return tokens of each kind. The kinds are disjoint and add up to input plus output."""
    by = DEFAULT_BY if question.by is None else question.by
    return aggregate(snapshot, question, MEASURES, name="tokens", title=TITLE, by=by)
