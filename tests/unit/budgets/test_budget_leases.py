"""Holds in memory: never more than was leased, never a no that Postgres did not say, nothing
stranded.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from gateway.domain.budgets.budgets import (
    Account,
    AsksRefused,
    BudgetKind,
    BudgetPeriod,
    BudgetRule,
    BudgetScope,
    Hold,
    SliceAsk,
    SliceGranted,
)
from gateway.errors import BudgetExhausted, Unavailable
from gateway.services.budgets.leases import MOST_WAIT_S, WAIT_S, BudgetLeases
from gateway.services.supervisor import Supervisor
from tests.fakes import FakeClock, FakeLeases
from tests.waiting import soon

USD = 10**9


def account(
    account_id: str = "payments/month",
    limit_usd: int = 100,
    *,
    kind: BudgetKind = BudgetKind.HARD,
    overdraft_usd: int = 0,
    period: BudgetPeriod = BudgetPeriod.MONTH,
) -> Account:
    return Account(
        account_id=account_id,
        rule=BudgetRule(
            rule_id=account_id,
            scope=BudgetScope.TEAM,
            team="payments",
            owner="payments",
            period=period,
            limit_nusd=limit_usd * USD,
            kind=kind,
            overdraft_nusd=overdraft_usd * USD,
        ),
    )


@dataclass
class Stage:
    """One worker's leases over a fake Postgres."""

    leases: FakeLeases = field(default_factory=FakeLeases)
    clock: FakeClock = field(default_factory=FakeClock)
    worker: UUID = field(default_factory=uuid4)
    # Seconds. Long, so that a machine that stands still for a moment is no silence of Postgres.
    wait_s: float = 5.0

    def __post_init__(self) -> None:
        self.budget_leases = BudgetLeases(
            self.leases, self.clock, worker=self.worker, lease_s=900, wait_s=self.wait_s
        )

    def account(self, *arguments: object, **named: object) -> Account:
        made = account(*arguments, **named)  # type: ignore[arg-type]
        self.leases.limits[made.account_id] = made.rule.limit_nusd
        return made

    async def hold(self, amount_nusd: int, *accounts: Account) -> tuple[Hold, ...]:
        return await self.budget_leases.hold(accounts, amount_nusd, moment=self.clock.now())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        supervisor = Supervisor(self.clock, on_failure=lambda loop: None)
        supervisor.start({"budgets": self.budget_leases.run})
        try:
            yield
        finally:
            await supervisor.cancel()
            await self.budget_leases.close()


async def test_a_hold_is_leased_first_and_settled_at_its_cost() -> None:
    """After a settlement the unused part of the hold is free."""
    on = Stage()
    month = on.account()
    async with on.running():
        holds = await on.hold(2 * USD, month)
        assert [(hold.account_id, hold.held_nusd, hold.is_overdraft) for hold in holds] == [
            (month.account_id, 2 * USD, False)
        ]
        assert on.leases.leased(month.account_id) >= 2 * USD
        on.budget_leases.settle(holds, USD // 2)
        again = await on.hold(USD, month)
        assert again[0].held_nusd == USD


@pytest.mark.parametrize("cost_usd", [5, 3, 2, None])
async def test_a_cost_above_its_hold_takes_no_more_from_the_purse_than_was_held(
    cost_usd: int | None,
) -> None:
    """The excess over the hold was not leased: Postgres books it, and the rest of the lease
    stays available.
    """
    on = Stage()
    month = on.account(limit_usd=1000)
    async with on.running():
        holds = await on.hold(2 * USD, month)
        budget_lease = next(iter(on.budget_leases._leases.values()))
        free_nusd = budget_lease.free_nusd
        on.budget_leases.settle(holds, None if cost_usd is None else cost_usd * USD)
        assert (budget_lease.free_nusd, budget_lease.held_nusd) == (free_nusd, 0)


async def test_a_busy_budget_is_asked_for_seldom() -> None:
    """Admission costs no round trip: a slice serves many requests."""
    on = Stage()
    month = on.account(limit_usd=10_000)
    async with on.running():
        for _ in range(2_000):
            holds = await on.hold(USD // 100, month)
            on.budget_leases.settle(holds, USD // 200)
            on.clock.advance(0.001)
            await asyncio.sleep(0)
        # Of two thousand; at first, until the rate is known, one in eight.
        assert len(on.leases.asked) < 200


async def test_only_postgres_refuses_and_it_reports_the_remaining_money() -> None:
    """402 names limit, spent, held, when there is more and how to get it: a developer acts on it
    without asking.
    """
    on = Stage()
    month = on.account()
    start_s = month.rule.period_at(on.clock.now()).starts_s
    on.leases.spent[month.account_id, start_s] = 99 * USD
    async with on.running():
        with pytest.raises(BudgetExhausted) as refused:
            await on.hold(2 * USD, month)
    assert refused.value.message == (
        "Budget payments/month has too little left: $100.00 limit, $99.00 spent, $0.00 held or "
        "being booked; this "
        "request may cost up to $2.00. A smaller max_tokens needs less. Resets 1 Dec 00:00 UTC. "
        "Ask an admin for: tollgate budget grant payments/month 10.00 --reason …"
    )


async def test_the_last_dollar_can_be_spent() -> None:
    """A slice shrinks with the remainder, so the last request is not refused the rest of a
    budget.
    """
    on = Stage()
    month = on.account(limit_usd=1)
    async with on.running():
        for _ in range(100):
            holds = await on.hold(USD // 100, month)
            on.budget_leases.settle(holds, USD // 100)
            on.leases.write(on.worker, holds[0], USD // 100)
        with pytest.raises(BudgetExhausted):
            await on.hold(USD // 100, month)


async def test_either_all_budgets_are_held_or_no_budget_is() -> None:
    """A request that one budget refuses must not eat from the others."""
    on = Stage()
    team, key = (
        on.account("payments/month"),
        on.account("payments/key:k/day", limit_usd=1, period=BudgetPeriod.DAY),
    )
    async with on.running():
        with pytest.raises(BudgetExhausted, match="payments/key:k/day"):
            await on.hold(2 * USD, key, team)
        held = [budget_lease.held_nusd for budget_lease in on.budget_leases._leases.values()]
        assert held == [0, 0]


async def test_a_soft_budget_refuses_nothing_and_is_named() -> None:
    """It counts spending, so the event must name it."""
    on = Stage()
    soft = on.account(limit_usd=1, kind=BudgetKind.SOFT)
    (hold,) = await on.hold(50 * USD, soft)
    assert (hold.account_id, hold.held_nusd) == (soft.account_id, 0)
    on.budget_leases.settle((hold,), 50 * USD)
    assert on.leases.asked == []
    assert on.budget_leases.remaining_nusd((hold,)) is None


async def test_without_postgres_leased_money_serves_and_then_503_never_402() -> None:
    """The budget may still have room, so the gateway must not claim that it is used up."""
    on = Stage()
    month = on.account(limit_usd=1000)
    async with on.running():
        await on.hold(USD, month)
        on.leases.is_away = True
        for _ in range(7):  # of a slice of eight dollars: at most a hundredth of the limit
            await on.hold(USD, month)
        with pytest.raises(Unavailable, match="has nothing left here"):
            await on.hold(2 * USD, month)
        assert on.budget_leases.away_s is not None
        on.leases.is_away = False
        await soon(lambda: on.budget_leases.away_s is None, "Postgres is back")
        await on.hold(USD, month)


async def test_an_overdraft_is_bounded_and_flagged() -> None:
    """The policy's overdraft for a replica, and not a cent more."""
    on = Stage()
    month = on.account(limit_usd=100, overdraft_usd=3)
    on.leases.is_away = True
    async with on.running():
        holds = [await on.hold(USD, month) for _ in range(3)]
        assert all(hold.is_overdraft for (hold,) in holds)
        with pytest.raises(Unavailable):
            await on.hold(USD, month)
        on.budget_leases.settle(holds[0], USD // 2)
        (half,) = await on.hold(USD // 2, month)
        assert half.is_overdraft


async def test_a_lost_answer_is_neither_taken_nor_given_back_twice() -> None:
    """The same question again, under the same number: else each lost answer would strand a slice,
    or free one twice.
    """
    on = Stage()
    month = on.account()
    on.leases.loses_next_reply = True
    async with on.running():
        with suppress(Unavailable):
            await on.hold(USD, month)
        await soon(
            lambda: on.budget_leases.away_s is None and len(on.leases.asked) >= 2, "the answer"
        )
        first, again = on.leases.asked[:2]
        assert first == again
        holds = await on.hold(USD, month)
        on.budget_leases.settle(holds, 0)
        on.clock.advance(2)
        await soon(lambda: on.leases.leased(month.account_id) == 0, "all of it back")


class Picky(FakeLeases):
    """A Postgres that refuses each ask for one account, and all that are sent with it."""

    def exchange(self, journal_id: UUID, asks: Sequence[SliceAsk]) -> Sequence[SliceGranted]:
        if any(one.account_id == "red/month" for one in asks):
            raise AsksRefused("bigint out of range (22003)")
        return super().exchange(journal_id, asks)


async def test_an_answer_that_is_lost_beside_a_refused_ask_is_asked_for_again() -> None:
    """After a refusal each ask is sent alone. The first one's end forgot the others: a slice whose
    answer was lost stayed leased and unusable until the worker's journal ended.
    """
    on = Stage(leases=Picky())
    red, blue = on.account("red/month"), on.account("blue/month")
    on.leases.loses_next_reply = True
    holding = asyncio.gather(on.hold(USD, red), on.hold(USD, blue), return_exceptions=True)
    await asyncio.sleep(0)  # both wait, so both are in the first exchange
    async with on.running():
        assert [type(end) for end in await holding] == [Unavailable, Unavailable]
        await soon(
            lambda: on.budget_leases.away_s is None and len(on.leases.asked) >= 2, "the answer"
        )
        first, again = on.leases.asked[:2]
        assert [one.account_id for one in first] == ["blue/month"]
        assert first == again
        holds = await on.hold(USD, blue)
        on.budget_leases.settle(holds, 0)
        on.clock.advance(2)
        await soon(lambda: on.leases.leased("blue/month") == 0, "all of it back")


async def test_a_hold_under_a_lost_lease_is_not_free_afterwards() -> None:
    """It was leased under a journal that Postgres has given up and booked: spending it again would
    be twice.
    """
    on = Stage()
    month = on.account()
    async with on.running():
        before = await on.hold(3 * USD, month)
        (budget_lease,) = on.budget_leases._leases.values()
        budget_lease.lose()
        assert budget_lease.free_nusd == 0
        after = await on.hold(USD, month)
        newly_leased_nusd = budget_lease.free_nusd + USD
        on.budget_leases.settle(after, 0)
        on.budget_leases.settle(before, 0)
        assert budget_lease.held_nusd == 0
        assert budget_lease.free_nusd <= newly_leased_nusd
        again = await on.hold(USD, month)
        free_nusd = budget_lease.free_nusd
        on.budget_leases.settle(again, 0)
        assert budget_lease.free_nusd == free_nusd + USD, (
            "what was leased since then goes on as ever"
        )


async def test_idle_money_is_returned_and_held_money_stays() -> None:
    """Another worker may need the money that is unused here."""
    on = Stage()
    month = on.account(limit_usd=1000)
    async with on.running():
        holds = await on.hold(USD, month)
        await soon(lambda: on.leases.leased(month.account_id) > USD, "a slice")
        on.clock.advance(1.7)
        await soon(lambda: on.leases.leased(month.account_id) == USD, "only the hold")
        on.budget_leases.settle(holds, USD // 4)
        await soon(lambda: on.leases.leased(month.account_id) == USD // 4, "what was spent")


async def test_a_lease_ends_by_our_own_clock_until_it_is_renewed() -> None:
    """Postgres is asked before the money is used again, however much is left: the limit may have
    been lowered.
    """
    on = Stage()
    month = on.account(limit_usd=1000)
    async with on.running():
        await on.hold(USD, month)
        on.leases.is_away = True
        on.clock.advance(901)
        with pytest.raises(Unavailable):
            await on.hold(1, month)
        on.leases.is_away = False
        await soon(lambda: on.budget_leases.away_s is None, "Postgres is back")
        assert await on.hold(1, month)


async def test_a_hanging_database_delays_each_request_only_briefly() -> None:
    """Neither an answer nor a broken connection: 503 after 50 ms, at once for those who come
    later.
    """
    on = Stage(wait_s=WAIT_S)
    month = on.account()
    on.leases.admission = threading.Event()
    async with on.running():
        with pytest.raises(Unavailable):
            await on.hold(USD, month)
        on.clock.advance(2)
        assert on.budget_leases.away_s == 2
        with pytest.raises(Unavailable):
            await on.hold(USD, month)
        on.leases.admission.set()
        await soon(lambda: on.budget_leases.away_s is None, "the answer")
        await on.hold(USD, month)


async def test_the_first_request_waits_for_a_busy_postgres() -> None:
    """It waits for the connection too, and no answer has shown yet how long one takes: 3 of 6
    starts on a busy machine refused the first request.
    """
    on = Stage(wait_s=0.001)
    month = on.account()
    on.leases.takes_s = 0.2
    async with on.running():
        assert on.budget_leases._wait_s == MOST_WAIT_S
        assert (await on.hold(USD, month))[0].held_nusd == USD


async def test_what_comes_too_late_for_a_wait_serves_the_next_try() -> None:
    """A Postgres 60 ms away refused each request for ever: its slice went back as idle before the
    caller came again.
    """
    on = Stage(wait_s=WAIT_S)
    month = on.account()
    async with on.running():
        await on.hold(USD, month)
        on.clock.advance(30)
        await soon(lambda: on.leases.leased(month.account_id) == USD, "what was idle")
        on.leases.admission = threading.Event()
        with pytest.raises(Unavailable, match="TOLLGATE_BUDGET_WAIT_S"):
            await on.hold(2 * USD, month)
        on.leases.admission.set()
        await soon(lambda: on.leases.leased(month.account_id) >= 3 * USD, "the late answer")
        on.leases.admission = threading.Event()
        on.clock.advance(1.2)  # as the refusal asks, and a little
        on.budget_leases._wanted.set()
        assert (await on.hold(2 * USD, month))[0].held_nusd == 2 * USD
        on.leases.admission.set()


async def test_a_postgres_far_away_is_waited_for_as_long_as_it_always_takes() -> None:
    """A caller that does not try again would otherwise never be served."""
    on = Stage(wait_s=0.001)
    month = on.account()
    on.leases.takes_s, served = 0.1, False
    async with on.running():
        for _ in range(20):  # a machine stands still at times
            with suppress(Unavailable):
                on.budget_leases.settle(await on.hold(USD, month), 0)
                served = True
            await soon(lambda: on.leases.leased(month.account_id) > 0, "the late answer")
            await soon(lambda: on.budget_leases.silent_s is None, "the end of its ask")
            on.clock.advance(30)
            await soon(lambda: not on.leases.leased(month.account_id), "what was idle")
            if served:
                break
        assert served
        assert 0.2 < on.budget_leases._wait_s <= MOST_WAIT_S


async def test_waiting_requests_share_one_query() -> None:
    """A hundred requests that find an empty lease are one round trip, not a hundred."""
    on = Stage()
    month = on.account(limit_usd=1000)
    async with on.running():
        await asyncio.gather(*[on.hold(USD // 100, month) for _ in range(100)])
        assert len(on.leases.asked) <= 3


async def test_a_disconnected_waiter_leaves_no_need_behind() -> None:
    """Its need is not asked for, and no waiter stays behind."""
    on = Stage()
    month = on.account()
    waiting = asyncio.create_task(on.hold(USD, month))
    await asyncio.sleep(0)
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    assert all(not budget_lease.waiting for budget_lease in on.budget_leases._leases.values())
    assert all(budget_lease.held_nusd == 0 for budget_lease in on.budget_leases._leases.values())


async def test_a_new_period_has_a_purse_of_its_own_and_the_old_one_is_emptied() -> None:
    """A hold belongs to the period it was made in, and the money of the last day is not spent on
    this one.
    """
    on = Stage()
    day = on.account("payments/day", period=BudgetPeriod.DAY)
    async with on.running():
        (before,) = await on.hold(USD, day)
        on.clock.advance(timedelta(days=1).total_seconds())
        await soon(lambda: on.budget_leases.away_s is None, "no question under way that took a day")
        (after,) = await on.hold(USD, day)
        assert after.starts_s - before.starts_s == 24 * 3600
        on.budget_leases.settle((before,), 0)
        old = (on.worker, day.account_id, before.starts_s)
        await soon(lambda: on.leases.outstanding[old] == 0, "the old day's lease back")
        on.budget_leases.settle((after,), 0)
        on.clock.advance(120)
        await soon(lambda: not on.budget_leases._leases, "nothing kept of budgets that nobody uses")


async def test_a_journal_that_was_given_up_takes_its_leases_with_it() -> None:
    """An operator declared this worker gone, so its leases no longer belong to it."""
    on = Stage()
    month = on.account(limit_usd=1000)
    async with on.running():
        holds = await on.hold(USD, month)
        on.leases.is_lost = True
        with pytest.raises((Unavailable, BudgetExhausted)):
            await on.hold(9 * USD, month)
        assert on.budget_leases._leases[holds[0].account_id, holds[0].starts_s].free_nusd == 0


@pytest.mark.parametrize("seed", range(8))
async def test_workers_never_spend_more_than_the_limit_and_leave_little_of_it(seed: int) -> None:
    """Four workers on one budget, with lost answers and outages. None may overrun it, 97 % must be
    usable, and all of it must return at the end.

    A budget counts as used up once Postgres refused every worker. A worker whose answer was lost
    has an unknown slice until it asks again, so the last answers are not lost.
    """
    chance = random.Random(seed)
    leases, clock, limit_nusd = FakeLeases(), FakeClock(), 20 * USD
    stages = [Stage(leases, clock) for _ in range(4)]
    month = stages[0].account(limit_usd=20)
    start_s = month.rule.period_at(clock.now()).starts_s
    refused = dict.fromkeys([on.worker for on in stages], 0)

    async def caller(on: Stage) -> None:
        while min(refused.values()) < 50:
            amount = chance.randint(1, USD // 20)
            try:
                holds = await on.hold(amount, month)
            except Unavailable:
                await asyncio.sleep(0.001)
                continue
            except BudgetExhausted:
                refused[on.worker] += 1
                await asyncio.sleep(0)
                continue
            cost = chance.choice((None, 0, amount // 3, amount))
            await asyncio.sleep(0)
            on.budget_leases.settle(holds, cost)
            leases.write(on.worker, holds[0], amount if cost is None else cost)

    async def weather() -> None:
        while min(refused.values()) < 50:
            clock.advance(chance.random() / 2)
            leases.loses_next_reply = min(refused.values()) < 25 and chance.random() < 0.1
            await asyncio.sleep(0.001)

    async with stages[0].running(), stages[1].running(), stages[2].running(), stages[3].running():
        await asyncio.gather(*[caller(on) for on in stages for _ in range(5)], weather())
        assert limit_nusd * 97 // 100 <= leases.spent[month.account_id, start_s] <= limit_nusd
        clock.advance(5)
        await soon(lambda: leases.leased(month.account_id) == 0, "nothing stranded")


async def test_a_mistake_of_ours_does_not_end_the_asking() -> None:
    """Else every budget would be 503 until somebody restarts the worker."""
    on = Stage()
    month = on.account()
    on.leases.limits.clear()  # the fake fails for an unknown limit
    async with on.running():
        with pytest.raises(Unavailable):
            await on.hold(USD, month)
        on.leases.limits[month.account_id] = 100 * USD
        await soon(lambda: on.budget_leases.away_s is None, "another try")
        assert await on.hold(USD, month)
