"""Ledger 1.10: the expected cost of an unknown attempt was averaged with attempts that cost
nothing by nature.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import text

from gateway.domain.ledger.usage_event import Outcome
from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from gateway.storage.ledger import rollups
from gateway.storage.ledger.adjustments import expire_holds
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests.storage.factories import event

USD = 1_000_000_000


def test_refusals_do_not_make_an_unknown_attempt_cheap(database: Database) -> None:
    """Nine connections were refused and one answer cost a dollar, so the unknown attempt is
    expected to cost a dollar.
    """
    now = datetime.now(UTC).replace(microsecond=0)
    refused = {
        "outcome": Outcome.UPSTREAM_UNREACHABLE,
        "usage_source": UsageSource.NONE,
        "cost_nusd": 0,
        "lines": (),
    }
    unknown = {
        "outcome": Outcome.CLIENT_GONE,
        "usage": TokenUsage(),
        "usage_source": UsageSource.UNKNOWN,
        "cost_nusd": None,
        "held_nusd": 5 * USD,
        "lines": (),
    }
    Ledger(database).write(
        [
            *(event(number, at=now - timedelta(hours=3), **refused) for number in range(9)),
            event(10, at=now - timedelta(hours=3), cost_nusd=USD),
            event(11, at=now - timedelta(days=2), **unknown),
        ]
    )
    rollups.refresh(database)
    assert expire_holds(database, ttl=timedelta(days=1)) == 1
    with database.begin() as connection:
        booked = connection.execute(
            text("SELECT amount_nusd, reason FROM tollgate.adjustments")
        ).one()
    assert booked.amount_nusd == USD
    assert "average of 1 attempts that served" in booked.reason
