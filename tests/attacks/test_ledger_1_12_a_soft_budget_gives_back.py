"""Ledger 1.12: a hard budget that became soft kept its leases as long as the worker lived."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

from gateway.domain.budgets.budgets import BudgetKind
from gateway.services.budgets.leases import BudgetLeases
from tests.attacks.test_ledger_1_05_a_refused_ask_does_not_block_others import USD, account
from tests.fakes import FakeClock, FakeLeases


async def test_a_budget_that_becomes_soft_returns_its_leases() -> None:
    """Otherwise other replicas lack the money when the budget is hard again, and finance sees it
    as leased.
    """
    leases, clock, hard = FakeLeases(limits={"red/month": 1000 * USD}), FakeClock(), account("red")
    hard = replace(hard, rule=replace(hard.rule, limit_nusd=1000 * USD))
    budget_leases = BudgetLeases(leases, clock, worker=uuid4(), lease_s=900, wait_s=1)
    soft = replace(hard, rule=replace(hard.rule, kind=BudgetKind.SOFT))
    await budget_leases.exchange()
    budget_lease = budget_leases._lease(hard, clock.now().timestamp())
    budget_lease.waiting.clear()
    budget_lease.use_rule_of(hard)
    budget_lease._largest_nusd = USD
    await budget_leases.exchange()
    assert leases.leased("red/month") > 0
    under_way = budget_lease.hold(USD, clock.monotonic())
    await budget_leases.hold([soft], USD, moment=clock.now())
    await budget_leases.exchange()
    assert leases.leased("red/month") == USD, "what is held stays until its attempt ends"
    budget_leases.settle([under_way], 0)
    await budget_leases.exchange()
    assert leases.leased("red/month") == 0
    asked = len(leases.asked)
    await budget_leases.exchange()
    assert len(leases.asked) == asked, "once"
    await budget_leases.close()
