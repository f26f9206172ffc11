"""Ledger section 2, bullet 3: each answer of Postgres granted the whole overdraft again before
its events were written.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import uuid4

from gateway.domain.budgets.budgets import Account, Hold
from gateway.errors import Unavailable
from gateway.services.budgets.leases import BudgetLeases
from tests.attacks.test_ledger_1_05_a_refused_ask_does_not_block_others import USD, account
from tests.fakes import FakeClock, FakeLeases


async def held(budget_leases: BudgetLeases, red: Account, clock: FakeClock) -> Hold | None:
    """Try to hold a dollar; query Postgres if that is needed."""
    holding = asyncio.create_task(budget_leases.hold([red], USD, moment=clock.now()))
    await asyncio.sleep(0)
    while not holding.done():
        await budget_leases.exchange()
        await asyncio.sleep(0)
    if isinstance(holding.exception(), Unavailable):
        return None
    budget_leases.settle(holding.result(), USD)
    return holding.result()[0]


async def test_a_postgres_that_flaps_gives_no_overdraft_twice() -> None:
    """Postgres counts only written events against the limit, so the worker must count the
    unwritten ones.
    """
    bare = account("red", limit_nusd=1000 * USD)
    red = replace(bare, rule=replace(bare.rule, overdraft_nusd=3 * USD))
    leases, clock = FakeLeases(limits={"red/month": 1000 * USD}), FakeClock()
    budget_leases = BudgetLeases(leases, clock, worker=uuid4(), lease_s=900, wait_s=5)
    written_until_s = clock.monotonic()
    budget_leases.written_until_s = lambda: written_until_s

    async def overdrawn() -> int:
        """Spend all that is possible while Postgres is away; return the overdraft that was
        spent.
        """
        leases.is_away, spent_nusd = True, 0
        while (hold := await held(budget_leases, red, clock)) is not None:
            spent_nusd += hold.held_nusd * hold.is_overdraft
        leases.is_away = False
        await budget_leases.exchange()
        assert await held(budget_leases, red, clock), "Postgres answers"
        clock.advance(2)
        return spent_nusd

    assert [await overdrawn() for _ in range(4)] == [3 * USD, 0, 0, 0]
    written_until_s = clock.monotonic()
    assert await overdrawn() == 3 * USD, "what is written makes room again"
    await budget_leases.close()
