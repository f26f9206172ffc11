"""Builds a serving process's budget leases, limiter, idempotency claims and refusal counts, and the
admission over them; `process.py` runs their loops.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from gateway.domain.request.idempotency import claim_secret
from gateway.services.budgets.leases import BudgetLeases
from gateway.services.limits.limiter import Limiter
from gateway.services.request.admission import Admission
from gateway.services.request.idempotency import Claims
from gateway.services.request.refusals import Refusals
from gateway.serving.context import ProcessContext
from gateway.storage.budgets.budgets import BudgetLeaseTable
from gateway.storage.budgets.idempotency import ClaimTable
from gateway.storage.budgets.limits import LimitWindows
from gateway.storage.budgets.refusals import RefusalFolder, RefusalStore


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionParts:
    """This worker's budget leases, limiter, idempotency claims and refusal counts, and the
    admission of requests by them.
    """

    budget_leases: BudgetLeases
    limiter: Limiter
    claims: Claims
    refusals: Refusals
    admission: Admission


def build_admission_parts(context: ProcessContext, worker: UUID) -> AdmissionParts:
    """Build a process's budget leases, limiter and idempotency claims.

    `worker` is the journal's id: leases belong to it and return when the journal is adopted.
    """
    settings, database, clock = context.settings, context.stores.database, context.clock
    budget_leases = BudgetLeases(
        BudgetLeaseTable(database),
        clock,
        worker=worker,
        lease_s=settings.lease_s,
        wait_s=settings.budget_wait_s,
    )
    limiter = Limiter(LimitWindows(database), clock, worker=worker)
    claims = Claims(
        ClaimTable(database), clock, secret=claim_secret(context.peppers[-1]), journal_id=worker
    )
    refusals = Refusals(
        RefusalStore(database),
        clock,
        journal_id=worker,
        files=RefusalFolder(settings.home_path / "refusals"),
    )
    admission = Admission(
        budget_leases=budget_leases, limiter=limiter, claims=claims, refusals=refusals, clock=clock
    )
    return AdmissionParts(
        budget_leases=budget_leases,
        limiter=limiter,
        claims=claims,
        refusals=refusals,
        admission=admission,
    )
