"""The ledger when Postgres fails: no half-done write, no double booking, a clear error, and no
endless wait.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import text

from gateway.domain.ledger.records import Written
from gateway.errors import DatabaseUnavailable
from gateway.storage.ledger.documents import encode_event
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres import migrations
from gateway.storage.postgres.database import Database
from tests.postgres import separate_server
from tests.storage.dropping_proxy import DroppingProxy
from tests.storage.factories import event
from tests.waiting import eventually

BATCH = [encode_event(event(n)) for n in range(200)]
WAITING = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = "
    "'Lock'"
)


@pytest.fixture
def ledger(database: Database) -> Iterator[Ledger]:
    """Yield the ledger of this test's database."""
    ledger = Ledger(database)
    yield ledger
    ledger.close()


@pytest.fixture(scope="module")
def own_server() -> Iterator[str]:
    """Yield the URL of a server that may be stopped and filled without harm to other tests."""
    with separate_server() as url:
        yield url


def booked(database: Database) -> int:
    with database.begin() as connection:
        return int(
            connection.execute(text("SELECT count(*) FROM tollgate.usage_events")).scalar_one()
        )


def writer_pids(database: Database) -> list[int]:
    """Return the backends of all other sessions in this database."""
    with database.begin() as connection:
        others = (
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid "
            "<> pg_backend_pid()"
        )
        return list(connection.execute(text(others)).scalars())


def end_others(connection: psycopg.Connection[Any]) -> None:
    """End every other client's backend of this database, and wait until each is gone. An autovacuum
    worker goes by itself, and only the superuser may end it.
    """
    others = (
        "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND backend_type = 'client backend'"
    )
    connection.execute(f"SELECT pg_terminate_backend(pid) {others}".encode())
    eventually(
        lambda: not connection.execute(f"SELECT pid {others}".encode()).fetchall(),
        "the end of the backends",
    )


# ---- 34: deadlock


def test_a_writer_that_loses_a_deadlock_tries_again(
    database: Database, ledger: Ledger, database_url: str
) -> None:
    """Another session locks the same rows in the other order. Postgres aborts the one that
    waited first, which is our writer.
    """
    ledger.write_documents(BATCH[:2])
    ids = [event(n).request_id for n in (70_000, 70_001)]
    with psycopg.connect(database_url) as stranger, ThreadPoolExecutor(1) as pool:
        stranger.execute("CREATE TEMP TABLE mine AS SELECT * FROM tollgate.usage_events")
        for old, new in zip((event(n).request_id for n in (0, 1)), ids, strict=True):
            stranger.execute(
                "UPDATE mine SET request_id = %s, written_by = pg_current_xact_id() "
                "WHERE request_id = %s",
                (new, old),
            )
        take = "INSERT INTO tollgate.usage_events SELECT * FROM mine WHERE request_id = %s"
        stranger.execute(take, (ids[1],))
        writing = pool.submit(
            ledger.write_documents, [encode_event(event(n)) for n in (70_000, 70_001)]
        )
        eventually(lambda: _rows(database, WAITING), "the writer at the stranger's row")
        stranger.execute(take, (ids[0],))  # returns when Postgres has aborted the writer
        stranger.rollback()
        assert writing.result(timeout=30) == Written(inserted=2)
    thrown_out = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    eventually(lambda: _rows(database, thrown_out)[0][0], "the deadlock in the server's own count")


def _rows(database: Database, statement: str) -> list[Any]:
    with database.begin() as connection:
        return list(connection.execute(text(statement)).all())


# ---- 35: failover, read-only, stale connections


def test_a_read_only_server_takes_nothing_and_everything_later(
    database: Database, ledger: Ledger, database_url: str
) -> None:
    """After a failover the address may point at the standby for a while."""
    ledger.write_documents(BATCH[:10])
    name = sql.Identifier(str(conninfo_to_dict(database_url)["dbname"]))
    switch = sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = {}")
    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute(switch.format(name, sql.SQL("on")))
        end_others(owner)
        for _ in range(2):
            with pytest.raises(DatabaseUnavailable, match="read-only"):
                ledger.write_documents(BATCH)
        owner.execute("SET default_transaction_read_only = off")
        owner.execute(switch.format(name, sql.SQL("off")))
    assert ledger.write_documents(BATCH) == Written(inserted=190, known=10)


def test_a_server_that_was_restarted_since_costs_no_batch(
    database: Database, ledger: Ledger, database_url: str
) -> None:
    """A connection that died while idle is replaced without an error."""
    ledger.write_documents(BATCH[:10])
    with psycopg.connect(database_url, autocommit=True) as owner:
        end_others(owner)
    assert ledger.write_documents(BATCH) == Written(inserted=190, known=10)


def test_a_missing_schema_sets_nothing_aside(empty_database_url: str) -> None:
    """A gateway with the wrong database URL must not empty its journal into dead letters there."""
    empty = Database(empty_database_url)
    with pytest.raises(DatabaseUnavailable, match="tollgate db upgrade"):
        Ledger(empty).write_documents(BATCH)
    empty.close()


@pytest.mark.parametrize("fault", ["XX000", "0A000", "P0001", "53200", "58030"])
def test_an_error_unrelated_to_the_data_sets_nothing_aside(
    database: Database, ledger: Ledger, fault: str
) -> None:
    """A broken index or an extension's error would refuse every document, so no document is at
    fault.
    """
    with database.begin() as connection:
        connection.execute(
            text(
                f"CREATE FUNCTION tollgate.fail() RETURNS trigger LANGUAGE plpgsql AS "
                f"$$ BEGIN RAISE EXCEPTION 'broken' USING ERRCODE = '{fault}'; END $$; "
                f"CREATE TRIGGER fail BEFORE INSERT ON tollgate.usage_events FOR EACH ROW "
                f"EXECUTE FUNCTION tollgate.fail()"
            )
        )
    with pytest.raises(DatabaseUnavailable, match="broken"):
        ledger.write_documents(BATCH[:3])
    with database.begin() as connection:
        connection.execute(text("DROP TRIGGER fail ON tollgate.usage_events"))
        assert (
            connection.execute(text("SELECT count(*) FROM tollgate.dead_letters")).scalar_one() == 0
        )
    assert ledger.write_documents(BATCH[:3]) == Written(inserted=3)


# ---- 36: disk full


def test_a_full_disk_takes_nothing_and_everything_later(own_server: str) -> None:
    """An operator may free space hours later; until then the journal keeps its events."""
    place = Path(tempfile.mkdtemp(prefix="tollgate-full-", dir="/tmp"))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(place)], capture_output=True
    )
    if mounted.returncode != 0:
        place.rmdir()
        pytest.skip(
            "needs root, to mount a file system that is soon full: "
            f"{mounted.stderr.decode().strip()}"
        )
    socket_dir = parse_qs(urlsplit(own_server).query)["host"][0]
    try:
        with psycopg.connect(
            host=socket_dir, user="postgres", dbname="postgres", autocommit=True
        ) as admin:
            data = Path(str(admin.execute("SHOW data_directory").fetchone()[0]))  # type: ignore[index]
            folder = place / "space"
            folder.mkdir()
            os.chown(folder, data.stat().st_uid, data.stat().st_gid)
            admin.execute(sql.SQL("CREATE TABLESPACE small LOCATION {}").format(str(folder)))
            admin.execute("CREATE DATABASE small OWNER tollgate TABLESPACE small")
            full = Database(own_server.replace("/tollgate?", "/small?"))
            migrations.upgrade(full)
            ledger = Ledger(full)
            ledger.write_documents(BATCH[:10])
            filler = place / "filler"
            _fill(filler)
            much = [encode_event(event(n)) for n in range(1000, 3000)]
            for _ in range(2):
                with pytest.raises(DatabaseUnavailable, match="disk of Postgres is full"):
                    ledger.write_documents(much)
            assert booked(full) == 10
            filler.unlink()
            assert ledger.write_documents(much) == Written(inserted=2000)
            ledger.close()
            full.close()
            admin.execute("DROP DATABASE small WITH (FORCE)")
            admin.execute("DROP TABLESPACE small")
    finally:
        subprocess.run(["umount", str(place)], check=True)
        place.rmdir()


def _fill(filler: Path) -> None:
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 10):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                pass


# ---- 37: no connection left


def test_a_server_without_connections_takes_nothing_and_everything_later(
    database: Database, database_url: str
) -> None:
    """Another application's pool may use all connections."""
    name = sql.Identifier(str(conninfo_to_dict(database_url)["dbname"]))
    limit = sql.SQL("ALTER DATABASE {} CONNECTION LIMIT {}")
    ledger = Ledger(database)
    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute(limit.format(name, 0))
        with pytest.raises(DatabaseUnavailable, match="too many connections"):
            ledger.write_documents(BATCH)
        owner.execute(limit.format(name, -1))
    assert ledger.write_documents(BATCH) == Written(inserted=200)
    ledger.close()


# ---- 33 and 38: locks, and a server that says nothing


def test_a_migration_in_the_way_is_waited_for(database: Database, ledger: Ledger) -> None:
    """An upgrade locks the table for a moment while the older release writes."""
    with ThreadPoolExecutor(1) as pool, database.engine.connect() as upgrade:
        upgrade.execute(text("LOCK TABLE tollgate.usage_events IN ACCESS EXCLUSIVE MODE"))
        writing = pool.submit(ledger.write_documents, BATCH)
        eventually(lambda: _rows(database, WAITING), "the writer at the table's lock")
        upgrade.rollback()
        assert writing.result(timeout=30) == Written(inserted=200)


def test_a_server_that_hangs_is_given_up(own_server: str) -> None:
    """Its kernel still acknowledges packets, so no network timeout ends the wait; the ledger's
    own limit must.
    """
    hung = Database(own_server)
    ledger = Ledger(hung, limit_s=1)
    ledger.write_documents(BATCH[:10])
    (pid,) = writer_pids(hung)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(DatabaseUnavailable, match="did not answer in time"):
            ledger.write_documents(BATCH)
    finally:
        os.kill(pid, signal.SIGCONT)
    ledger.close()
    ledger = Ledger(hung)
    assert ledger.write_documents(BATCH) == Written(inserted=190, known=10), "on a new connection"
    ledger.close()
    hung.close()


# ---- 39: the answer to a commit is lost


def test_a_commit_with_a_lost_answer_is_booked_once(database: Database, database_url: str) -> None:
    """The server committed but its answer was lost; the second write must recognise the event."""
    proxy = DroppingProxy(database_url)
    through = Database(proxy.url)
    ledger = Ledger(through)
    try:
        proxy.lose_commit()
        with pytest.raises(DatabaseUnavailable):
            ledger.write_documents(BATCH)
        assert (proxy.lost, booked(database)) == (1, 200)
        assert ledger.write_documents(BATCH) == Written(known=200)
        proxy.lose_commit()
        more = [encode_event(event(n)) for n in range(300, 310)]
        assert ledger.write_documents(more) == Written(known=10), (
            "a connection that was kept: tried again at once"
        )
        assert (proxy.lost, booked(database)) == (2, 210)
    finally:
        ledger.close()
        through.close()
        proxy.close()
