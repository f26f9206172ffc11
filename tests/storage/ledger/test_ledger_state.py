"""The ledger's state, as the gateway's role may read it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from gateway.domain.calendar_months import last_partitioned_month, next_month
from gateway.domain.ledger.health import LedgerState
from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.ledger.state import read_state
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.partitions import ensure_months
from tests.storage.factories import event, request_id

UNKNOWN: dict[str, Any] = {
    "usage": TokenUsage(),
    "usage_source": UsageSource.UNKNOWN,
    "lines": (),
    "cost_nusd": None,
    "held_nusd": 7,
}


def test_the_gateway_may_read_how_the_ledger_is(database_url: str) -> None:
    """Readiness and metrics read it every minute. A resolved attempt no longer counts as
    unknown.
    """
    now = datetime.now(UTC)
    old, ahead = now - timedelta(minutes=61), now + timedelta(days=900)
    last = last_partitioned_month(now.date())
    beyond = next_month(last)
    owner = Database(database_url)
    ensure_months(owner, first=old.date(), last=last)  # a month may have begun since the migration
    owner.close()
    database = Database(database_url, role="tollgate_gateway")
    try:
        Ledger(database).write(
            [
                event(1, at=now),
                event(2, at=now, **UNKNOWN),
                event(3, at=now, **UNKNOWN),
                event(4, at=now, is_demo=True, **UNKNOWN),
                event(5, at=old, **UNKNOWN),
                event(6, at=ahead, **UNKNOWN),
            ]
        )
        with psycopg.connect(database_url) as connection:
            connection.execute(
                "INSERT INTO tollgate.adjustments (adjustment_id, request_id, attempt, team, "
                "cost_centre, posted_period, occurred_at, amount_nusd, kind, reason, author, "
                "settles) VALUES (gen_random_uuid(), %s, 1, 't', 'c', '2026-11-01', now(), 1, "
                "'resolution', 'known now', 'x', true)",
                (request_id(3, now),),
            )
        found = read_state(database, partitions_until=beyond)
    finally:
        database.close()
    assert found == LedgerState(
        missing_partitions=(f"usage_events_{beyond:%Y_%m}",),
        default_partition_rows=1,
        dead_letters=0,
        conflicting_events=0,
        attempts_last_hour=3,
        unknown_last_hour=1,
        has_wrong_rollup=None,
        future_events=1,
    )
