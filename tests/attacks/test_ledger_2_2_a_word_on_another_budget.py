"""Ledger section 2, bullet 2: an answer about one budget was taken for another budget's, which
caused a false 402.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID, uuid4

from gateway.domain.budgets.budgets import SliceAsk, SliceGranted
from gateway.errors import DatabaseUnavailable
from gateway.services.budgets.leases import BudgetLeases
from tests.attacks.test_ledger_1_05_a_refused_ask_does_not_block_others import USD, account
from tests.fakes import FakeClock, FakeLeases
from tests.waiting import soon


class LosesFirst(FakeLeases):
    """A Postgres whose first answer is lost."""

    def exchange(self, journal_id: UUID, asks: Sequence[SliceAsk]) -> Sequence[SliceGranted]:
        first = not self.asked
        granted = super().exchange(journal_id, asks)
        if asks and first:
            raise DatabaseUnavailable("committed, but the answer was lost")
        return granted


async def test_no_402_comes_from_a_question_that_did_not_name_the_budget() -> None:
    """Only Postgres knows of the grant that raised blue's limit, and the repeated query names
    red alone.
    """
    red, blue = account("red"), account("blue", limit_nusd=USD)
    leases = LosesFirst(limits={"red/month": 100 * USD, "blue/month": 50 * USD})
    clock = FakeClock()
    budget_leases = BudgetLeases(leases, clock, worker=uuid4(), lease_s=900, wait_s=5)
    lost = asyncio.create_task(budget_leases.hold([red], USD, moment=clock.now()))
    await soon(
        lambda: any(budget_lease.waiting for budget_lease in budget_leases._leases.values()),
        "red's hold",
    )
    assert not await budget_leases.exchange()
    await asyncio.gather(lost, return_exceptions=True)
    budget_leases._postgres.note_answer()
    both = asyncio.create_task(budget_leases.hold([red, blue], 2 * USD, moment=clock.now()))
    await soon(
        lambda: any(budget_lease.waiting for budget_lease in budget_leases._leases.values()),
        "the hold on both",
    )
    await budget_leases.exchange()  # the same query again: red alone
    await asyncio.sleep(0)
    assert not both.done(), "nothing was said of blue"
    while not both.done():
        await budget_leases.exchange()
        await asyncio.sleep(0)
    assert [hold.account_id for hold in await both] == ["red/month", "blue/month"]
    await budget_leases.close()
