"""Reads the re-allocations between cost centres, each as one row with both sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from uuid import UUID

from gateway.reports.sources.connection import ReadSnapshot

# The view has a row a side: the one that pays less, and the one that pays more.
_LISTED = """
SELECT paid.reallocation_id, paid.month,
       freed.cost_centre AS from_cost_centre, paid.cost_centre AS to_cost_centre, paid.amount_usd,
       paid.state, paid.reason, paid.author_login, paid.author, paid.created_at,
       paid.approver_login, paid.approver, paid.approval_reason, paid.approved_at,
       paid.posted_period
FROM finance.reallocations AS paid JOIN finance.reallocations AS freed USING (reallocation_id)
WHERE paid.amount_usd > 0 AND freed.amount_usd < 0
  AND (CAST(:month AS date) IS NULL OR paid.month = :month)
ORDER BY paid.created_at, paid.reallocation_id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reallocation:
    """One re-allocation. `month` and `posted_period` are first days; the latter and the approver
    are None until it is approved. Persons are None unless they signed in.
    """

    reallocation_id: UUID
    month: date
    from_cost_centre: str
    to_cost_centre: str
    amount_usd: Decimal
    state: str
    reason: str
    author_login: str
    author: str | None
    created_at: datetime
    approver_login: str | None
    approver: str | None
    approval_reason: str | None
    approved_at: datetime | None
    posted_period: date | None


def reallocations(snapshot: ReadSnapshot, *, month: date | None) -> Sequence[Reallocation]:
    """Return all re-allocations, or those of the month that begins on a day, oldest first."""
    return [Reallocation(**row) for row in snapshot.rows(_LISTED, month=month)]
