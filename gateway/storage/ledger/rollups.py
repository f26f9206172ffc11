"""Roll-ups: sums of events by hour, and by day for keys and end users.

Disposable: the events are the truth.

How events are summed stands in the migration, once, for the roll-up, for what reports read beside
it, and for `check`.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import text

from gateway.storage.postgres.database import Database

# One transaction's share. An outage or a first start leaves thousands; summed at once they would
# not end in time.
MOST_HOURS, MOST_DAYS = 48, 2

# Only hours that are said to be done. Both sides of one statement see the same moment.
_CHECK = """
WITH clean AS (
    SELECT hour FROM tollgate.spend_rollup WHERE hour >= :since
    UNION SELECT date_trunc('hour', occurred_at, 'UTC') FROM tollgate.usage_events WHERE
      occurred_at >= :since
    EXCEPT SELECT hour FROM tollgate.dirty_hours
), rolled AS (
    SELECT * FROM tollgate.spend_rollup WHERE hour IN (SELECT hour FROM clean)
), summed AS (
    SELECT * FROM tollgate.spend_rollup_of(ARRAY(SELECT hour FROM clean))
)
SELECT DISTINCT hour FROM ((SELECT * FROM rolled EXCEPT ALL SELECT * FROM summed)
                           UNION ALL (SELECT * FROM summed EXCEPT ALL SELECT * FROM rolled)) AS
                             differing
ORDER BY hour
"""


def refresh(database: Database) -> int:
    """Sum up again what has changed; return how many hours that were.

    0 also where another process is at it.

    Raises `DatabaseUnavailable`; what was done until then stays done.
    """
    total = _all(database, "SELECT tollgate.refresh_hours(:most)", MOST_HOURS)
    _all(database, "SELECT tollgate.refresh_days(:most)", MOST_DAYS)
    return total


def check(database: Database, *, since: datetime | None = None) -> tuple[datetime, ...]:
    """Return the hours whose roll-up differs from their events, among those that are said to be
    done.

    Reads every event since `since` (None: all there are). Raises `DatabaseUnavailable`.
    """
    with database.begin() as connection:
        return tuple(connection.execute(text(_CHECK), {"since": since or "-infinity"}).scalars())


def _all(database: Database, statement: str, most: int) -> int:
    total = 0
    while True:
        with database.begin(is_long=True) as connection:
            done = int(connection.execute(text(statement), {"most": most}).scalar_one())
        total += done
        if done < most:
            return total
