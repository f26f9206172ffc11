"""Declares a re-allocation: an amount that moves from one cost centre to another once a second
login approves it; books nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import StrEnum
from uuid import UUID

from gateway.domain.money import nusd_from_usd, usd_from_nusd
from gateway.errors import BadUsage

MOST_USD = 9_000_000_000  # the most that 64 bits of nano-dollars hold


class ReallocationState(StrEnum):
    """The state of a re-allocation. Only an approved one is in the books."""

    PROPOSED = "proposed"
    APPROVED = "approved"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewReallocation:
    """A re-allocation as its author enters it. `month` is a first day; the amount is positive."""

    month: date
    from_cost_centre: str
    to_cost_centre: str
    amount_nusd: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovedReallocation:
    """A re-allocation after its approval. `posted_period` is the first day of the month that its
    two adjustments are posted to.
    """

    reallocation_id: UUID
    amount_usd: Decimal
    posted_period: date


def require_begun(month: date, *, today: date) -> None:
    """Raise `BadUsage` for a month that has not begun: no report would show its entry until
    then.
    """
    if month > today:
        raise BadUsage(
            f"{month:%Y-%m} has not begun. Name the month whose cost moves. Nothing was entered."
        )


def new_reallocation(
    *, month: date, from_cost_centre: str, to_cost_centre: str, amount_usd: Decimal, reason: str
) -> NewReallocation:
    """Return a valid re-allocation. Raises `BadUsage` with the wrong part."""
    source, target = from_cost_centre.strip(), to_cost_centre.strip()
    if not source or not target:
        raise BadUsage("--from and --to each name a cost centre. Nothing was entered.")
    if source == target:
        raise BadUsage(f"--from and --to are both {source}. Nothing was entered.")
    if not reason.strip():
        raise BadUsage("--reason must say why, for the approver. Nothing was entered.")
    if not 0 < amount_usd <= MOST_USD:
        raise BadUsage(
            f"--amount-usd is more than 0 and at most {MOST_USD:,}: --from pays less, and --to "
            "more. Nothing was entered."
        )
    amount_nusd = nusd_from_usd(amount_usd)
    if usd_from_nusd(amount_nusd) != amount_usd:
        raise BadUsage("--amount-usd has at most nine decimals. Nothing was entered.")
    return NewReallocation(
        month=month,
        from_cost_centre=source,
        to_cost_centre=target,
        amount_nusd=amount_nusd,
        reason=reason.strip(),
    )
