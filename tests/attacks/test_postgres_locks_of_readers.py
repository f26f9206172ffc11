"""Audit 6: a read-only login took locks and connections that revocation, policies, alerts and the
gateway itself needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import text

from gateway.domain.logins import LoginPurpose
from gateway.errors import DatabaseUnavailable
from gateway.storage.ledger import rollups
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.policy.keys import KeyStore
from gateway.storage.policy.policies import PolicyStore
from gateway.storage.postgres import logins
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.leadership import Leadership
from gateway.storage.postgres.locks import LEADERS, TableLock
from gateway.storage.postgres.logins import SHARES
from gateway.storage.postgres.server_facts import read_facts
from tests.gateway_process import REPOSITORY
from tests.storage.factories import event, key
from tests.waiting import eventually

READERS = ("tollgate_reader", "tollgate_team_reader")
# The names under which a lock was ever taken by `pg_advisory_lock(hashtext(...))`.
ONCE_TAKEN = [
    *(f"tollgate.{lock}" for lock in TableLock if not lock.startswith(LEADERS)),
    *(
        f"tollgate.leader.{lock.removeprefix(LEADERS)}"
        for lock in TableLock
        if lock.startswith(LEADERS)
    ),
]
MODES = ["ROW SHARE", "ROW EXCLUSIVE", "SHARE UPDATE EXCLUSIVE", "SHARE", "EXCLUSIVE"]


@pytest.fixture
def hostile(database_url: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """Yield a reader's session that holds every advisory lock whose name it knows."""
    with psycopg.connect(database_url) as connection:
        connection.execute("SET ROLE tollgate_reader")
        for name in ONCE_TAKEN:
            connection.execute("SELECT pg_advisory_lock(hashtext(%s))", (name,))
        connection.execute("SELECT pg_advisory_lock(1953459308)")  # of upgrades
        yield connection


@pytest.mark.usefixtures("hostile")
def test_a_reader_keeps_no_key_from_being_revoked(database: Database) -> None:
    """A leaked key must be taken back at once, whoever holds a session open."""
    KeyStore(database).create(key(), created_by="ada")
    assert KeyStore(database).revoke("k123456789", revoked_by="ada")
    store = PolicyStore(database)
    assert (
        store.apply("a", sha256="a", author="ada", message="", is_demo=False, expected_version=None)
        == 1
    )
    Ledger(database).write([event(1)])
    assert rollups.refresh(database) == 1


@pytest.mark.usefixtures("hostile")
@pytest.mark.parametrize("job", [lock for lock in TableLock if lock.startswith(LEADERS)])
def test_a_reader_keeps_no_worker_from_leading(database_url: str, job: TableLock) -> None:
    """Without a leader no alert is sent and no engine is sampled."""
    with closing(Database(database_url, role="tollgate_gateway")) as database:
        leadership = Leadership(database, job)
        assert leadership.is_mine()
        assert leadership.is_mine()


@pytest.mark.parametrize("role", READERS)
@pytest.mark.parametrize("mode", MODES)
def test_a_reader_may_lock_no_relation(database_url: str, role: str, mode: str) -> None:
    """A view's lock reaches the tables below it, so views are asked for as well as tables."""
    with psycopg.connect(database_url) as connection:
        relations = connection.execute(
            "SELECT nspname, relname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace "
            "WHERE nspname IN ('tollgate', 'finance', 'closed', 'team', 'team_closed') "
            "AND relkind IN ('r', 'p', 'v')"
        ).fetchall()
        connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
        statement = sql.SQL("LOCK TABLE {} IN " + mode + " MODE NOWAIT")
        for schema, name in relations:
            with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
                connection.execute(statement.format(sql.Identifier(str(schema), str(name))))
    assert len(relations) > len(TableLock)


def test_every_lock_in_the_tree_is_a_lock_of_the_list(database: Database) -> None:
    """A lock by name would be the next one that everybody may take."""
    with database.begin() as connection:
        bodies = "\n".join(
            connection.execute(
                text(
                    "SELECT prosrc FROM pg_proc JOIN pg_namespace n ON n.oid = pronamespace "
                    "WHERE nspname NOT IN ('pg_catalog', 'information_schema')"
                )
            ).scalars()
        )
        tables = set(
            connection.execute(
                text(
                    "SELECT relname FROM pg_class WHERE relnamespace = 'tollgate'::regnamespace "
                    "AND relname LIKE 'lock\\_%'"
                )
            ).scalars()
        )
    assert tables == {f"lock_{lock}" for lock in TableLock}
    assert "advisory" not in bodies
    named = {
        *re.findall(r"LOCK TABLE tollgate\.lock_(\w+)", bodies),
        *re.findall(r"(?:try_lock|wait_for_lock)\('(\w+)'", bodies),
    }
    assert named <= set(TableLock)
    assert {"audit_log", "months", "policies_applied", "refresh_hours"} <= named
    sources = {path: path.read_text() for path in _sources()}
    assert [path for path, source in sources.items() if "pg_advisory" in source] == []
    lock = re.compile(r"\bLOCK TABLE (ONLY )?[a-z{]")
    takes = {path for path, source in sources.items() if lock.search(source)}
    assert {path.name for path in takes} == {"locks.py", "migrations.py"}


def test_a_leader_holds_back_nothing_but_its_lock(database: Database, database_url: str) -> None:
    """Its transaction is open for days: with a number or a snapshot it would keep dead rows, and
    exports from becoming complete.
    """
    with closing(Database(database_url, role="tollgate_gateway", application_name="led")) as led:
        leadership = Leadership(led, TableLock.LEADER_ENGINES)
        assert leadership.is_mine()
        assert leadership.is_mine()
        with database.begin() as connection:
            found = connection.execute(
                text(
                    "SELECT state, backend_xid, backend_xmin FROM pg_stat_activity "
                    "WHERE application_name = 'led' AND xact_start IS NOT NULL"
                )
            ).one()
    assert tuple(found) == ("idle in transaction", None, None)


def test_a_busy_lock_names_its_holder(database_url: str) -> None:
    """The message blamed long transactions, and named no session to end."""
    with (
        closing(Database(database_url, application_name="a slow apply")) as holding,
        closing(Database(database_url, role_if_member="tollgate_admin")) as waiting,
        holding.begin() as held,
    ):
        held.execute(text(TableLock.POLICIES.taken))
        process = held.execute(text("SELECT pg_backend_pid()")).scalar_one()
        with pytest.raises(
            DatabaseUnavailable,
            match=rf"process {process} of login \S+ \(a slow apply\) has the lock of policies",
        ):
            take_soon(waiting, TableLock.POLICIES)


def test_doctor_sees_who_waits_for_whom(database: Database, database_url: str) -> None:
    """An operator must find the session to end without knowing Postgres's views."""
    with psycopg.connect(database_url) as holding, psycopg.connect(database_url) as waiting:
        holding.execute(TableLock.MONTHS.taken.encode())
        (held,) = read_facts(database).locks
        assert (held.name, held.process, held.waiting) == ("months", holding.info.backend_pid, 0)
        waiting.pgconn.send_query(f"BEGIN; {TableLock.MONTHS.taken}".encode())
        waited = eventually(
            lambda: [lock for lock in read_facts(database).locks if lock.waiting], "a long wait"
        )
        assert [(lock.process, lock.waiting) for lock in waited] == [(held.process, 1)]
        waiting.cancel()
        while waiting.pgconn.get_result() is not None:
            pass


def test_no_login_beside_the_gateways_takes_every_connection(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    """86 sessions of the reports' login kept the gateway and `key revoke` out."""
    logins.ensure_logins(database, database_url, tmp_path, given={})
    with database.begin() as connection:
        most = connection.execute(
            text("SELECT current_setting('max_connections')::int")
        ).scalar_one()
    addresses = {
        purpose: logins.address_as(database_url, purpose, tmp_path) for purpose in LoginPurpose
    }
    taken = 0
    with ExitStack() as opened:
        for purpose in SHARES:
            taken += all_connections(opened, addresses[purpose], most=most)
        assert taken <= 0.7 * most
        with closing(Database(addresses[LoginPurpose.GATEWAY], role="tollgate_gateway")) as gateway:
            Ledger(gateway).write([event(1)])
    user = conninfo_to_dict(addresses[LoginPurpose.REPORTS])["user"]
    with database.begin() as connection:
        connection.execute(text(f'ALTER ROLE "{user}" CONNECTION LIMIT 3'))
    logins.ensure_logins(database, database_url, tmp_path, given={})
    with database.begin() as connection:
        kept = connection.execute(
            text("SELECT rolconnlimit FROM pg_roles WHERE rolname = :user"), {"user": user}
        ).scalar_one()
    assert kept == 3, "an administrator's own number stays"


def take_soon(database: Database, lock: TableLock) -> None:
    """Take a lock, or fail after 20 ms."""
    with database.begin() as connection:
        connection.execute(text("SET LOCAL lock_timeout = '20ms'"))
        connection.execute(text(lock.taken))


def all_connections(opened: ExitStack, address: str, *, most: int) -> int:
    """Open as many connections as a login gets; return their number. It must be refused by its own
    limit.
    """

    def connect() -> None:
        opened.enter_context(psycopg.connect(address))

    for made in range(most):
        with suppress(psycopg.OperationalError):
            connect()
            continue
        with pytest.raises(psycopg.OperationalError, match="too many connections for role"):
            connect()
        return made
    raise AssertionError("the login took every connection of the server")


def _sources() -> Iterator[Path]:
    """Yield the files of the product's own code."""
    for package in ("gateway", "dashboard", "engine"):
        yield from sorted((REPOSITORY / package).rglob("*.py"))
