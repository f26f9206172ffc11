"""Ledger section 2, bullet 4: the month was read before the lock, so a correction in between
counted twice.
"""

from __future__ import annotations

from datetime import date

import pytest
from sqlalchemy import text

from gateway.domain.pricing.price_corrections import Adjustment
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.ledger.repricing import RepriceStore
from gateway.storage.postgres.database import Database
from tests.storage.factories import event

MONTH = date(2026, 11, 1)


@pytest.mark.parametrize("comes_again", [False, True])
def test_a_correction_in_between_stands(database: Database, comes_again: bool) -> None:
    """600,000 are repriced to 500,000. Meanwhile the event comes again with 700,000, which must
    be the final cost.
    """
    ledger, store = Ledger(database), RepriceStore(database)
    ledger.write([event(1)])
    (read,) = store.events(MONTH, route=None, deployment=None)
    correction = Adjustment(event=read, amount_nusd=500_000 - 600_000, reason="repriced")
    if comes_again:
        ledger.write([event(1, cost_nusd=700_000)])
    assert store.post(MONTH, [correction], author="ada") == (not comes_again)
    with database.begin() as connection:
        booked_nusd = connection.execute(
            text(
                "SELECT (SELECT sum(cost_nusd) FROM tollgate.usage_events) + (SELECT "
                "sum(amount_nusd) FROM tollgate.adjustments)"
            )
        ).scalar_one()
    assert booked_nusd == (700_000 if comes_again else 500_000)
