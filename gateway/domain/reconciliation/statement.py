"""Declares the rows of a reconciliation and their sums: the difference of each day, account, model
and kind of token, divided into causes without a remainder.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from enum import StrEnum
from typing import NamedTuple

from gateway.domain.reconciliation.metered import Owner

MOST_EVIDENCE = 400  # characters: several sentences of evidence are joined up to so many


class Cause(StrEnum):
    """The cause of a difference. `none` without a difference is agreement, with one it is an
    unexplained difference.
    """

    NONE = "none"
    UNMETERED = "unmetered"
    MISSING_BILL = "missing_bill"
    ABORTED = "aborted"
    QUANTITY = "quantity"
    PRICE = "price"
    ROUNDING = "rounding"
    FEE = "fee"
    TIMING = "timing"
    UNMAPPED = "unmapped"


# The causes that can be approved. Later bills or the policy end the others.
APPROVED = (
    Cause.ABORTED,
    Cause.QUANTITY,
    Cause.PRICE,
    Cause.ROUNDING,
    Cause.UNMETERED,
    Cause.FEE,
)


class RowKey(NamedTuple):
    """The place of a row. The rows of one place add up to its difference."""

    day: date
    account: str
    model: str
    token_kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconciledRow:
    """A part of a place's metered and billed amounts with one cause.

    A quantity is None if there is none on that side. `is_matched`: a deployment has it, and the
    bill too. `owners` are the parts of the difference by team, in nano-dollars; the rest of it is
    without a team.
    """

    key: RowKey
    cause: Cause
    evidence: str
    metered_quantity: Decimal | None = None
    billed_quantity: Decimal | None = None
    metered_nusd: int = 0
    billed_nusd: int = 0
    is_matched: bool = False
    owners: Mapping[Owner, int] | None = None

    @property
    def difference_nusd(self) -> int:
        """Return the billed less the metered amount."""
        return self.billed_nusd - self.metered_nusd

    @property
    def is_unexplained(self) -> bool:
        """Return True for a difference without a cause."""
        return self.cause is Cause.NONE and self.difference_nusd != 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The sums of a reconciliation in nano-dollars.

    `unexplained_nusd` adds up the sizes of unexplained differences, so that two of them cannot
    cancel each other out. `coverage_share` is metered / billed of the matched rows, None if nothing
    was billed.
    """

    metered_nusd: int
    billed_nusd: int
    unexplained_nusd: int
    coverage_share: Decimal | None

    @property
    def difference_nusd(self) -> int:
        """Return the billed less the metered amount."""
        return self.billed_nusd - self.metered_nusd


def totals_of(rows: Iterable[ReconciledRow]) -> Totals:
    """Return the sums of some rows."""
    found = list(rows)
    matched = [row for row in found if row.is_matched]
    billed = sum(row.billed_nusd for row in matched)
    metered = sum(row.metered_nusd for row in matched)
    return Totals(
        metered_nusd=sum(row.metered_nusd for row in found),
        billed_nusd=sum(row.billed_nusd for row in found),
        unexplained_nusd=sum(abs(row.difference_nusd) for row in found if row.is_unexplained),
        coverage_share=round(Decimal(metered) / billed, 6) if billed else None,
    )


def merged(rows: Iterable[ReconciledRow]) -> list[ReconciledRow]:
    """Return one row for each place and cause, in their order; their amounts are added up."""
    found: dict[tuple[RowKey, int, int], list[ReconciledRow]] = {}
    for row in rows:
        # Two unexplained differences stay two: their sum could be 0.
        sign = (row.difference_nusd > 0) - (row.difference_nusd < 0) if row.is_unexplained else 0
        found.setdefault((row.key, _ORDER[row.cause], sign), []).append(row)
    return [_one_of(parts) if len(parts) > 1 else parts[0] for _, parts in sorted(found.items())]


_ORDER = {cause: place for place, cause in enumerate(Cause)}


def _one_of(parts: Sequence[ReconciledRow]) -> ReconciledRow:
    """Return the sum of rows of one place and cause."""
    owners: dict[Owner, int] = {}
    for part in parts:
        for owner, nusd in (part.owners or {}).items():
            owners[owner] = owners.get(owner, 0) + nusd
    return replace(
        parts[0],
        evidence=_joined(part.evidence for part in parts),
        metered_quantity=_sum(part.metered_quantity for part in parts),
        billed_quantity=_sum(part.billed_quantity for part in parts),
        metered_nusd=sum(part.metered_nusd for part in parts),
        billed_nusd=sum(part.billed_nusd for part in parts),
        is_matched=any(part.is_matched for part in parts),
        owners=owners,
    )


def _sum(quantities: Iterable[Decimal | None]) -> Decimal | None:
    """Return the sum of the known quantities; None if none is known."""
    known = [one for one in quantities if one is not None]
    return sum(known, Decimal(0)) if known else None


def _joined(texts: Iterable[str]) -> str:
    """Return distinct texts as one, up to a limit."""
    found = list(dict.fromkeys(text for text in texts if text))
    joined = " ".join(found[:1])
    for place, text in enumerate(found[1:], 1):
        if len(joined) + len(text) > MOST_EVIDENCE:
            return f"{joined} And {len(found) - place} more."
        joined = f"{joined} {text}"
    return joined
