"""Times `month close` and `month verify` on a month of many events, and their time per event.

    python -m bench.month_close --home FOLDER [--events 10000000] [--write]

With the folder that `bench.finance --home` kept, its month is closed. In an empty folder Postgres
itself writes the events, in the order of their time, as a gateway writes them: 60 teams, with tags.
The bar is 60 s for 10 million events on two cores. The month is reopened at the end.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import closing
from datetime import UTC, date, datetime
from pathlib import Path
from time import monotonic

from sqlalchemy import text

from bench.stand import machine
from bench.stand.page import write_result
from gateway.storage.ledger import rollups
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.ledger.month_findings import CHECKS
from gateway.storage.ledger.months import MonthStore
from gateway.storage.postgres import migrations, partitions
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.embedded import EmbeddedPostgres
from tests.storage.factories import event

TEMPLATE_MONTH = date(2026, 8, 1)
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
COLUMNS = """
SELECT attname FROM pg_attribute
WHERE attrelid = 'tollgate.usage_events'::regclass AND attnum > 0 AND NOT attisdropped
"""
# Copies of one event, each with its own id, moment, owners and cost.
FILL = """
INSERT INTO tollgate.usage_events ({columns})
SELECT {values}
FROM (
    SELECT n, CAST(substr(hex, 1, 8) || '-' || substr(hex, 9, 4) || '-7' || substr(md5, 1, 3) ||
      '-8' || substr(md5, 4, 3) || '-' || substr(md5, 7, 12) AS uuid) AS id
    FROM generate_series(CAST(:first AS bigint), :last) AS n CROSS JOIN LATERAL (
        SELECT lpad(to_hex(:begin_ms + n * :month_ms / :events), 12, '0') AS hex,
               md5(n::text) AS md5) AS parts
) AS ids CROSS JOIN (SELECT * FROM tollgate.usage_events WHERE occurred_at < '2026-09-01' LIMIT 1)
  AS event
"""


def main() -> int:
    """Close a month, verify it, and print the times; return 1 if the bar is missed."""
    options = argparse.ArgumentParser(
        prog="python -m bench.month_close", description="The close of a month of many events."
    )
    options.add_argument("--home", type=Path, required=True, help="a folder for Postgres")
    options.add_argument("--events", type=int, default=BAR_EVENTS)
    options.add_argument("--write", action="store_true", help="into docs/lab/bench")
    given = options.parse_args()
    given.home.mkdir(parents=True, exist_ok=True)
    given.home.chmod(0o711)  # as root, Postgres runs as another user
    with EmbeddedPostgres(given.home) as server, closing(Database(server.start())) as database:
        migrations.upgrade(database)
        if _largest_month(database) is None:
            fill(database, given.events)
        lines, bar_s = _measured(database)
    facts = {
        "machine": machine.describe(),
        "commit": machine.commit(),
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "command": f"python -m bench.month_close --events {given.events} --write",
        "load average at the end": f"{os.getloadavg()[0]:.1f}",
    }
    lines = [*(f"- {name}: {value}" for name, value in facts.items()), *lines]
    print("\n".join(lines))
    if given.write:
        write_result("month-close", lines)
    return 0 if bar_s <= BAR_S else 1


def _largest_month(database: Database) -> date | None:
    """Return the month with the most events, None without any."""
    with database.begin() as connection:
        found: date | None = connection.execute(
            text(
                "SELECT posted_period FROM tollgate.spend_rollup_by_day GROUP BY 1 "
                "ORDER BY sum(attempts) DESC LIMIT 1"
            )
        ).scalar_one_or_none()
    return found


def _measured(database: Database) -> tuple[list[str], float]:
    """Close, verify and reopen the largest month; return the lines of the page, and the seconds of
    the close for the events of the bar.
    """
    month = _largest_month(database)
    assert month is not None
    store = MonthStore(database)
    accepted = {check.name: "a measurement" for check in CHECKS}
    begun_s = monotonic()
    close = store.close(month, billed=(), accepted=accepted)
    closed_s = monotonic() - begun_s
    begun_s = monotonic()
    verified = store.verify(month)[-1]
    verified_s = monotonic() - begun_s
    assert not verified.differing
    store.reopen(month, reason="a measurement")
    bar_s = closed_s * BAR_EVENTS / close.events
    return [
        f"- {month:%Y-%m}, {close.events:,} events; the bar is {BAR_S:.0f} s for {BAR_EVENTS:,}: "
        + ("met" if bar_s <= BAR_S else "missed"),
        "",
        "| command | took | events a second |",
        "|---|--:|--:|",
        f"| `month close` | {closed_s:.1f} s | {close.events / closed_s:,.0f} |",
        f"| `month verify` | {verified_s:.1f} s | {close.events / verified_s:,.0f} |",
    ], bar_s


def fill(database: Database, events: int, *, batch: int = BATCH) -> None:
    """Write the events of the month in batches, and sum up their hours; they are copies of one."""
    partitions.ensure_months(database, first=TEMPLATE_MONTH, last=MONTH)
    Ledger(database).write([event(1, at=datetime(2026, 8, 1, tzinfo=UTC))])
    accepted = {check.name: "the template" for check in CHECKS}
    MonthStore(database).close(TEMPLATE_MONTH, billed=(), accepted=accepted)
    with database.begin() as connection:
        columns = connection.execute(text(COLUMNS)).scalars().all()
    fill_batch = FILL.format(
        columns=", ".join(columns),
        values=", ".join(OWN.get(name, f"event.{name}") for name in columns),
    )
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
            connection.execute(text(fill_batch), values)
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
    sys.exit(main())
