"""Audit 18: rights that Postgres gives to every login: keep large objects, make temporary
tables, and fill the disk by one question.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from gateway.domain.checks import Status
from gateway.domain.database_server import server_checks
from gateway.domain.logins import LoginPurpose
from gateway.errors import BadUsage
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres import logins, migrations
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.disk_use import end_largest_sort, turn_log_over
from gateway.storage.postgres.embedded import EmbeddedPostgres
from gateway.storage.postgres.server_facts import read_facts
from tests.postgres import home_of_server
from tests.storage.factories import event
from tests.waiting import eventually

WRITES = [
    "SELECT lo_creat(-1)",
    "SELECT lo_create(0)",
    r"SELECT lo_from_bytea(0, '\x00')",
    "SELECT count(pg_advisory_lock(n)) FROM generate_series(1, 10) AS n",
    "SELECT pg_try_advisory_xact_lock_shared(1, 2)",
    "CREATE TABLE public.mine (n int)",
    "CREATE TABLE mine (n int)",
    "SET temp_file_limit = -1",
    "SET SESSION AUTHORIZATION DEFAULT; SET temp_file_limit = -1",
    "ALTER SYSTEM SET temp_file_limit = -1",
    "COPY (SELECT 1) TO '/tmp/mine'",
    "COPY (SELECT 1) TO PROGRAM 'true'",
    "SELECT pg_create_physical_replication_slot('mine')",
    "SELECT pg_create_logical_replication_slot('mine', 'pgoutput')",
]


@pytest.fixture
def stranger(postgres_url: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """Yield a session of a login without any right of its own, in the product's own database."""
    name = f"stranger_{os.getpid()}"
    with psycopg.connect(postgres_url, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'x'".encode())
        login = conninfo_to_dict(postgres_url) | {"user": name, "password": "x"}
        try:
            with psycopg.connect(make_conninfo(**login), autocommit=True) as connection:
                yield connection
        finally:
            owner.execute(f"DROP ROLE {name}".encode())


@pytest.mark.parametrize("statement", WRITES)
def test_a_login_keeps_nothing_on_the_embedded_server(
    stranger: psycopg.Connection[tuple[object, ...]], statement: str
) -> None:
    """A full disk of the database is 503 for every caller."""
    with pytest.raises(
        (psycopg.errors.InsufficientPrivilege, psycopg.errors.ObjectNotInPrerequisiteState)
    ):
        stranger.execute(statement.encode())


@pytest.mark.parametrize("database", ["postgres", "template1"])
def test_a_login_locks_nothing_from_another_database(postgres_url: str, database: str) -> None:
    """All databases of a server share its table of locks."""
    address = make_conninfo(**conninfo_to_dict(postgres_url) | {"dbname": database})
    name = f"neighbour_{os.getpid()}"
    with psycopg.connect(postgres_url, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'x'".encode())
        try:
            with (
                pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.OperationalError)),
                psycopg.connect(make_conninfo(address, user=name, password="x")) as connection,
            ):
                connection.execute("SELECT pg_advisory_lock(1)")
        finally:
            owner.execute(f"DROP ROLE {name}".encode())


def test_one_question_does_not_fill_the_disk(
    stranger: psycopg.Connection[tuple[object, ...]],
) -> None:
    """The audit's sort wrote without end; the embedded server stops it at its limit."""
    shown = stranger.execute("SHOW temp_file_limit").fetchone()
    assert shown == ("8GB",)


def test_the_sessions_of_a_login_do_not_fill_the_disk_together() -> None:
    """Each may write as much as one question may, and a reader may have forty."""
    with home_of_server() as home, EmbeddedPostgres(home) as server:
        url, data = server.start(), home / "pg" / "data"
        temporary = data / "base" / "pgsql_tmp"
        postmaster = int((data / "postmaster.pid").read_text().splitlines()[0])

        def sort(connection: psycopg.Connection[tuple[object, ...]], rows: int) -> int:
            """Leave a sort of this many rows of 1 kB open, and return the session's pid."""
            connection.execute("SET work_mem = '64kB'; SET max_parallel_workers_per_gather = 0")
            connection.execute(
                "DECLARE sorted CURSOR FOR SELECT repeat('x', 1000) || n FROM "
                f"generate_series(1, {rows}) AS n ORDER BY md5(n::text)".encode()
            )
            connection.execute("FETCH 1 FROM sorted")
            return connection.info.backend_pid

        with psycopg.connect(url) as small, psycopg.connect(url) as large:
            sort(small, 5_000)
            pid = sort(large, 20_000)
            for most_bytes, ended in ((10**9, None), (10**7, pid)):
                found = end_largest_sort(data, postmaster=postmaster, most_bytes=most_bytes)
                assert found == ended
            with pytest.raises(psycopg.errors.AdminShutdown):
                large.execute("FETCH 1 FROM sorted")
            eventually(
                lambda: not list(temporary.glob(f"pgsql_tmp{pid}.*")), "the end of its files"
            )
            assert end_largest_sort(data, postmaster=postmaster, most_bytes=10**7) is None
            assert small.execute("FETCH 1 FROM sorted").fetchone() is not None
        # Whatever the files' names say, only a session of this server is ended.
        with subprocess.Popen(["sleep", "60"]) as own:
            (temporary / f"pgsql_tmp{own.pid}.0").write_bytes(b"x" * 10**7)
            assert end_largest_sort(data, postmaster=postmaster, most_bytes=10**6) is None
            assert own.poll() is None
            own.kill()


SPEAKS = [
    "DO $$ BEGIN RAISE LOG 'spoken'; END $$",
    "DO $$ BEGIN RAISE WARNING 'spoken'; END $$",
    "SELECT 'spoken'::int",
    "SET debug_print_plan = on; SELECT 'spoken' AS spoken",
    "SET log_min_messages = debug5; SELECT 'spoken'",
]


@pytest.mark.parametrize("statement", SPEAKS)
def test_a_login_writes_nothing_to_the_servers_log(tmp_path: Path, statement: str) -> None:
    """Its messages, errors and statements have any size and number, and the log had no limit."""
    with home_of_server() as home, EmbeddedPostgres(home) as server:
        url = server.start()
        with psycopg.connect(url, autocommit=True) as owner:
            owner.execute("CREATE ROLE stranger LOGIN PASSWORD 'x'")
        login = conninfo_to_dict(url) | {"user": "stranger", "password": "x"}
        for database in ("tollgate", "postgres"):
            with psycopg.connect(
                make_conninfo(**login | {"dbname": database}), autocommit=True
            ) as connection:
                with suppress(psycopg.Error):
                    connection.execute(statement.encode())
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute("ALTER ROLE CURRENT_USER SET log_min_messages = debug5")
        with psycopg.connect(url) as owner:
            assert owner.execute("SHOW max_notify_queue_pages").fetchone() == ("262144",)
        assert "spoken" not in (home / "pg" / "server.log").read_text()


def test_the_servers_log_is_turned_over_while_it_runs(tmp_path: Path) -> None:
    """Refused connections are lines of their callers' length, and a server runs for months."""
    log = tmp_path / "server.log"
    with log.open("ab", buffering=0) as server:
        server.write(b"x" * 100)
        turn_log_over(log, most_bytes=100)
        assert log.stat().st_size == 100
        server.write(b"y")
        turn_log_over(log, most_bytes=100)
        server.write(b"z")
    assert (log.read_bytes(), log.with_suffix(".log.1").stat().st_size) == (b"z", 101)


def test_an_upgraded_database_lets_its_writers_alone_make_temporary_tables(
    empty_database_url: str,
) -> None:
    """The gateway stages events in such tables, and no other role needs one."""
    with closing(Database(empty_database_url)) as owner:
        migrations.upgrade(owner)
    with closing(Database(empty_database_url, role="tollgate_gateway")) as gateway:
        Ledger(gateway).write([event(1)])
    with psycopg.connect(empty_database_url) as connection:
        for role in ("tollgate_reader", "tollgate_team_reader", "tollgate_finance"):
            connection.execute(f"SET ROLE {role}".encode())
            with (
                pytest.raises(psycopg.errors.InsufficientPrivilege),
                connection.transaction(),
            ):
                connection.execute("CREATE TEMP TABLE mine (n int)")


def test_elsewhere_each_finding_has_the_sql_that_mends_it(
    database: Database, database_url: str, postgres_url: str, tmp_path: Path
) -> None:
    """A superuser's step is no secret of the embedded server: its SQL works on any other."""
    logins.ensure_logins(database, database_url, tmp_path, given={})
    facts = read_facts(database)
    assert facts.public_writes, "a clone of the template has Postgres's own rights"
    assert "pg_advisory_lock(bigint)" in facts.public_locks
    reader = conninfo_to_dict(logins.address_as(database_url, LoginPurpose.REPORTS, tmp_path))
    assert reader["user"] in facts.talkative
    found = [check for check in server_checks(facts) if check.name in ("rights", "log")]
    assert [check.status for check in found] == [Status.WARN] * 2
    server, name = conninfo_to_dict(postgres_url), conninfo_to_dict(database_url)["dbname"]
    superuser = make_conninfo(
        host=str(server["host"]), port=str(server["port"]), user="postgres", dbname=str(name)
    )
    with psycopg.connect(superuser, autocommit=True) as connection:
        for line in "\n".join(check.remedy for check in found).splitlines():
            connection.execute(line.partition(": ")[2].encode())
    database.close()
    (rights,) = [
        check for check in server_checks(read_facts(database)) if check.name in ("rights", "log")
    ]
    assert (rights.name, rights.status) == ("rights", Status.OK), rights
    with psycopg.connect(**reader, autocommit=True) as refused:
        for statement in ("SELECT pg_advisory_lock(1)", "SET log_min_messages = debug5"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                refused.execute(statement.encode())
    with psycopg.connect(database_url) as owner:
        owner.execute("SELECT pg_advisory_xact_lock(1)")


def test_a_login_without_a_free_connection_needs_no_password(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    """Another password would lock the running programs out, and mend nothing."""
    logins.ensure_logins(database, database_url, tmp_path, given={})
    address = logins.address_as(database_url, LoginPurpose.REPORTS, tmp_path)
    user = conninfo_to_dict(address)["user"]
    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute(f'ALTER ROLE "{user}" CONNECTION LIMIT 0'.encode())
    problem = str(logins.login_problem(address))
    assert "too many connections for role" in problem
    assert "--new-passwords" not in problem
    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute(f'ALTER ROLE "{user}" CONNECTION LIMIT -1'.encode())
    assert f"ALTER ROLE {user} CONNECTION LIMIT -1" in problem
    assert logins.login_problem(address) is None


def test_a_login_that_changed_its_own_password_is_given_another(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    """Postgres takes this right from no login. Its programs got the owner's address, the next time
    that somebody had upgraded.
    """
    logins.ensure_logins(database, database_url, tmp_path, given={})
    address = logins.address_as(database_url, LoginPurpose.REPORTS, tmp_path)
    with psycopg.connect(address, autocommit=True) as reader:
        reader.execute("ALTER ROLE CURRENT_USER PASSWORD 'mine'")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(address)
    assert "tollgate db upgrade --new-passwords" in str(logins.login_problem(address))
    assert logins.login_problem("postgresql://reader@127.0.0.1:1/x") is None  # no server answers
    made = logins.ensure_logins(database, database_url, tmp_path, given={})
    assert any("tollgate db upgrade --new-passwords" in note for note in made.notes)
    with pytest.raises(BadUsage, match=r"does not let .*_reports_login in.*--new-passwords"):
        logins.address_as(database_url, LoginPurpose.REPORTS, tmp_path)
    logins.ensure_logins(database, database_url, tmp_path, given={}, renews=True)
    psycopg.connect(logins.address_as(database_url, LoginPurpose.REPORTS, tmp_path)).close()
