"""The side of what requests may take: money, units of limits, claims on keys."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from gateway.domain.idempotency import claim_secret
from gateway.services.gate import Gate
from gateway.services.idempotency import Claims
from gateway.services.limiter import Limiter
from gateway.services.purses import Purses
from gateway.services.refusals import Refusals
from gateway.serving.ground import Ground
from gateway.storage.budgets import BudgetLeases
from gateway.storage.idempotency import ClaimTable
from gateway.storage.limits import LimitWindows
from gateway.storage.refusals import RefusalStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowances:
    """What this worker has at hand of each, shared with the others by Postgres, and the gate that requests pass."""

    purses: Purses
    limiter: Limiter
    claims: Claims
    refusals: Refusals
    gate: Gate


def build_allowances(ground: Ground, worker: UUID) -> Allowances:
    """`worker` is the journal's id: what is at hand hangs on it and comes back when that is adopted."""
    settings, database, clock = ground.settings, ground.stores.database, ground.clock
    purses = Purses(
        BudgetLeases(database), clock, worker=worker, lease_s=settings.lease_s, wait_s=settings.budget_wait_s
    )
    limiter = Limiter(LimitWindows(database), clock, worker=worker)
    claims = Claims(ClaimTable(database), clock, secret=claim_secret(ground.peppers[-1]), journal_id=worker)
    refusals = Refusals(RefusalStore(database), clock, journal_id=worker)
    gate = Gate(purses=purses, limiter=limiter, claims=claims, refusals=refusals, clock=clock)
    return Allowances(purses=purses, limiter=limiter, claims=claims, refusals=refusals, gate=gate)
