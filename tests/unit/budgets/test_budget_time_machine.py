"""Workers' leases through days, months and changed clocks: a state machine over real leases and a
fake Postgres.

Two workers hold, settle, write, idle, die and are adopted; grants come and end, limits fall and
rise, and time passes, across the hours that Berlin, New York and Lord Howe skip or repeat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gateway.domain.budgets.budgets import Account, BudgetPeriod, BudgetRule, BudgetScope, Hold
from gateway.errors import BudgetExhausted, Unavailable
from gateway.services.budgets.leases import BudgetLeases
from tests.fakes import FakeClock, FakeLeases

T = TypeVar("T")
LIMIT = 1000
# Around a month's end in winter, the nights when clocks change, and New Year.
STARTS = [
    datetime(2026, 1, 31, 22, 50, tzinfo=UTC),
    datetime(2026, 3, 28, 23, 30, tzinfo=UTC),
    datetime(2026, 10, 24, 22, 30, tzinfo=UTC),
    datetime(2026, 10, 31, 22, 30, tzinfo=UTC),
    datetime(2026, 3, 8, 6, 30, tzinfo=UTC),
    datetime(2026, 4, 4, 14, 45, tzinfo=UTC),
    datetime(2026, 12, 31, 22, 59, tzinfo=UTC),
]
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]


class Grants(FakeLeases):
    """With grants, each for one period."""

    def __init__(self) -> None:
        super().__init__()
        self.granted: dict[tuple[str, int], int] = {}

    def limit_of(self, place: tuple[str, int]) -> int:
        return self.limits[place[0]] + self.granted.get(place, 0)


@dataclass
class Worker:
    """Leases, attempts in flight and unwritten events. Its journal outlives it."""

    budget_leases: BudgetLeases
    journal: UUID
    held: list[tuple[tuple[Hold, ...], datetime]] = field(default_factory=list)
    settled: list[tuple[tuple[Hold, ...], int]] = field(default_factory=list)


class TimeMachine(RuleBasedStateMachine):
    """`leases` keeps its own books and asserts at each grant that nothing is above the limit then
    in force.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock, self.leases = FakeClock(), Grants()

    @initialize(start=st.sampled_from(STARTS), zone=st.sampled_from(ZONES))
    def begin(self, start: datetime, zone: str) -> None:
        self.clock.advance((start - self.clock.now()).total_seconds())
        self.accounts = tuple(
            Account(
                account_id=f"team/{period}",
                rule=BudgetRule(
                    rule_id=f"team/{period}",
                    scope=BudgetScope.TEAM,
                    team="team",
                    owner="team",
                    period=period,
                    limit_nusd=LIMIT,
                    time_zone=zone,
                ),
            )
            for period in sorted(BudgetPeriod)
        )
        self.leases.limits = {account.account_id: LIMIT for account in self.accounts}
        self.workers = [self._worker(), self._worker()]

    @rule(worker=st.integers(0, 1), amount=st.integers(1, 400))
    def hold(self, worker: int, amount: int) -> None:
        on, moment = self.workers[worker], self.clock.now()
        try:
            holds = self._run(on, on.budget_leases.hold(self.accounts, amount, moment=moment))
        except (BudgetExhausted, Unavailable):
            return
        on.held.append((holds, moment))
        for hold, account in zip(holds, self.accounts, strict=True):
            assert hold.held_nusd == amount
            self._is_of_the_period(hold, account, moment)

    @rule(worker=st.integers(0, 1), share=st.sampled_from([None, 0, 1, 3, 4, 6]))
    def settle(self, worker: int, share: int | None) -> None:
        on = self.workers[worker]
        if on.held:
            holds, _ = on.held.pop(0)
            cost = None if share is None else holds[0].held_nusd * share // 4
            on.budget_leases.settle(holds, cost)
            on.settled.append((holds, holds[0].held_nusd if cost is None else cost))

    @rule(worker=st.integers(0, 1))
    def write(self, worker: int) -> None:
        on = self.workers[worker]
        for holds, cost in on.settled:
            for hold in holds:
                self.leases.write(on.journal, hold, cost)
        on.settled.clear()

    @rule(worker=st.integers(0, 1))
    def exchange(self, worker: int) -> None:
        self.loop.run_until_complete(self.workers[worker].budget_leases.exchange())

    @rule(seconds=st.sampled_from([0.3, 1.1, 60, 900, 3600, 12 * 3600, 24 * 3600]))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def lose_the_next_answer(self) -> None:
        self.leases.loses_next_reply = True

    @rule(worker=st.integers(0, 1))
    def die_and_be_adopted(self, worker: int) -> None:
        """Attempts in flight become unknown at their hold; leased money returns."""
        on = self.workers[worker]
        on.settled += [(holds, holds[0].held_nusd) for holds, _ in on.held]
        self.write(worker)
        for key in [key for key in self.leases.outstanding if key[0] == on.journal]:
            del self.leases.outstanding[key]
        self.workers[worker] = self._worker()

    @rule(account=st.integers(0, 4), amount=st.integers(0, 500))
    def grant(self, account: int, amount: int) -> None:
        chosen = self.accounts[account]
        place = (chosen.account_id, chosen.rule.period_at(self.clock.now()).starts_s)
        self.leases.granted[place] = amount

    @rule(account=st.integers(0, 4), limit=st.integers(0, 2000))
    def change_the_limit(self, account: int, limit: int) -> None:
        self.leases.limits[self.accounts[account].account_id] = limit

    @invariant()
    def no_worker_has_more_than_it_leased(self) -> None:
        """free + held + settled ≤ outstanding, of each account and period."""
        for on in getattr(self, "workers", ()):
            had: dict[tuple[str, int], int] = {}
            for key, budget_lease in on.budget_leases._leases.items():
                assert budget_lease.free_nusd >= 0
                had[key] = budget_lease.free_nusd + budget_lease.held_nusd
            for holds, cost in on.settled:
                for hold in holds:
                    key = (hold.account_id, hold.starts_s)
                    had[key] = had.get(key, 0) + min(cost, hold.held_nusd)
            for key, nusd in had.items():
                assert nusd <= self.leases.outstanding.get((on.journal, *key), 0)

    def teardown(self) -> None:
        for on in getattr(self, "workers", ()):
            self.loop.run_until_complete(on.budget_leases.close())
        self.loop.close()

    def _worker(self) -> Worker:
        journal = uuid4()
        return Worker(BudgetLeases(self.leases, self.clock, worker=journal, lease_s=900), journal)

    def _run(self, on: Worker, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` together with the steps of the worker's own loop."""

        async def beside() -> T:
            task = asyncio.ensure_future(work)
            while not task.done():
                await asyncio.sleep(0)
                if not task.done():
                    await on.budget_leases.exchange()
            return await task

        return self.loop.run_until_complete(beside())

    def _is_of_the_period(self, hold: Hold, account: Account, moment: datetime) -> None:
        """By the wall clock alone, without the arithmetic under test."""
        zone = ZoneInfo(account.rule.time_zone)
        begun = datetime.fromtimestamp(hold.starts_s, UTC).astimezone(zone)
        local = moment.astimezone(zone)
        assert begun <= local or account.rule.period is BudgetPeriod.ONCE
        match account.rule.period:
            case BudgetPeriod.HOUR:
                assert moment - begun < timedelta(hours=1)
                assert (begun.date(), begun.hour) == (local.date(), local.hour)
            case BudgetPeriod.DAY:
                assert begun.date() == local.date()
                assert (begun.hour, begun.minute) == (0, 0)
            case BudgetPeriod.WEEK:
                assert begun.isocalendar()[:2] == local.isocalendar()[:2]
                assert (begun.weekday(), begun.hour) == (0, 0)
            case BudgetPeriod.MONTH:
                assert (begun.year, begun.month, begun.day, begun.hour) == (
                    local.year,
                    local.month,
                    1,
                    0,
                )
            case BudgetPeriod.ONCE:
                assert hold.starts_s == 0


TestTimeMachine = TimeMachine.TestCase
TestTimeMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
