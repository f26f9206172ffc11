"""Finding 16: a gateway whose clock was wrong spent another month's budget, and nothing warned."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from gateway.domain.budgets.budgets import Account, BudgetKind
from gateway.domain.budgets.health import clock_check
from gateway.domain.checks import Status
from gateway.domain.ledger.health import state_checks
from gateway.errors import Unavailable
from gateway.services.budgets.leases import BudgetLeases
from gateway.services.ports import BudgetLeaseStore, Clock
from gateway.services.supervisor import Supervisor
from gateway.storage.budgets.budgets import BudgetLeaseTable
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.ledger.state import read_state
from gateway.storage.postgres.database import Database
from tests.fakes import FakeClock, FakeLeases
from tests.storage.budget_books import declare, rows, team_rule
from tests.storage.factories import event
from tests.unit.budgets.test_budget_leases import USD, soon

BUDGET = Account(account_id="payments/month", rule=team_rule(1000 * USD))


class ShiftedClock:
    """A machine's clock that is wrong by a fixed time."""

    def __init__(self, shift: timedelta) -> None:
        self.shift = shift

    def now(self) -> datetime:
        return datetime.now(UTC) + self.shift

    def monotonic(self) -> float:
        return time.monotonic()


@asynccontextmanager
async def running(store: BudgetLeaseStore, clock: Clock) -> AsyncIterator[BudgetLeases]:
    """Run one worker's leases."""
    leases = BudgetLeases(store, clock, worker=uuid4(), lease_s=900, wait_s=5)
    supervisor = Supervisor(clock, on_failure=lambda loop: None)
    supervisor.start({"budgets": leases.run})
    try:
        yield leases
    finally:
        await supervisor.cancel()
        await leases.close()


@pytest.mark.parametrize("shift", [timedelta(days=40), timedelta(days=-300), timedelta(minutes=6)])
async def test_nothing_is_leased_to_a_wrong_clock(database: Database, shift: timedelta) -> None:
    """503, not 402: the budget has room, this replica may not use it. No window of another month
    is opened.
    """
    declare(database, BUDGET.rule)
    table, clock = BudgetLeaseTable(database), ShiftedClock(shift)
    async with running(table, clock) as leases:
        await soon(lambda: leases.clock_skew_s is not None, "Postgres's time")
        with pytest.raises(Unavailable, match="clock"):
            await leases.hold([BUDGET], USD, moment=clock.now())
        skew_s = leases.clock_skew_s
        assert skew_s is not None
        assert abs(skew_s - shift.total_seconds()) < 60
    table.close()
    assert rows(database, "SELECT starts_at FROM tollgate.budget_periods") == []


async def test_a_clock_that_is_right_leases_the_running_month(database: Database) -> None:
    """Otherwise the test above would pass for a worker that never leases."""
    declare(database, BUDGET.rule)
    table, clock = BudgetLeaseTable(database), ShiftedClock(timedelta())
    async with running(table, clock) as leases:
        (hold,) = await leases.hold([BUDGET], USD, moment=clock.now())
    table.close()
    ((starts_at,),) = rows(database, "SELECT date_trunc('month', now(), 'UTC')")
    assert hold.starts_s == int(starts_at.timestamp())


@pytest.mark.parametrize("ahead_s", [-240, 240])
async def test_postgres_says_in_which_month_it_is(ahead_s: int) -> None:
    """Between its own midnight and Postgres's a worker would open the next month early, or go on
    with the old one.
    """
    clock, leases = FakeClock(), FakeLeases(limits={BUDGET.account_id: 1000 * USD})
    midnight = datetime(2026, 12, 1, tzinfo=UTC)
    stated = midnight - timedelta(seconds=ahead_s / 2)
    leases.last_stated = stated
    clock.advance((stated - clock.now()).total_seconds() + ahead_s)
    async with running(leases, clock) as worker:
        await soon(lambda: worker.clock_skew_s is not None, "Postgres's time")
        (hold,) = await worker.hold([BUDGET], USD, moment=clock.now())
    assert hold.starts_s == BUDGET.rule.period_at(stated).starts_s
    assert hold.starts_s != BUDGET.rule.period_at(clock.now()).starts_s


async def test_a_clock_that_jumps_while_serving_leases_no_more() -> None:
    """The leased money is there, but an event of now would carry a time of next month. Soft budgets
    count on, under the month of Postgres.
    """
    clock, leases = FakeClock(), FakeLeases(limits={BUDGET.account_id: 1000 * USD})
    leases.last_stated = clock.now()
    soft = Account(account_id="soft", rule=team_rule(USD, rule_id="soft", kind=BudgetKind.SOFT))
    async with running(leases, clock) as worker:
        (before,) = await worker.hold([BUDGET], USD, moment=clock.now())
        jumped = clock.now() + timedelta(days=40)
        with pytest.raises(Unavailable):
            await worker.hold([BUDGET], USD, moment=jumped)
        (counted,) = await worker.hold([soft], USD, moment=jumped)
    assert counted.starts_s == before.starts_s


async def test_an_idle_worker_asks_for_the_time_again() -> None:
    """Two machines' clocks drift apart: a time that was stated yesterday says nothing of now."""
    clock, leases = FakeClock(), FakeLeases()
    leases.last_stated = clock.now()
    async with running(leases, clock) as worker:
        await soon(lambda: worker.clock_skew_s is not None, "Postgres's time")
        clock.advance(3600)
        leases.last_stated = clock.now() - timedelta(seconds=3)
        await soon(lambda: round(worker.clock_skew_s or 0, 3) == 3, "the new time")


def test_an_event_of_the_future_is_booked_and_found(database: Database) -> None:
    """No usage is lost: it stands in the month of its own time, and readiness and doctor say so."""
    ((now,),) = rows(database, "SELECT now()")
    ledger = Ledger(database)
    assert ledger.write([event(1, at=now + timedelta(days=40)), event(2, at=now)]) == 2
    ledger.close()
    state = read_state(database, partitions_until=now.date())
    assert state.future_events == 1
    (found,) = [check for check in state_checks(state) if check.name == "partitions"]
    assert found.status is Status.WARN
    assert "1 event(s) are dated in the future" in found.finding


@pytest.mark.parametrize(
    ("skew_s", "status", "words"),
    [
        (None, Status.OK, "not stated"),
        (1.9, Status.OK, "1.900 s ahead of"),
        (-2.1, Status.WARN, "2.100 s behind"),
        (301.0, Status.WARN, "nothing is leased"),
        (-3_456_000.0, Status.WARN, "nothing is leased"),
    ],
)
def test_readiness_warns_of_a_wrong_clock(skew_s: float | None, status: Status, words: str) -> None:
    """A warning does not take the replica out of service: teams without a hard budget go on."""
    found = clock_check(skew_s)
    assert (found.name, found.status) == ("clock", status)
    assert words in found.finding
