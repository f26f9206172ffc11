"""The time of `tollgate export … --since WATERMARK` after 1,000 new events, and the price of its
index when events are written.

    python -m bench.incremental_export --home FOLDER [--events 2000000] [--write]

Postgres writes the events of a month in transactions of 1,000, as a gateway does. Then each kind of
index takes its turn, round after round: writing by the ledger's own statements, then an export. The
BRIN index is on the number as a bigint, because Postgres has no BRIN operators for its own type.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from time import monotonic

from sqlalchemy import text

from bench.month_close import MONTH, fill
from bench.stand import machine
from bench.stand.page import write_result
from gateway.reports.exports.focus.columns import FocusVersion
from gateway.reports.exports.focus.focus import focus_export
from gateway.reports.exports.rows import EVENTS
from gateway.reports.question import ask
from gateway.reports.reports import Reports, open_reports
from gateway.reports.scope import WHOLE_ORGANISATION
from gateway.storage.ledger.documents import encode_event
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres import migrations
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.embedded import EmbeddedPostgres
from tests.storage.factories import event

NEW, BATCH, WRITTEN = 1_000, 500, 20_000
BEGIN = datetime(2026, 9, 29, tzinfo=UTC)
DROP = "DROP INDEX IF EXISTS tollgate.usage_events_written_by"
CREATE: Mapping[str, str | None] = {
    "no index": None,
    "b-tree": "CREATE INDEX usage_events_written_by ON tollgate.usage_events (written_by)",
    "BRIN": "CREATE INDEX usage_events_written_by ON tollgate.usage_events USING brin "
    "((CAST(CAST(written_by AS text) AS bigint))) WITH (autosummarize = on)",
}
# The question of `export events`, in the form that each index can answer.
PLANS = {
    "no index": "written_by >= CAST(:oldest AS xid8) AND",
    "b-tree": "written_by >= CAST(:oldest AS xid8) AND",
    "BRIN": "CAST(CAST(written_by AS text) AS bigint) >= CAST(:oldest AS bigint) AND",
}
ASKED = """
EXPLAIN (ANALYZE, BUFFERS, TIMING OFF)
SELECT * FROM finance.usage_events
WHERE {condition} NOT pg_visible_in_snapshot(written_by, CAST(:snapshot AS pg_snapshot))
ORDER BY request_id, attempt
"""
EXPORTS = {
    "events": EVENTS,
    "focus": focus_export(FocusVersion.V1_2, is_billed_elsewhere=False),
}


@dataclass(slots=True)
class Measured:
    """The figures of one kind of index, one a round: events written a second, and the seconds of
    each export. `index_mib` is its size, and `plans` are those of Postgres.
    """

    written_per_s: list[float] = field(default_factory=list)
    exports_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    asked_s: list[float] = field(default_factory=list)
    index_mib: float = 0.0
    plan: str = ""


def main() -> None:
    """Fill a month, measure each kind of index in turn, and print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--home", type=Path, required=True, help="a folder for Postgres")
    options.add_argument("--events", type=int, default=2_000_000)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--write", action="store_true", help="write into docs/lab/bench")
    given = options.parse_args()
    with EmbeddedPostgres(given.home) as server:
        url = server.start()
        database = Database(url)
        _prepare(database, given.events)
        found = {name: Measured() for name in CREATE}
        for number in range(given.rounds):
            for name, measured in found.items():
                _measure(database, url, name, measured, number=number)
                print(name, measured.written_per_s[-1], dict(measured.exports_s), flush=True)
        database.close()
    lines = _lines(found, given.events)
    print("\n".join(lines))
    for name, measured in found.items():
        print(f"\n{name}:\n{measured.plan}")
    if given.write:
        write_result("incremental-export", lines)


def _prepare(database: Database, events: int) -> None:
    """Write the events of a month, if they are not there from an earlier run."""
    migrations.upgrade(database)
    with database.begin() as connection:
        found = connection.execute(text("SELECT count(*) FROM tollgate.usage_events"))
        if found.scalar_one() > events:
            return
    fill(database, events, batch=NEW)
    _run(database, "VACUUM ANALYZE tollgate.usage_events")


def _measure(database: Database, url: str, name: str, measured: Measured, *, number: int) -> None:
    """Give the table this index alone, write events, and export the last ones."""
    _run(database, DROP)
    create = CREATE[name]
    if create is not None:
        _run(database, create)
    ledger = Ledger(database)
    at = BEGIN + timedelta(hours=number, minutes=10 * list(CREATE).index(name))
    documents = [
        encode_event(event(n % 1000, at=at + timedelta(milliseconds=n))) for n in range(WRITTEN)
    ]
    _write(ledger, documents[:NEW])  # connect, and warm the index up
    began_s = monotonic()
    _write(ledger, documents[NEW:])
    measured.written_per_s.append((WRITTEN - NEW) / (monotonic() - began_s))
    with open_reports(url, scope=WHOLE_ORGANISATION) as opened:
        watermark = _export(opened, "events", since=None)[1]
        late = [
            encode_event(event(n, at=at + timedelta(minutes=5, milliseconds=n))) for n in range(NEW)
        ]
        _write(ledger, late)
        ledger.close()
        for kind in EXPORTS:
            began_s = monotonic()
            rows, _ = _export(opened, kind, since=watermark)
            measured.exports_s[kind].append(monotonic() - began_s)
            assert rows == (NEW if kind == "events" else 2), rows
    measured.plan, measured.index_mib = _plan(database, name, watermark.partition("/")[2])


def _write(ledger: Ledger, documents: Sequence[bytes]) -> None:
    """Write documents as a gateway's writer does."""
    for first in range(0, len(documents), BATCH):
        written = ledger.write_documents(documents[first : first + BATCH])
        assert written.inserted == min(BATCH, len(documents) - first)


def _export(opened: Reports, kind: str, *, since: str | None) -> tuple[int, str]:
    """Return the number of rows of an export, and its watermark; without `since` read no row."""
    with opened.export_ledger(EXPORTS[kind], ask(limit=None), since=since or "0") as export:
        rows = 0 if since is None else sum(1 for _ in export.export.rows)
        return rows, export.watermark


def _plan(database: Database, name: str, snapshot: str) -> tuple[str, float]:
    """Return Postgres' plan of an export of events, and the index's size in MiB."""
    values = {"oldest": snapshot.partition(":")[0], "snapshot": snapshot}
    with database.begin() as connection:
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        asked = ASKED.format(condition=PLANS[name])
        plan = "\n".join(connection.execute(text(asked), values).scalars())
        size = connection.execute(
            text(
                "SELECT coalesce(sum(pg_relation_size(indexrelid)), 0) / 1048576.0 FROM "
                "pg_stat_all_indexes WHERE schemaname = 'tollgate' AND relname = :partition AND "
                "indexrelname ~ '(written_by|text_int8|int8)'"
            ),
            {"partition": f"usage_events_{MONTH:%Y_%m}"},
        ).scalar_one()
    return plan, float(size)


def _run(database: Database, statement: str) -> None:
    """Run one statement outside a transaction, without a time limit."""
    with database.engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        connection.execute(text("SET statement_timeout = 0"))
        connection.execute(text(statement))


def _lines(found: Mapping[str, Measured], events: int) -> list[str]:
    """Return the lines of the page: the run's facts and one row a kind of index."""
    facts = {
        "machine": machine.describe(),
        "commit": machine.commit(),
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "command": " ".join(["python -m bench.incremental_export", *sys.argv[1:]]),
        "load average at the end": f"{os.getloadavg()[0]:.1f}",
    }
    plain = median(found["no index"].written_per_s)
    rows = [
        f"| {name} | {median(one.exports_s['events']):.3f} s | {median(one.exports_s['focus']):.3f}"
        f" s | {median(one.written_per_s):,.0f} | {median(one.written_per_s) / plain:.3f} | "
        f"{one.index_mib:.1f} MiB |"
        for name, one in found.items()
    ]
    return [
        *(f"- {name}: {value}" for name, value in facts.items()),
        f"- {events:,} events in a month; {NEW:,} new ones are exported; medians of "
        f"{len(found['no index'].written_per_s)} rounds",
        "",
        "| index | `export events` | `export focus` | events written a second | of those without | "
        "its size |",
        "|---|--:|--:|--:|--:|--:|",
        *rows,
    ]


if __name__ == "__main__":
    main()
