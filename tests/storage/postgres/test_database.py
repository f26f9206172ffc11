"""Connections: an operator's error messages, and notifications of changes."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from time import monotonic

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from gateway.errors import BadUsage, DatabaseUnavailable
from gateway.storage.policy.keys import KeyStore
from gateway.storage.policy.policies import PolicyStore
from gateway.storage.postgres.change_notifications import ChangeFeed
from gateway.storage.postgres.database import Database, within
from gateway.storage.postgres.sessions import Sessions
from tests.storage.factories import key


def test_a_transaction_is_all_or_nothing(database: Database) -> None:
    """One port call is one transaction."""
    both = text("INSERT INTO tollgate.peppers (pepper_id) VALUES (:pepper_id)")
    with pytest.raises(IntegrityError), database.begin() as connection:
        connection.execute(both, [{"pepper_id": "a"}, {"pepper_id": "a"}])
    with database.begin() as connection:
        assert connection.execute(text("SELECT count(*) FROM tollgate.peppers")).scalar_one() == 0


def test_no_statement_is_compiled(database: Database) -> None:
    """A server that compiles takes 400 times as long to sum up hours: `demo-data --small` took ten
    minutes. The embedded one cannot compile, so the setting is what is tested.
    """
    with database.begin() as connection:
        assert connection.execute(text("SHOW jit")).scalar_one() == "off"


def test_an_unreachable_server_is_reported_without_the_password(tmp_path: Path) -> None:
    """The message is printed in logs and terminals."""
    database = Database(f"postgresql+psycopg://me:hunter2@/tollgate?host={tmp_path}")
    with pytest.raises(
        DatabaseUnavailable, match=r"cannot be reached at .*TOLLGATE_DATABASE_URL"
    ) as refused:
        database.begin().__enter__()
    assert "hunter2" not in str(refused.value)


def test_a_server_that_is_away_leaves_nothing_to_the_collector(tmp_path: Path) -> None:
    """Each try makes a connection with buffers. Left in reference cycles, they used 5 MiB for
    each minute of an outage.
    """
    database = Database(f"postgresql:///tollgate?host={tmp_path}", role="tollgate_gateway")

    def try_all() -> None:
        with pytest.raises(DatabaseUnavailable), database.begin():
            pass
        with pytest.raises(DatabaseUnavailable):
            ChangeFeed(database).wait(1)
        with pytest.raises(DatabaseUnavailable):
            Sessions(database, prepare="SELECT", limit_s=20).transact(lambda connection: None)

    try_all()  # run once before, because cached objects are not garbage
    gc.collect()
    gc.disable()
    try:
        try_all()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = [
            thing for thing in gc.garbage if isinstance(thing, (BaseException, psycopg.pq.PGconn))
        ]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert left == []


@pytest.mark.parametrize(
    "url", ["", "localhost", "mysql://u:hunter2@h/d", "postgresql://u:hunter2@h:port/d?x=y"]
)
def test_an_invalid_url_is_refused_without_repeating_it(url: str) -> None:
    """A wrong URL usually contains a valid password."""
    with pytest.raises(BadUsage) as refused:
        Database(url)
    assert "hunter2" not in str(refused.value)


def test_a_role_the_login_may_not_take_names_the_grant(database_url: str) -> None:
    """Without the name, an operator may search an hour for a missing server instead of a missing
    grant.
    """
    database = Database(database_url, role="pg_execute_server_program")
    with pytest.raises(
        DatabaseUnavailable, match=r"tollgate db upgrade.*GRANT pg_execute_server_program TO"
    ):
        database.begin().__enter__()


def test_a_read_only_server_is_named_as_such(database: Database) -> None:
    """After a failover the URL may still point at the old primary."""
    with pytest.raises(DatabaseUnavailable, match="read-only"), database.begin() as connection:
        connection.execute(text("SET TRANSACTION READ ONLY; DELETE FROM tollgate.peppers"))


def test_a_lost_connection_is_replaced(database: Database) -> None:
    """A restart of Postgres must not require a restart of the gateway."""
    with pytest.raises(DatabaseUnavailable), database.begin() as connection:
        connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
    with database.begin() as connection:
        assert connection.execute(text("SELECT 1")).scalar_one() == 1


def test_sessions_are_bounded_and_in_utc(database: Database) -> None:
    """A statement without a time limit holds its locks until an operator ends it."""
    with database.begin() as connection:
        row = connection.execute(
            text(
                "SELECT current_setting('statement_timeout'), current_setting('lock_timeout'), "
                "current_setting('timezone'), current_setting('application_name')"
            )
        ).one()
    assert tuple(row) == ("30s", "5s", "UTC", "tollgate")


def test_a_change_is_notified_at_once(database: Database) -> None:
    """A revoked key must stop working within seconds, everywhere."""
    feed = ChangeFeed(database)
    assert feed.wait(5)  # connecting counts, because earlier changes were missed
    assert not feed.wait(0.05)
    for change in (
        lambda: KeyStore(database).create(key(), created_by="ada"),
        lambda: KeyStore(database).revoke("k123456789", revoked_by="ada"),
        lambda: PolicyStore(database).apply(
            "a", sha256="a", author="ada", message="", is_demo=False, expected_version=None
        ),
    ):
        change()
        assert feed.wait(5)
        assert not feed.wait(0.05)
    feed.close()


def test_a_waiting_feed_wakes_up(database: Database) -> None:
    """Waiting for changes must not be a poll."""
    feed = ChangeFeed(database)
    feed.wait(5)
    results: list[bool] = []
    waiting = threading.Thread(target=lambda: results.append(feed.wait(30)))
    waiting.start()
    KeyStore(database).create(key(), created_by="ada")
    waiting.join(10)
    assert results == [True]
    feed.close()


def test_a_broken_notification_feed_reconnects(database: Database) -> None:
    """The feed reports the lost connection once, and then that everything may have changed."""
    feed = ChangeFeed(database)
    feed.wait(5)
    with database.begin() as connection:
        connection.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = 'LISTEN "
                "tollgate_changes'"
            )
        )
    with pytest.raises(DatabaseUnavailable):
        feed.wait(5)
    assert feed.wait(5)
    assert not feed.wait(0.05)
    feed.close()


def test_a_question_that_takes_longer_than_one_look_at_the_end_is_answered(
    database: Database,
) -> None:
    """The wait is split into parts so that the end of the process is noticed; no part may lose
    the answer.
    """
    with database.begin() as connection:
        assert connection.execute(text("SELECT 7 FROM pg_sleep(1.3)")).scalar_one() == 7


def test_a_question_ends_with_its_limit_and_with_its_database(database: Database) -> None:
    """Its connection is closed, because a late answer would be taken for the next query's
    answer.
    """
    with (
        within(0.3),
        pytest.raises(DatabaseUnavailable, match="did not answer in time"),
        database.begin() as connection,
    ):
        connection.execute(text("SELECT pg_sleep(20)"))
    with database.begin() as connection:
        assert connection.execute(text("SELECT 1")).scalar_one() == 1
    database.end_by(monotonic() + 0.3)
    with (
        pytest.raises(DatabaseUnavailable, match="did not answer in time"),
        database.begin() as connection,
    ):
        connection.execute(text("SELECT pg_sleep(20)"))


@pytest.mark.parametrize("fault", ["away", "refused", "no table", "no right"])
def test_a_person_without_a_key_reads_the_kind_of_a_problem_alone(
    database: Database, database_url: str, fault: str
) -> None:
    """Attack of 2026-11-29: `/readyz` showed the server's address, the login and its error."""
    address, role, statement = {
        "away": ("postgresql://ada:secret@127.0.0.1:1/ledger", None, "SELECT 1"),
        "refused": (database_url.replace("://", "://nobody_"), None, "SELECT 1"),
        "no table": (database_url, None, "SELECT FROM none_such"),
        "no right": (database_url, "tollgate_reader", "SELECT FROM tollgate.policies"),
    }[fault]
    asked = Database(address, role=role)
    with pytest.raises(DatabaseUnavailable) as unavailable, asked.begin() as connection:
        connection.execute(text(statement))
    asked.close()
    assert asked.name in unavailable.value.message
    assert unavailable.value.for_callers == (
        "Postgres cannot be asked: the gateway's log has the reason, and so does tollgate doctor "
        "on its machine"
    )
