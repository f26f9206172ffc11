"""LiteLLM's accounting bugs about the ledger, as tests of ours; its other bugs are in tests/unit.

In LiteLLM the drifting counters (30460) and one process's stale value (34238) concern budgets;
test_budgets_as_litellm tests those. These tests cover the data that both would read: the ledger
alone.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from decimal import Decimal

import pytest

from gateway.reports.reports import open_reports
from gateway.reports.scope import WHOLE_ORGANISATION
from gateway.storage.ledger import rollups
from gateway.storage.ledger.documents import encode_event
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.ledger.state import read_state
from gateway.storage.postgres.database import Database
from tests.storage.factories import NOON, event


@pytest.fixture
def ledger(database: Database) -> Ledger:
    return Ledger(database)


def test_litellm_36426_no_row_is_dropped_silently(database: Database, ledger: Ledger) -> None:
    """A row that the database refuses becomes a visible dead letter, and the other rows are
    still written.
    """
    good = [encode_event(event(number)) for number in range(5)]
    bad = encode_event(event(9)).replace(b'"attempt":1', b'"attempt":1e9')
    written = ledger.write_documents([*good[:2], bad, *good[2:]])
    assert (written.inserted, written.dead, written.inserted + written.dead) == (5, 1, 6)
    assert read_state(database, partitions_until=NOON.date()).dead_letters == 1


def test_litellm_30460_spend_does_not_grow_with_redelivery(
    database: Database, database_url: str, ledger: Ledger
) -> None:
    """A counter beside the rows drifts upwards with each retry; a sum over the rows cannot."""
    batch = [encode_event(event(number)) for number in range(7)]
    for _ in range(4):
        ledger.write_documents(batch)
        rollups.refresh(database)
    opened = open_reports(database_url, scope=WHOLE_ORGANISATION)
    try:
        own = opened.usage_me(team="payments", key_id="k123456789", now=NOON + timedelta(hours=1))
    finally:
        opened.close()
    assert own.team_month.cost_usd == own.key_month.cost_usd == Decimal("0.0042")
    assert rollups.check(database) == ()


def test_litellm_34238_every_replica_reads_the_same_spend(database_url: str) -> None:
    """A value in one process is stale in all others. Here two processes write, and both read
    both writes.
    """
    databases = [Database(database_url) for _ in range(2)]
    try:
        with ThreadPoolExecutor(2) as pool:
            list(
                pool.map(
                    lambda n: Ledger(databases[n]).write([event(10 * n + i) for i in range(3)]),
                    range(2),
                )
            )
        seen = []
        for _ in databases:
            opened = open_reports(database_url, scope=WHOLE_ORGANISATION)
            seen.append(
                opened.usage_me(team="payments", key_id="k123456789", now=NOON).team_month.cost_usd
            )
            opened.close()
    finally:
        for one in databases:
            one.close()
    assert seen == [Decimal("0.0036")] * 2
