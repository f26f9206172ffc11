"""Ledger 1.12: a budget that became soft kept what was leased of it, for as long as the worker lived."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

from gateway.domain.budgets import BudgetKind
from gateway.services.purses import Purses
from tests.attacks.test_ledger_1_05_a_refused_ask_blocks_nobody_else import USD, account
from tests.fakes import FakeClock, FakeLeases


async def test_what_a_hard_budget_had_leased_goes_back_when_it_is_soft() -> None:
    """Else other replicas lack it as soon as the budget is hard again, and finance sees it as leased."""
    leases, clock, hard = FakeLeases(limits={"red/month": 1000 * USD}), FakeClock(), account("red")
    hard = replace(hard, rule=replace(hard.rule, limit_nusd=1000 * USD))
    purses = Purses(leases, clock, worker=uuid4(), lease_s=900, wait_s=1)
    soft = replace(hard, rule=replace(hard.rule, kind=BudgetKind.SOFT))
    await purses.exchange()
    purse = purses._purse(hard, clock.now(), clock.now().timestamp())
    purse.waiting.clear()
    purse.use_rule_of(hard)
    purse._largest_nusd = USD
    await purses.exchange()
    assert leases.leased("red/month") > 0
    under_way = purse.hold(USD, clock.monotonic())
    await purses.hold([soft], USD, moment=clock.now())
    await purses.exchange()
    assert leases.leased("red/month") == USD, "what is held stays until its attempt ends"
    purses.settle([under_way], 0)
    await purses.exchange()
    assert leases.leased("red/month") == 0
    asked = len(leases.asked)
    await purses.exchange()
    assert len(leases.asked) == asked, "once"
    await purses.close()
