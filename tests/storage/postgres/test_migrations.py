"""Migrations: each runs once and safely, with a clear error if it cannot run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import text

from gateway.errors import BadUsage, DatabaseUnavailable
from gateway.storage.postgres import migrations
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.schema import baseline

_numbers = count(1)


@pytest.fixture
def empty(empty_database_url: str) -> Iterator[Database]:
    """Yield a database without the schema."""
    database = Database(empty_database_url)
    yield database
    database.close()


def test_a_new_database_is_brought_up_and_a_current_one_left_alone(empty: Database) -> None:
    """`db upgrade` runs at every deployment."""
    known = migrations.pending(empty)
    steps: list[str] = []
    assert migrations.upgrade(empty, on_step=steps.append) == known
    assert known != []
    assert len(steps) == len(known)
    assert migrations.upgrade(empty) == []
    assert migrations.pending(empty) == []


def test_upgrades_at_the_same_time_apply_each_step_once(empty_database_url: str) -> None:
    """All replicas of a new release start together."""

    def upgrade(_: int) -> list[str]:
        database = Database(empty_database_url)
        try:
            return migrations.upgrade(database)
        finally:
            database.close()

    with ThreadPoolExecutor(4) as pool:
        applied = [revision for result in pool.map(upgrade, range(4)) for revision in result]
    database = Database(empty_database_url)
    assert migrations.pending(database) == []
    assert len(applied) == len(set(applied))
    assert applied != []
    database.close()


def test_the_check_for_pending_migrations_changes_nothing(empty: Database) -> None:
    """`db check` runs with a role that may not create anything."""
    migrations.pending(empty)
    with empty.begin() as connection:
        found = connection.execute(
            text("SELECT count(*) FROM pg_namespace WHERE nspname = 'tollgate'")
        ).scalar_one()
    assert found == 0


def test_a_failed_step_leaves_nothing_half_done(empty: Database) -> None:
    """After a failure the same command runs again, without manual work in the database."""
    with empty.begin() as connection:
        connection.execute(text("CREATE SCHEMA finance"))  # blocks the second statement
    with pytest.raises(Exception, match="finance"):
        migrations.upgrade(empty)
    with empty.begin() as connection:
        connection.execute(text("DROP SCHEMA finance"))
    assert migrations.upgrade(empty) != []


def test_a_database_of_a_newer_release_is_not_touched(database: Database) -> None:
    """An old release that starts by mistake must report it and change nothing."""
    with database.begin() as connection:
        connection.execute(
            text("UPDATE tollgate.alembic_version SET version_num = '20990101_0000'")
        )
    for ask in (migrations.upgrade, migrations.pending):
        with pytest.raises(BadUsage, match="newer Tollgate"):
            ask(database)


@pytest.mark.parametrize("revision", ["20261121_0300", "20261128_1520"])
def test_a_database_of_an_older_step_is_not_touched(database: Database, revision: str) -> None:
    """The steps before the baseline are gone: the message says how to move it."""
    with database.begin() as connection:
        connection.execute(
            text("UPDATE tollgate.alembic_version SET version_num = :revision"),
            {"revision": revision},
        )
    expected = f"{revision}.* Nothing was changed.* {baseline.LAST_WITH_STEPS}.* export"
    for ask in (migrations.upgrade, migrations.pending, baseline.require_baseline):
        with pytest.raises(BadUsage, match=expected):
            ask(database)
    with database.begin() as connection:
        found = connection.execute(text("SELECT version_num FROM tollgate.alembic_version"))
        assert found.scalars().all() == [revision]


def test_the_baseline_is_the_first_revision(empty: Database) -> None:
    """A serving process compares with its id, and loads no Alembic."""
    assert migrations.pending(empty)[0] == baseline.BASELINE


def test_the_gateways_role_may_read_the_pending_migrations(
    database: Database, database_url: str
) -> None:
    """Readiness is checked by the gateway, whose role owns nothing."""
    gateway = Database(database_url, role="tollgate_gateway")
    assert migrations.pending(gateway) == []
    gateway.close()


def test_a_database_without_the_schema_gives_the_next_command(empty: Database) -> None:
    """This is the first error that a new operator sees."""
    with (
        pytest.raises(DatabaseUnavailable, match="Run: tollgate db upgrade"),
        empty.begin() as connection,
    ):
        connection.execute(text("SELECT * FROM tollgate.policies"))


@pytest.mark.parametrize("rights", ["", "CREATEROLE"])
def test_a_login_without_rights_gets_the_sql_for_an_administrator(
    postgres_url: str, empty_database_url: str, rights: str
) -> None:
    """Many companies hand out a login that may only use its own database."""
    login = f"plain {os.getpid()} {next(_numbers)}"
    name = str(conninfo_to_dict(empty_database_url)["dbname"])
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'secret' {}").format(
                sql.Identifier(login), sql.SQL(rights)
            )
        )
        try:
            plain = Database(
                empty_database_url.replace(
                    _user_of(empty_database_url), f"{_percent(login)}:secret@"
                )
            )
            with pytest.raises(BadUsage) as refused:
                migrations.upgrade(plain)
            statements = [line.strip() for line in str(refused.value).splitlines()[1:]]
            assert f'GRANT CREATE ON DATABASE {name} TO "{login}";' in statements
            # Before PostgreSQL 16, CREATEROLE granted every role.
            if not rights or admin.info.server_version >= 160000:
                assert f'GRANT tollgate_reader TO "{login}";' in statements
            with psycopg.connect(empty_database_url, autocommit=True) as owner:
                for statement in statements:
                    owner.execute(statement.encode())
            assert migrations.upgrade(plain) != []
            plain.close()
        finally:
            with psycopg.connect(empty_database_url, autocommit=True) as owner:
                owner.execute(sql.SQL("GRANT {} TO CURRENT_USER").format(sql.Identifier(login)))
                owner.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(sql.Identifier(login)))
            admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(login)))


def test_a_current_database_needs_no_rights_to_stay_current(
    database: Database, database_url: str
) -> None:
    """The rights of the first day may have been removed since."""
    gateway = Database(database_url, role="tollgate_gateway")
    assert migrations.upgrade(gateway) == []
    gateway.close()


def _user_of(url: str) -> str:
    return url.split("://")[1].split("@")[0] + "@"


def _percent(name: str) -> str:
    return name.replace(" ", "%20")
