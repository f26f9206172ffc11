"""A clean stop while Postgres was away removed the journal: its leases were held for a day, then
booked as lost.

Found by an attacker who simulated an operator of a failing system, on 2026-11-23: 1.85 USD of
unspent money, and a month that could not be closed.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import pytest

from tests.gateway_process import FakeUpstreamProcess, StartGateway
from tests.integration.money.test_gateway_budgets import account, ask, policy
from tests.integration.postgres_gate import PostgresGate
from tests.waiting import eventually

BUDGET = ", budgets: [{period: month, limit_usd: 10}]"


@pytest.fixture
def admission(database_url: str) -> Iterator[PostgresGate]:
    """Yield a gate in front of this test's database."""
    admission = PostgresGate(database_url)
    yield admission
    admission.close()


def test_the_next_start_returns_the_leases(
    admission: PostgresGate, start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """Every event is written, so nothing is lost and the budget equals the cost of the events."""
    gateway = start_gateway(policy(fake_upstream.url, team=BUDGET), database_url=admission.url)

    def leased() -> Decimal:
        answer = ask(gateway, fake="out=40")
        gateway.events(answer.headers["x-request-id"])
        return Decimal(account(gateway, "payments/month")["leased_usd"])

    eventually(leased, "money at hand, and everything written")
    admission.shut()
    gateway.stop()
    (journal,) = (gateway.home / "journal").glob("*-*")
    admission.open()
    gateway.start()
    eventually(lambda: not journal.exists(), "the journal's end")
    row = account(gateway, "payments/month")
    (events,) = gateway.query("SELECT sum(cost_usd) FROM finance.usage_events")
    assert (row["leased_usd"], row["spent_usd"]) == (0, events["sum"])
