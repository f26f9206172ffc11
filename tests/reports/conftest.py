"""Open reports on a real, migrated database, and a way to put events into it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gateway.domain.ledger.usage_event import UsageEvent
from gateway.reports.reports import Reports, open_reports
from gateway.reports.scope import WHOLE_ORGANISATION
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database

Write = Callable[..., None]


@pytest.fixture
def write(database: Database) -> Write:
    """Write events as the gateway does."""
    ledger = Ledger(database)

    def written(*events: UsageEvent) -> None:
        assert ledger.write(events) == len(events), "every event of a test must be new"

    return written


@pytest.fixture
def finance(database_url: str) -> Iterator[Reports]:
    """The reports of this test's database."""
    with open_reports(database_url, scope=WHOLE_ORGANISATION) as opened:
        yield opened
