"""Refreshes the sums of events by hour, day and month, and finds hours whose sums differ from their
events.

They can be rebuilt at any time: the events are authoritative.

The baseline defines the sums once, for the roll-up, for the live part of reports, and for `check`.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta

from sqlalchemy import text

from gateway.storage.postgres.database import Database

# One transaction's share. An outage or a first start leaves thousands of hours; summed at once they
# would time out. At ten million events a month, 48 hours and two days did so on a busy machine.
MOST_HOURS, MOST_DAYS, MOST_MONTHS = 12, 1, 1

_REFRESH_HOURS = (
    "SELECT tollgate.refresh_hours(:most, CAST(:before AS timestamp) AT TIME ZONE 'UTC')"
)
_REFRESH_DAYS = "SELECT tollgate.refresh_days(:most, CAST(:before AS date))"
# While another process sums up earlier hours or days, the months wait for it: each of its days
# would make them be summed again as a whole.
_REFRESH_MONTHS = """
WITH asked AS (SELECT CAST(:before AS date) AS before, (now() AT TIME ZONE 'UTC')::date AS today)
SELECT CASE
    WHEN EXISTS (SELECT FROM tollgate.dirty_days WHERE day < least(before, today)) THEN 0
    WHEN EXISTS (SELECT FROM tollgate.dirty_hours
                 WHERE hour < least(before, today)::timestamp AT TIME ZONE 'UTC') THEN 0
    ELSE tollgate.refresh_months(:most, before) END
FROM asked
"""
# Only hours that are marked as done. Both sides of one statement see the same snapshot.
_CHECK = """
WITH clean AS (
    SELECT hour FROM tollgate.spend_rollup WHERE hour >= :since AND hour < :until
    UNION SELECT date_trunc('hour', occurred_at, 'UTC') FROM tollgate.usage_events WHERE
      occurred_at >= :since AND occurred_at < :until
    EXCEPT SELECT hour FROM tollgate.dirty_hours
), rolled AS (
    SELECT * FROM tollgate.spend_rollup WHERE hour IN (SELECT hour FROM clean)
), summed AS (
    SELECT * FROM tollgate.spend_rollup_of(ARRAY(SELECT hour FROM clean))
), rolled_busy AS (
    SELECT * FROM tollgate.busy_rollup WHERE hour IN (SELECT hour FROM clean)
), summed_busy AS (
    SELECT * FROM tollgate.busy_rollup_of(ARRAY(SELECT hour FROM clean))
)
SELECT hour FROM (
    SELECT hour FROM ((SELECT * FROM rolled EXCEPT ALL SELECT * FROM summed)
                      UNION ALL (SELECT * FROM summed EXCEPT ALL SELECT * FROM rolled)) AS sums
    UNION
    SELECT hour FROM ((SELECT * FROM rolled_busy EXCEPT ALL SELECT * FROM summed_busy)
                      UNION ALL (SELECT * FROM summed_busy EXCEPT ALL SELECT * FROM rolled_busy))
                        AS busy
) AS differing
ORDER BY hour
"""
_MARK_WRONG = f"INSERT INTO tollgate.dirty_hours (hour) {_CHECK}"
_NEWEST = """
SELECT greatest((SELECT max(occurred_at) FROM tollgate.usage_events),
                (SELECT max(hour) FROM tollgate.spend_rollup))
"""
_DAY = timedelta(days=1)


def refresh(database: Database, *, before: date | None = None) -> int:
    """Sum each changed hour, day and month again, and return the number of hours.

    With `before` only those that end before that day: what comes later is still being written. The
    month of the day waits, because a month is summed as a whole, however little changed. Returns 0
    also if another process is refreshing.

    Raises `DatabaseUnavailable`; hours finished before stay finished.
    """
    until = "infinity" if before is None else before
    total = _run_until_done(database, _REFRESH_HOURS, MOST_HOURS, before=until)
    _run_until_done(database, _REFRESH_DAYS, MOST_DAYS, before=until)
    _run_until_done(database, _REFRESH_MONTHS, MOST_MONTHS, before=until)
    return total


def check(database: Database, *, since: datetime | None = None) -> tuple[datetime, ...]:
    """Return the hours marked as done whose roll-up differs from their events.

    Reads every event since `since` (None: all). Raises `DatabaseUnavailable`.
    """
    asked = {"since": since or "-infinity", "until": "infinity"}
    with database.begin() as connection:
        return tuple(connection.execute(text(_CHECK), asked).scalars())


def sum_wrong_hours_again(database: Database, *, since: datetime) -> int:
    """Mark the hours since then whose roll-up differs from their events; return their number.

    From then on reports read the events of these hours, and the next refresh sums them again.
    Raises `DatabaseUnavailable`; days marked before stay marked.
    """
    with database.begin() as connection:
        newest: datetime | None = connection.execute(text(_NEWEST)).scalar_one()
    marked = 0
    # A day a transaction: a month of ten million events takes longer than a statement may.
    while newest is not None and since <= newest:
        day = {"since": since, "until": since + _DAY}
        with database.begin(is_long=True) as connection:
            marked += connection.execute(text(_MARK_WRONG), day).rowcount
        since += _DAY
    return marked


def _run_until_done(database: Database, statement: str, most: int, *, before: date | str) -> int:
    """Run a statement that handles at most `most` hours, days or months in a transaction, until
    none are left; return their number.
    """
    total = 0
    while True:
        with database.begin(is_long=True) as connection:
            # With Postgres' own 4 MB the groups of busy hours go to disk.
            connection.execute(text("SET LOCAL work_mem = '32MB'"))
            asked = {"most": most, "before": before}
            done = int(connection.execute(text(statement), asked).scalar_one())
        total += done
        if done < most:
            return total
