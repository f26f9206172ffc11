"""Compares a provider's bill of a month with the metered usage, and approves its differences; the
causes are found in `domain.reconciliation`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import TYPE_CHECKING

from gateway.domain.policy.policy import Deployment, Policy
from gateway.domain.providers.place_prices import factors_of
from gateway.domain.reconciliation.causes import reconciled
from gateway.domain.reconciliation.imports import BookedTrueUps
from gateway.domain.reconciliation.metered import MeteredAt, Owner
from gateway.domain.reconciliation.statement import (
    Cause,
    ReconciledRow,
    Totals,
    totals_of,
)
from gateway.domain.reconciliation.true_ups import TrueUp, TrueUpKey, true_ups_of
from gateway.errors import NothingFound
from gateway.services.policy.apply import require_current

if TYPE_CHECKING:
    from gateway.storage.policy.policies import PolicyStore
    from gateway.storage.reconciliation.bills import ProviderBillStore

DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """The rows of a provider's month, and their sums. `has_bill` is False without any import."""

    rows: Sequence[ReconciledRow]
    totals: Totals
    has_bill: bool


def reconcile_month(
    bills: ProviderBillStore,
    provider: str,
    month: date,
    *,
    policies: PolicyStore,
    on_day: Callable[[date], None],
) -> Reconciliation:
    """Return the reconciliation of a month; `on_day` is called before each day is read.

    The days beside the month are read too: a request may run over midnight.
    """
    last = (month + timedelta(days=32)).replace(day=1) - DAY
    bill = bills.bill(provider, first=month - DAY, last=last + DAY)
    usage = bills.metered(provider, first=month - DAY, last=last + DAY, on_day=on_day)
    deployments = _deployments(_policy(policies), provider)
    usage = replace(
        usage,
        billing={one.name: one.billing for one in deployments if one.billing is not None},
        stated=[MeteredAt(one.name, one.model) for one in deployments],
        premiums=factors_of(provider),
    )
    rows = reconciled(bill, usage, first=month, last=last)
    return Reconciliation(rows=rows, totals=totals_of(rows), has_bill=bool(bill.covered))


def approve_month(
    bills: ProviderBillStore,
    provider: str,
    month: date,
    *,
    found: Reconciliation,
    causes: Collection[Cause],
    owner: Owner | None,
    reason: str,
) -> BookedTrueUps:
    """Book the differences of a reconciliation with some causes, as far as they are not booked. A
    part without a team is booked to `owner`, if it is given.
    """

    def make(booked: Mapping[TrueUpKey, int]) -> Sequence[TrueUp]:
        """Return the true-ups that are not booked yet."""
        return true_ups_of(found.rows, causes=causes, unallocated_to=owner, booked=booked)

    return bills.approve(provider, month, make=make, reason=reason)


def _policy(policies: PolicyStore) -> Policy | None:
    """Return the current policy; None before the first."""
    try:
        return require_current(policies).policy
    except NothingFound:
        return None


def _deployments(policy: Policy | None, provider: str) -> list[Deployment]:
    """Return the deployments of a provider whose bills the policy states."""
    deployments = () if policy is None else policy.deployments.values()
    return [one for one in deployments if one.provider == provider and one.billing is not None]


def owner_of(team: str, month: date, *, policies: PolicyStore) -> Owner:
    """Return a team of the current policy with its cost centre of a month. Raises
    `NothingFound`.
    """
    policy = require_current(policies).policy
    found = policy.teams.get(team)
    if found is None:
        raise NothingFound(f"There is no team '{team}' (there are: {', '.join(policy.teams)}).")
    return Owner(team, found.cost_centre_on(month))
