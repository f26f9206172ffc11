"""Usability D6: 503 "the database does not answer" while it did, between two 402 for the same
request.
"""

from __future__ import annotations

import threading
from uuid import uuid4

import pytest

from gateway.domain.budgets.health import allowance_checks
from gateway.domain.checks import Status
from gateway.errors import BudgetExhausted, Unavailable
from gateway.services.budgets.leases import SILENT_AFTER_S, BudgetLeases
from tests.attacks.test_ledger_1_05_a_refused_ask_does_not_block_others import USD, account, asking
from tests.fakes import FakeClock, FakeLeases
from tests.waiting import soon


async def test_the_last_answer_is_repeated_if_the_next_one_is_late() -> None:
    """SDKs try a 503 again, so people saw a hang and then the same 402."""
    red, clock = account("red", limit_nusd=USD), FakeClock()
    leases = FakeLeases(limits={"red/month": USD})
    budget_leases = BudgetLeases(leases, clock, worker=uuid4(), lease_s=900, wait_s=0.05)
    async with asking(budget_leases):
        with pytest.raises(BudgetExhausted):
            await budget_leases.hold([red], 2 * USD, moment=clock.now())
        clock.advance(1)
        leases.admission = threading.Event()  # one second later Postgres takes longer than 50 ms
        with pytest.raises(BudgetExhausted):
            await budget_leases.hold([red], 2 * USD, moment=clock.now())
        leases.admission.set()


async def test_a_late_first_answer_is_reported_as_late() -> None:
    """There is no last word to say again, and the database does answer: only not in time."""
    red, clock = account("red"), FakeClock()
    leases = FakeLeases(limits={"red/month": 100 * USD}, admission=threading.Event())
    budget_leases = BudgetLeases(leases, clock, worker=uuid4(), lease_s=900, wait_s=0.05)
    async with asking(budget_leases):
        with pytest.raises(Unavailable, match="did not answer in time") as slow:
            await budget_leases.hold([red], USD, moment=clock.now())
        assert "does not answer" not in slow.value.message
        assert leases.admission is not None
        leases.admission.set()


async def test_readiness_says_that_budgets_wait_while_requests_are_refused() -> None:
    """Usability D7: `budgets ok: money is leased as it is needed`, while a request with a budget
    got 503.
    """
    red, clock = account("red"), FakeClock()
    leases = FakeLeases(limits={"red/month": 100 * USD}, admission=threading.Event())
    budget_leases = BudgetLeases(leases, clock, worker=uuid4(), lease_s=900, wait_s=0.05)
    async with asking(budget_leases):
        with pytest.raises(Unavailable):
            await budget_leases.hold([red], USD, moment=clock.now())
        clock.advance(SILENT_AFTER_S * 2)
        budgets, _ = allowance_checks(
            budgets_away_s=budget_leases.silent_s, lease_s=900, is_alone=False
        )
        assert (budgets.name, budgets.status) == ("budgets", Status.WARN)
        assert leases.admission is not None
        leases.admission.set()
        await soon(lambda: budget_leases.silent_s is None, "the answer")
        budgets, _ = allowance_checks(
            budgets_away_s=budget_leases.silent_s, lease_s=900, is_alone=False
        )
        assert budgets.status is Status.OK
