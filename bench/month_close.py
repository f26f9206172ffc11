"""Times `month close` and `month verify` on a month of many events, and their time per event.

    python -m bench.month_close --home FOLDER --events 10000000

The events are written by Postgres itself, in the order of their time, as a gateway writes them: 60
teams, with tags. The bar is 60 s for 10 million events on two cores. Prints the machine's figures
beside it.
"""

from __future__ import annotations

import argparse
from datetime import UTC, date, datetime
from pathlib import Path
from time import monotonic

from sqlalchemy import text

from bench.stand.machine import describe
from gateway.storage.ledger import rollups
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.ledger.months import MonthStore
from gateway.storage.postgres import migrations, partitions
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.embedded import EmbeddedPostgres
from gateway.storage.postgres.schema.ledger import usage_events
from tests.storage.factories import event

MONTH, BEGIN_MS, MONTH_MS = date(2026, 9, 1), 1_788_220_800_000, 30 * 86_400_000
BAR_S, BAR_EVENTS = 60.0, 10_000_000
BATCH = 250_000
OWN = {
    "request_id": "id",
    "occurred_at": "tollgate.uuid7_time(id)",
    "team": "'team-' || n % 60",
    "key_id": "'k' || n % 600",
    "end_user": "'u' || n % 5000",
    "cost_nusd": "n % 1000000",
    "posted_period": "CAST('2026-09-01' AS date)",
    "written_by": "pg_current_xact_id()",
}
COLUMNS = [column.name for column in usage_events.columns]
# Copies of one event, each with its own id, moment, owners and cost.
FILL = f"""
INSERT INTO tollgate.usage_events ({", ".join(COLUMNS)})
SELECT {", ".join(OWN.get(name, f"event.{name}") for name in COLUMNS)}
FROM (
    SELECT n, CAST(substr(hex, 1, 8) || '-' || substr(hex, 9, 4) || '-7' || substr(md5, 1, 3) ||
      '-8' || substr(md5, 4, 3) || '-' || substr(md5, 7, 12) AS uuid) AS id
    FROM generate_series(CAST(:first AS bigint), :last) AS n CROSS JOIN LATERAL (
        SELECT lpad(to_hex(:begin_ms + n * :month_ms / :events), 12, '0') AS hex,
               md5(n::text) AS md5) AS parts
) AS ids CROSS JOIN (SELECT * FROM tollgate.usage_events WHERE occurred_at < '2026-09-01' LIMIT 1)
  AS event
"""


def main() -> None:
    """Fill a month, close it, verify it, and print the times."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--home", type=Path, required=True, help="an empty folder for Postgres")
    options.add_argument("--events", type=int, default=BAR_EVENTS)
    given = options.parse_args()
    with EmbeddedPostgres(given.home) as server:
        database = Database(server.start())
        migrations.upgrade(database)
        partitions.ensure_months(database, first=MONTH, last=MONTH)
        Ledger(database).write([event(1, at=datetime(2026, 8, 1, tzinfo=UTC))])
        fill(database, given.events)
        months = MonthStore(database)
        accepted = {
            "unpartitioned-events": "the template",
            "unreconciled-providers": "no bill",
            "dirty-hours": "not summed",
        }
        months.close(date(2026, 8, 1), billed=(), accepted=accepted)
        begun_s = monotonic()
        close = months.close(MONTH, billed=(), accepted=accepted)
        closed_s = monotonic() - begun_s
        begun_s = monotonic()
        (verified,) = months.verify(MONTH)
        verified_s = monotonic() - begun_s
        assert close.events == given.events
        assert not verified.differing
        database.close()
    bar_s = closed_s * BAR_EVENTS / given.events
    print(describe())
    print(f"close  {closed_s:7.1f} s for {given.events:,} events; {bar_s:.1f} s for 10 million")
    print(f"verify {verified_s:7.1f} s")
    print("the bar of 60 s is " + ("met" if bar_s <= BAR_S else "missed"))


def fill(database: Database, events: int, *, batch: int = BATCH) -> None:
    """Write the events of the month, a batch in each transaction, and sum up their hours."""
    for first in range(0, events, batch):
        values = {
            "first": first,
            "last": min(first + batch, events) - 1,
            "events": events,
            "begin_ms": BEGIN_MS,
            "month_ms": MONTH_MS,
        }
        with database.begin() as connection:
            connection.execute(text("SET LOCAL statement_timeout = 0"))
            connection.execute(text(FILL), values)
        if (values["last"] + 1) % BATCH == 0 or values["last"] + 1 == events:
            print(f"{values['last'] + 1:,} events written", flush=True)
    with database.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO tollgate.dirty_hours (hour) SELECT generate_series(CAST('2026-09-01 "
                "00:00+00' AS timestamptz), '2026-09-30 23:00+00', interval '1 hour')"
            )
        )
        connection.execute(text("ANALYZE tollgate.usage_events"))
    rollups.refresh(database)


if __name__ == "__main__":
    main()
