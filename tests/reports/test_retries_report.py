"""The cost of second attempts and of failed attempts: money that bought no answer."""

from __future__ import annotations

from decimal import Decimal

from gateway.domain.ledger.usage_event import Outcome
from gateway.reports.question import ask
from gateway.reports.reports import Reports
from gateway.storage.ledger import rollups
from gateway.storage.postgres.database import Database
from tests.reports.conftest import Write
from tests.reports.test_report_contents import UNKNOWN
from tests.storage.factories import event

USD = 1_000_000_000


def test_retries_and_failures_are_counted_in_full(
    finance: Reports, write: Write, database: Database
) -> None:
    """A failed second attempt is both; an unknown cost is neither until it is known."""
    cut = Outcome.UPSTREAM_CUT
    write(
        event(1, attempt=1, cost_nusd=4 * USD, lines=(), outcome=cut),
        event(1, attempt=2, cost_nusd=2 * USD, lines=(), outcome=cut),
        event(1, attempt=3, cost_nusd=3 * USD, lines=()),
        event(2, attempt=1, cost_nusd=1 * USD, lines=()),
        event(3, attempt=1, **UNKNOWN),
    )
    for by in ("route", "key"):
        (row,) = finance.run("retries", ask(by=[by])).records()
        assert (row["attempts"], row["retry_attempts"], row["retry_usd"]) == (5, 2, 5)
        assert (row["failed_attempts"], row["failed_usd"]) == (3, 6)
        assert row["wasted_share"] == Decimal("0.6")
        rollups.refresh(database)
    overview = finance.run("overview", ask()).total
    assert (overview["requests"], overview["attempts"]) == (3, 5)


def test_without_a_retry_nothing_was_paid_for_one(finance: Reports, write: Write) -> None:
    """0, because it is known, and no share of a cost of 0."""
    write(event(1, cost_nusd=0, lines=()))
    (row,) = finance.run("retries", ask()).records()
    assert (row["retry_usd"], row["failed_usd"], row["wasted_share"]) == (0, 0, None)
