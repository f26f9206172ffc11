"""An attempt's times are the same in the event, the ledger and finance's view."""

from __future__ import annotations

from sqlalchemy import text

from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests.storage.factories import event

QUERY = "SELECT queue_s, max_gap_s, engine_queue_s, degraded FROM {} ORDER BY request_id"


def test_each_time_is_in_its_own_column(database: Database) -> None:
    """A time in its neighbour's column would stay wrong forever; an unmeasured time is unknown."""
    timed = {"queue_s": 0.5, "max_gap_s": 2.25, "engine_queue_s": 0.125, "degraded": "route:small"}
    Ledger(database).write([event(1, **timed), event(2), event(3, is_demo=True, **timed)])
    found = {}
    with database.begin() as connection:
        for view in ("tollgate.usage_events", "finance.usage_events", "finance.demo_usage_events"):
            found[view] = [tuple(row) for row in connection.execute(text(QUERY.format(view)))]
    of_timed, of_none = (0.5, 2.25, 0.125, "route:small"), (None, None, None, None)
    assert found == {
        "tollgate.usage_events": [of_timed, of_none, of_timed],
        "finance.usage_events": [of_timed, of_none],
        "finance.demo_usage_events": [of_timed],
    }
