"""LiteLLM's budget bugs as tests of ours: two workers' leases over a real Postgres, and the
writer's transaction.

Some of those counters stood beside the rows, drifted up and refused teams that had spent nothing
(30460, 27639, 38111). Others were values of one process that were stale in another process and let
a budget be overrun (34238, 12977).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from uuid import UUID, uuid4

import pytest

from gateway.domain.budgets.budgets import EPOCH, Account, BudgetPeriod, Hold
from gateway.errors import BudgetExhausted, Unavailable
from gateway.main import SystemClock
from gateway.services.budgets.leases import BudgetLeases
from gateway.storage.budgets.budgets import BudgetLeaseTable, budget_mistakes
from gateway.storage.ledger.documents import encode_event
from gateway.storage.ledger.journals_table import JournalTable
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests.storage.budget_books import ACCOUNT, balance, declare, spending, team_rule

LIMIT = 1000
# It never resets, so that no test depends on the day: Postgres leases by its own time.
TOTAL = Account(account_id=ACCOUNT, rule=team_rule(LIMIT, period=BudgetPeriod.ONCE))


class Worker:
    """One worker's leases and journal."""

    def __init__(self, database: Database, first_number: int) -> None:
        self.journal: UUID = uuid4()
        self.clock = SystemClock()
        self.budget_leases = BudgetLeases(
            BudgetLeaseTable(database), self.clock, worker=self.journal, lease_s=900
        )
        self.ledger = Ledger(database)
        self._number = first_number

    async def hold(self, amount_nusd: int) -> tuple[Hold, ...]:
        """Reserve the amount, however long a loaded machine takes to answer."""
        while True:
            await asyncio.sleep(0)  # a refusal without an await would let nothing else run
            with suppress(Unavailable):
                return await self.budget_leases.hold((TOTAL,), amount_nusd, moment=self.clock.now())

    def spend(self, holds: tuple[Hold, ...], cost_nusd: int) -> None:
        """Settle and write the cost, as the meter and the writer do."""
        self._number += 1
        self.budget_leases.settle(holds, cost_nusd)
        event = spending(self._number, cost_nusd, *holds)
        self.ledger.write_documents([encode_event(event)], journal_id=self.journal)


@asynccontextmanager
async def running(*workers: Worker) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(worker.budget_leases.run()) for worker in workers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for worker in workers:
            await worker.budget_leases.close()
            worker.ledger.close()


async def test_litellm_30460_holds_that_ended_do_not_count_for_ever(database: Database) -> None:
    """Many times the limit is held and released, and one worker dies. No hold may remain that
    could refuse a request.
    """
    declare(database, TOTAL.rule)
    one, two = Worker(database, 0), Worker(database, 1000)
    async with running(one, two):
        for turn in range(60):
            worker = (one, two)[turn % 2]
            holds = await worker.hold(LIMIT // 4)
            if turn % 7 == 0:
                # Failed before anything was generated: nothing is written.
                worker.budget_leases.settle(holds, 0)
            else:
                worker.spend(holds, turn % 3)
        await one.hold(LIMIT // 4)  # and then it dies with this hold
    for worker in (one, two):
        await asyncio.to_thread(JournalTable(database).drained, worker.journal)
    spent = sum(turn % 3 for turn in range(60) if turn % 7)
    assert balance(database, starts_at=EPOCH) == (spent, 0)
    assert budget_mistakes(database) == ()
    fresh = Worker(database, 2000)
    async with running(fresh):
        assert (await fresh.hold(LIMIT - spent))[0].held_nusd == LIMIT - spent


async def test_litellm_34238_a_stale_value_admits_no_request_over_the_limit(
    database: Database,
) -> None:
    """The second worker's last value of the budget dates from before any spending. That stale
    value must not admit a request.
    """
    declare(database, TOTAL.rule)
    one, two = Worker(database, 0), Worker(database, 1000)
    async with running(one, two):
        two.spend(await two.hold(1), 1)
        while True:
            try:
                one.spend(await one.hold(LIMIT // 100), LIMIT // 100)
            except BudgetExhausted:
                break
        refused = 0
        for _ in range(LIMIT):
            try:
                two.spend(await two.hold(LIMIT // 100), LIMIT // 100)
            except BudgetExhausted:
                refused += 1
                if refused == 3:
                    break
    spent, _ = balance(database, starts_at=EPOCH)
    assert LIMIT - LIMIT // 50 <= spent <= LIMIT
    assert budget_mistakes(database) == ()


async def test_litellm_27639_a_worst_case_hold_does_not_pin_the_budget(database: Database) -> None:
    """A hold of nine tenths of the limit settles at a thousandth; the next hold of that size
    finds room at once.
    """
    declare(database, TOTAL.rule)
    worker = Worker(database, 0)
    async with running(worker):
        for _ in range(20):
            worker.spend(await worker.hold(LIMIT * 9 // 10), LIMIT // 1000)
    assert balance(database, starts_at=EPOCH)[0] == 20


async def test_litellm_38111_a_refused_hold_reserves_nothing(database: Database) -> None:
    """A hundred requests for more than the rest are refused. The whole rest is still there for a
    smaller request.
    """
    declare(database, TOTAL.rule)
    worker = Worker(database, 0)
    async with running(worker):
        for _ in range(100):
            with pytest.raises(BudgetExhausted):
                await worker.hold(LIMIT + 1)
        assert (await worker.hold(LIMIT))[0].held_nusd == LIMIT
