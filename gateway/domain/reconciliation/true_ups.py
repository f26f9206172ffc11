"""Works out the adjustments that bring the ledger to a bill: for each place, cause and team, the
approved difference less that which is booked already.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gateway.domain.reconciliation.metered import Owner
from gateway.domain.reconciliation.statement import Cause, ReconciledRow, RowKey

KIND = "true_up"


class TrueUpKey(NamedTuple):
    """The place, cause and team of a true-up; without a team it is unallocated."""

    key: RowKey
    cause: Cause
    owner: Owner | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrueUp:
    """An adjustment of the ledger to a bill, in nano-dollars, with its evidence."""

    at: TrueUpKey
    amount_nusd: int
    evidence: str


def true_ups_of(
    rows: Iterable[ReconciledRow],
    *,
    causes: Collection[Cause],
    unallocated_to: Owner | None,
    booked: Mapping[TrueUpKey, int],
) -> list[TrueUp]:
    """Return the true-ups of rows with some causes that are not booked yet.

    A part without a team is booked without one, or to `unallocated_to`. A second approval of the
    same bill finds nothing; one of a newer bill finds the change.
    """
    before: dict[tuple[RowKey, Cause], dict[Owner | None, int]] = {}
    for at, nusd in booked.items():
        before.setdefault((at.key, at.cause), {})[at.owner] = nusd
    found = []
    for row in rows:
        if row.cause in causes:
            parts = _changes(row, before.pop((row.key, row.cause), {}), unallocated_to)
            found += [
                TrueUp(
                    at=TrueUpKey(row.key, row.cause, owner),
                    amount_nusd=nusd,
                    evidence=row.evidence,
                )
                for owner, nusd in parts.items()
                if nusd
            ]
    for (key, cause), owners in before.items():
        found += [
            TrueUp(
                at=TrueUpKey(key, cause, owner),
                amount_nusd=-nusd,
                evidence="A newer bill does not have it.",
            )
            for owner, nusd in owners.items()
            if nusd and cause in causes
        ]
    return found


def _changes(
    row: ReconciledRow, booked: Mapping[Owner | None, int], unallocated_to: Owner | None
) -> dict[Owner | None, int]:
    """Return the amounts by team that are still to be booked for a row.

    The part without a team counts as booked under any team that an earlier approval named.
    """
    owned = row.owners or {}
    parts: dict[Owner | None, int] = {
        owner: nusd - booked.get(owner, 0) for owner, nusd in owned.items()
    }
    elsewhere = sum(nusd for owner, nusd in booked.items() if owner not in owned)
    left = row.difference_nusd - sum(owned.values()) - elsewhere
    if left:
        parts[unallocated_to] = parts.get(unallocated_to, 0) + left
    return parts
