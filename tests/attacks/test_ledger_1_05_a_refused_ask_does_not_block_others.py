"""Ledger 1.5: one slice request that Postgres refused blocked all hard budgets of the worker
until its restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

import pytest
from structlog.testing import capture_logs

from gateway.domain.budgets.budgets import (
    Account,
    AsksRefused,
    BudgetKind,
    BudgetPeriod,
    BudgetRule,
    BudgetScope,
    SliceAsk,
    SliceGranted,
)
from gateway.errors import BudgetExhausted, Unavailable
from gateway.main import SystemClock
from gateway.services.budgets.leases import BudgetLeases
from gateway.services.supervisor import Supervisor
from gateway.storage.budgets.budgets import BudgetLeaseTable, write_rules
from gateway.storage.postgres.database import Database
from tests.fakes import FakeClock, FakeLeases
from tests.storage.budgets.test_budget_slices import ask

USD = 1_000_000_000
HUGE_NUSD = 77_000_000 * USD  # n: 128, max_tokens: 10^9 at USD 600 per million tokens


def account(team: str, *, limit_nusd: int = 100 * USD) -> Account:
    """Return the account of a team's monthly hard budget."""
    account_id = f"{team}/month"
    rule = BudgetRule(
        rule_id=account_id,
        scope=BudgetScope.TEAM,
        team=team,
        owner=team,
        period=BudgetPeriod.MONTH,
        limit_nusd=limit_nusd,
        kind=BudgetKind.HARD,
    )
    return Account(account_id=account_id, rule=rule)


@asynccontextmanager
async def asking(budget_leases: BudgetLeases) -> AsyncIterator[None]:
    """Run the leases' loop, as a gateway does."""
    supervisor = Supervisor(FakeClock(), on_failure=lambda loop: None)
    supervisor.start({"budgets": budget_leases.run})
    try:
        yield
    finally:
        await supervisor.cancel()
        await budget_leases.close()


async def test_a_thousand_huge_holds_block_no_other_team(database: Database) -> None:
    """Their sum exceeds BIGINT, so the real function refused the same request (22003) again and
    again.
    """
    red, blue = account("red"), account("blue")
    with database.begin() as connection:
        write_rules(connection, [red.rule, blue.rule], policy_version=1)
    clock, leases = SystemClock(), BudgetLeaseTable(database)  # Postgres leases by its own time
    budget_leases = BudgetLeases(leases, clock, worker=uuid4(), lease_s=900, wait_s=60)
    async with asking(budget_leases):
        floods = [budget_leases.hold([red], HUGE_NUSD, moment=clock.now()) for _ in range(1500)]
        ends = await asyncio.gather(*floods, return_exceptions=True)
        assert {type(end) for end in ends} == {BudgetExhausted}
        assert await budget_leases.hold([blue], USD, moment=clock.now())
        assert budget_leases.away_s is None
    leases.close()


async def test_a_hold_above_the_whole_budget_needs_no_question() -> None:
    """The answer is already known from the limit and the grants in Postgres's last answer."""
    leases, clock, red = FakeLeases(), FakeClock(), account("red")
    leases.limits["red/month"] = red.rule.limit_nusd
    budget_leases = BudgetLeases(leases, clock, worker=uuid4(), lease_s=900, wait_s=1)
    async with asking(budget_leases):
        await budget_leases.hold([red], USD, moment=clock.now())
        asked = len(leases.asked)
        with pytest.raises(BudgetExhausted):
            await budget_leases.hold([red], 101 * USD, moment=clock.now())
        assert len(leases.asked) == asked


class Picky(FakeLeases):
    """A Postgres that refuses every slice request for one account."""

    def exchange(self, journal_id: UUID, asks: Sequence[SliceAsk]) -> Sequence[SliceGranted]:
        if any(one.account_id == "red/month" for one in asks):
            raise AsksRefused("bigint out of range (22003)")
        return super().exchange(journal_id, asks)


async def test_a_refused_question_is_dropped_and_its_waiters_get_an_error(
    database: Database,
) -> None:
    """Its waiting requests get a clear error at once; other slice requests of the same exchange
    are answered.
    """
    red, blue = account("red"), account("blue")
    leases, clock = Picky(limits={"blue/month": 100 * USD}), FakeClock()
    budget_leases = BudgetLeases(leases, clock, worker=uuid4(), lease_s=900, wait_s=1)
    with capture_logs() as logs:
        async with asking(budget_leases):
            refused, held = await asyncio.gather(
                budget_leases.hold([red], USD, moment=clock.now()),
                budget_leases.hold([blue], USD, moment=clock.now()),
                return_exceptions=True,
            )
            assert isinstance(refused, Unavailable)
            assert "budget_ask_refused" in refused.message
            assert not isinstance(held, BaseException)
            assert budget_leases.away_s is None
            assert not budget_leases._unanswered
    assert {line["log_level"] for line in logs if line["event"] == "budget_ask_refused"} == {
        "error"
    }


def test_postgres_says_which_questions_it_refuses(database: Database) -> None:
    """A number beyond its column (22003) is a fault of the request: a repeat would be refused
    again.
    """
    leases = BudgetLeaseTable(database)
    with pytest.raises(AsksRefused, match="22003"):
        leases.exchange(uuid4(), [ask(1, 2**63)])
    leases.close()
