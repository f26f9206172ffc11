"""Reads the figures of the whole ledger's health from Postgres, cheaply enough for every minute;
compares roll-ups only on request.
"""

from __future__ import annotations

from datetime import date, datetime

from sqlalchemy import text

from gateway.domain.ledger.health import LedgerState
from gateway.storage.ledger import rollups
from gateway.storage.postgres import partitions
from gateway.storage.postgres.database import Database

_STATE = """
SELECT (SELECT count(*) FROM tollgate.usage_events_default) AS default_partition_rows,
       (SELECT count(*) FROM tollgate.dead_letters WHERE resolved_at IS NULL) AS dead_letters,
       (SELECT count(*) FROM tollgate.adjustments
        WHERE kind = 'redelivery' AND created_at > now() - interval '7 days') AS conflicting_events,
       (SELECT count(*) FROM tollgate.usage_events AS ahead
        WHERE ahead.occurred_at > now() + interval '5 minutes' AND NOT ahead.is_demo)
         AS future_events,
       count(*) AS attempts_last_hour,
       count(*) FILTER (WHERE event.cost_nusd IS NULL AND booked.settles IS NULL) AS
         unknown_last_hour
FROM tollgate.usage_events AS event
LEFT JOIN tollgate.adjustments AS booked
  ON booked.settles AND booked.request_id = event.request_id AND booked.attempt = event.attempt
WHERE event.occurred_at BETWEEN now() - interval '1 hour' AND now() + interval '1 minute' AND NOT
  event.is_demo
"""


def read_state(
    database: Database, *, partitions_until: date, rollup_since: datetime | None = None
) -> LedgerState:
    """Return the ledger's state. Partitions should reach to the month of `partitions_until`.

    With `rollup_since` the roll-up is compared with all events since then, which reads them all;
    None skips that. Raises `DatabaseUnavailable`.
    """
    missing = partitions.missing(database, until=partitions_until)
    detached = partitions.detached(database)
    with database.begin() as connection:
        found = dict(connection.execute(text(_STATE)).mappings().one())
    differs = None if rollup_since is None else bool(rollups.check(database, since=rollup_since))
    return LedgerState(
        missing_partitions=tuple(missing),
        detached_partitions=tuple(detached),
        has_wrong_rollup=differs,
        **found,
    )
