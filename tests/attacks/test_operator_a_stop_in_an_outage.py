"""A clean stop while Postgres was away removed the journal: what it had leased was held for a day, then booked as lost.

Found by an attacker who played an operator of a failing system, on 2026-11-23: 1.85 USD that nobody spent, and a month
that could not be closed.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import pytest

from tests.gateway_process import FakeUpstreamProcess, StartGateway
from tests.integration.postgres_gate import PostgresGate
from tests.integration.test_gateway_budgets import account, ask, policy
from tests.waiting import eventually

BUDGET = ", budgets: [{period: month, limit_usd: 10}]"


@pytest.fixture
def gate(database_url: str) -> Iterator[PostgresGate]:
    """A gate in front of this test's database."""
    gate = PostgresGate(database_url)
    yield gate
    gate.close()


def test_the_next_start_gives_back_what_was_leased(
    gate: PostgresGate, start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """Everything is written, so nothing is lost: the budget shows what the events cost."""
    gateway = start_gateway(policy(fake_upstream.url, team=BUDGET), database_url=gate.url)

    def leased() -> Decimal:
        answer = ask(gateway, fake="out=40")
        gateway.events(answer.headers["x-request-id"])
        return Decimal(account(gateway, "payments/month")["leased_usd"])

    eventually(leased, "money at hand, and everything written")
    gate.shut()
    gateway.stop()
    (journal,) = (gateway.home / "journal").glob("*-*")
    gate.open()
    gateway.start()
    eventually(lambda: not journal.exists(), "the journal's end")
    row = account(gateway, "payments/month")
    (events,) = gateway.query("SELECT sum(cost_usd) FROM finance.usage_events")
    assert (row["leased_usd"], row["spent_usd"]) == (0, events["sum"])
