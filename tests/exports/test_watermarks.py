"""Incremental exports on a real Postgres: each row once, whatever was open, crashed or restored."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import psycopg
import pytest

from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from gateway.errors import BadUsage, NothingFound
from gateway.reports.exports.export import ExportKind
from gateway.reports.exports.rows import ADJUSTMENTS, EVENTS
from gateway.reports.question import ask
from gateway.reports.reports import open_reports
from gateway.reports.scope import WHOLE_ORGANISATION
from gateway.storage.ledger.adjustments import expire_holds
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres import migrations
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.embedded import EmbeddedPostgres
from tests.postgres import home_of_server
from tests.storage.factories import event

EVERY = ask(limit=None)


@dataclass(slots=True)
class Warehouse:
    """A warehouse that loads one export after another, each from the last one's watermark."""

    url: str
    kind: ExportKind = EVENTS
    since: str = "0"
    keys: list[str] = field(default_factory=list)

    def load(self) -> list[str]:
        """Load the new rows, and return their keys."""
        with (
            open_reports(self.url, scope=WHOLE_ORGANISATION) as opened,
            opened.export_ledger(self.kind, EVERY, since=self.since) as export,
        ):
            new = [str(row[0]) for row in export.export.rows]
            self.since = export.watermark
        self.keys += new
        return new


def insert(connection: psycopg.Connection[Any], number: int) -> str:
    """Write one event in a transaction that stays open, as a copy of an event that is there."""
    made = event(number)
    connection.execute(
        "INSERT INTO tollgate.usage_events SELECT (jsonb_populate_record(event, "
        "jsonb_build_object('request_id', %s::text, 'written_by', pg_current_xact_id()))).* "
        "FROM tollgate.usage_events AS event WHERE request_id = %s",
        (str(made.request_id), event(0).request_id),
    )
    return str(made.request_id)


def all_ids(url: str) -> list[str]:
    """Return every event's id."""
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT request_id FROM tollgate.usage_events").fetchall()
    return sorted(str(row[0]) for row in rows)


def test_a_slow_transaction_is_neither_missed_nor_repeated(
    database: Database, database_url: str
) -> None:
    """It writes before an export and commits after it: by the time of writing it would be lost."""
    Ledger(database).write([event(0)])
    warehouse = Warehouse(database_url)
    with psycopg.connect(database_url) as slow, psycopg.connect(database_url) as quick:
        late = insert(slow, 1)
        early = insert(quick, 2)
        quick.commit()
        assert warehouse.load() == [str(event(0).request_id), early]
        assert warehouse.load() == []
        slow.commit()
        assert warehouse.load() == [late]
    assert sorted(warehouse.keys) == all_ids(database_url)


@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_transactions_gives_each_row_once(
    database: Database, database_url: str, seed: int
) -> None:
    """Several writers begin, write, commit, give up and use savepoints between the exports."""
    random, number = Random(seed), 0
    Ledger(database).write([event(0)])
    warehouse = Warehouse(database_url)
    writers = [psycopg.connect(database_url) for _ in range(4)]
    for _ in range(60):
        writer = random.choice(writers)
        match random.randrange(6):
            case 0 | 1:
                insert(writer, number := number + 1)
            case 2:
                with writer.transaction():  # a savepoint, if a transaction is open
                    insert(writer, number := number + 1)
            case 3:
                writer.commit()
            case 4:
                writer.rollback()
            case _:
                warehouse.load()
    for writer in writers:
        writer.commit()
        writer.close()
    warehouse.load()
    assert warehouse.load() == []
    assert sorted(warehouse.keys) == all_ids(database_url)
    assert len(warehouse.keys) > 10


def test_settled_events_come_as_adjustments(database: Database, database_url: str) -> None:
    """An event never changes, so its settlement is a new row of another export."""
    unknown = event(
        1,
        cost_nusd=None,
        lines=(),
        held_nusd=500,
        usage_source=UsageSource.UNKNOWN,
        usage=TokenUsage(),
    )
    Ledger(database).write([event(0), unknown])
    events, adjustments = Warehouse(database_url), Warehouse(database_url, ADJUSTMENTS)
    assert len(events.load()) == 2
    assert adjustments.load() == []
    with psycopg.connect(database_url) as slow:
        insert(slow, 2)
        assert expire_holds(database, ttl=timedelta(0)) == 1
        assert len(adjustments.load()) == 1
        assert events.load() == []
    assert len(events.load()) == 1
    assert adjustments.load() == []


def test_a_row_moved_to_its_month_is_not_repeated(database: Database, database_url: str) -> None:
    """A partition that is made late takes its rows from the default one: they are the same rows."""
    Ledger(database).write([event(0, at=datetime(2025, 3, 5, tzinfo=UTC))])
    warehouse = Warehouse(database_url)
    assert len(warehouse.load()) == 1
    with psycopg.connect(database_url) as connection:
        made = connection.execute("SELECT tollgate.ensure_month('2025-03-01')").fetchone()
    assert made == ("usage_events_2025_03",)
    assert warehouse.load() == []


def test_a_watermark_of_another_database_is_refused(database_url: str) -> None:
    """A copy may lack rows that were exported from the first one."""
    warehouse = Warehouse(database_url)
    warehouse.load()
    server, own = warehouse.since.split("-", 1)
    warehouse.since = f"{int(server) + 1}-{own}"
    with pytest.raises(NothingFound, match="--since 0"):
        warehouse.load()
    warehouse.since = "yesterday"
    with pytest.raises(BadUsage, match="not a watermark"):
        warehouse.load()


def test_what_an_export_saw_is_on_disk(database: Database, database_url: str) -> None:
    """After a crash Postgres gives numbers again that were not on disk, also of aborted work."""
    Ledger(database).write([event(0)])
    with psycopg.connect(database_url) as aborted:
        insert(aborted, 1)
        aborted.rollback()
        begun = aborted.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
        Warehouse(database_url).load()
        on_disk = aborted.execute(
            "SELECT pg_current_wal_flush_lsn() >= %s::pg_lsn", begun
        ).fetchone()
    assert on_disk == (True,)


def test_a_restart_and_a_crash_lose_no_row() -> None:
    """A transaction that was open is gone, and its number is not taken for an exported one."""
    with home_of_server() as home:
        with EmbeddedPostgres(home) as server:
            url = server.start()
            first = Database(url)
            migrations.upgrade(first)
            Ledger(first).write([event(0)])
            first.close()
            warehouse = Warehouse(url)
            slow = psycopg.connect(url)
            insert(slow, 1)
            assert len(warehouse.load()) == 1
            slow.close()
        with EmbeddedPostgres(home) as server:
            warehouse.url = server.start()
            with psycopg.connect(warehouse.url) as open_at_the_crash:
                insert(open_at_the_crash, 2)
                with psycopg.connect(warehouse.url) as quick:
                    insert(quick, 3)
                assert len(warehouse.load()) == 1
                postmaster = int((home / "pg/data/postmaster.pid").read_text().split()[0])
                os.kill(postmaster, signal.SIGQUIT)  # ends at once, without a checkpoint
                with pytest.raises(psycopg.OperationalError):
                    insert(open_at_the_crash, 4)
                open_at_the_crash.close()
        with EmbeddedPostgres(home) as server:
            warehouse.url = server.start()
            with psycopg.connect(warehouse.url) as after:
                insert(after, 5)
            assert len(warehouse.load()) == 1
            assert sorted(warehouse.keys) == all_ids(warehouse.url)


def test_a_ledger_restored_on_another_server_is_adopted(
    database: Database, database_url: str
) -> None:
    """Its rows carry numbers that the other server gave; here they may be given a second time."""
    Ledger(database).write([event(0)])
    with psycopg.connect(database_url) as restored:  # as from a dump of another server
        restored.execute("ALTER TABLE tollgate.usage_events DISABLE TRIGGER rows_never_change")
        restored.execute("UPDATE tollgate.usage_events SET written_by = '123456789012'")
        restored.execute("ALTER TABLE tollgate.usage_events ENABLE TRIGGER rows_never_change")
        restored.execute("UPDATE tollgate.ledger_server SET system_identifier = 1")
    warehouse = Warehouse(database_url)
    with pytest.raises(NothingFound, match="tollgate db upgrade"):
        warehouse.load()
    migrations.upgrade(database)
    assert len(warehouse.load()) == 1
    assert warehouse.load() == []
    Ledger(database).write([event(1)])
    assert len(warehouse.load()) == 1
    migrations.upgrade(database)  # not adopted twice
    assert warehouse.load() == []
