"""The declared columns, locks and rights are those of a migrated database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, Table, create_engine, text
from sqlalchemy.engine import make_url

from gateway.storage.deployments.ejections import ejections
from gateway.storage.deployments.engine_samples import engine_samples
from gateway.storage.policy.audit import audit_log
from gateway.storage.policy.keys import api_keys
from gateway.storage.policy.policies import policies
from gateway.storage.postgres.locks import TableLock
from gateway.storage.postgres.schema.finance_views import finance

RIGHTS = Path(__file__).with_name("rights.txt")
TABLES = (api_keys, audit_log, ejections, engine_samples, policies)
# Every right that is not its owner's: of schemas, tables, columns and functions, with functions'
# default for PUBLIC, and with the rights that later objects get.
GRANTED = """
WITH named AS (SELECT * FROM pg_namespace WHERE nspname IN ('tollgate', 'finance', 'closed', 'team',
  'team_closed')),
objects (kind, name, owner, rights) AS (
    SELECT 'schema', nspname::text, nspowner, coalesce(nspacl, acldefault('n', nspowner)) FROM named
    UNION ALL
    SELECT CASE relkind WHEN 'v' THEN 'view' WHEN 'S' THEN 'sequence' ELSE 'table' END,
           nspname || '.' || regexp_replace(relname, '_[0-9]{4}_[0-9]{2}$', '_YYYY_MM'), relowner,
           coalesce(relacl, acldefault(CAST(CASE relkind WHEN 'S' THEN 's' ELSE 'r' END AS "char"),
             relowner))
    FROM pg_class JOIN named ON named.oid = relnamespace WHERE relkind IN ('r', 'p', 'v', 'm', 'S')
    UNION ALL
    SELECT 'column', nspname || '.' || relname || '.' || attname, relowner, attacl
    FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
    JOIN named ON named.oid = relnamespace WHERE attacl IS NOT NULL
    UNION ALL
    SELECT CASE WHEN prosecdef THEN 'function-as-owner' ELSE 'function' END,
           nspname || '.' || proname || '(' || oidvectortypes(proargtypes) || ')', proowner,
           coalesce(proacl, acldefault('f', proowner))
    FROM pg_proc JOIN named ON named.oid = pronamespace
    UNION ALL
    SELECT 'later-' || CASE defaclobjtype WHEN 'r' THEN 'tables' WHEN 'f' THEN 'functions' ELSE
           defaclobjtype::text END, nspname::text, defaclrole, defaclacl
    FROM pg_default_acl JOIN named ON named.oid = defaclnamespace
), granted AS (
    SELECT DISTINCT kind, name, coalesce(pg_get_userbyid(nullif(grantee, 0)), 'PUBLIC') AS role,
           privilege_type || CASE WHEN is_grantable THEN '*' ELSE '' END AS granted_right
    FROM objects, aclexplode(rights) WHERE grantee <> owner
)
SELECT kind || ' | ' || name || ' | ' || role || ' | '
       || string_agg(granted_right, ' ' ORDER BY granted_right)
FROM granted GROUP BY kind, name, role
"""


@pytest.fixture
def connection(database_url: str) -> Iterator[Connection]:
    """Yield a connection whose default schema is not ours: SQLAlchemy drops its default's name."""
    engine = create_engine(
        make_url(database_url).set(drivername="postgresql+psycopg"),
        connect_args={"options": "-c search_path=public"},
    )
    with engine.connect() as opened:
        yield opened
    engine.dispose()


def columns(connection: Connection, schema: str) -> list[tuple[str, str, str]]:
    """Return each relation's columns with their types, in order."""
    rows = connection.execute(
        text(
            "SELECT relname, attname, format_type(atttypid, atttypmod) FROM pg_class JOIN "
            "pg_attribute ON attrelid = pg_class.oid "
            "WHERE relnamespace = CAST(:schema AS regnamespace) AND attnum > 0 "
            "AND NOT attisdropped ORDER BY relname, attnum"
        ),
        {"schema": schema},
    )
    return [tuple(row) for row in rows]


def declared(connection: Connection, relation: Table) -> list[tuple[str, str, str]]:
    """Return the columns that are declared of a table or view, with their types."""
    return [
        (relation.name, column.name, column.type.compile(connection.dialect).lower())
        for column in relation.columns
    ]


def test_the_declared_views_are_the_migrated_ones(connection: Connection) -> None:
    """Reports and other readers depend on each name, each type and their order."""
    views = sorted(finance.tables.values(), key=lambda view: view.name)
    found = columns(connection, "finance")
    assert [column for view in views for column in declared(connection, view)] == found


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_the_declared_columns_of_a_table_are_migrated_ones(
    connection: Connection, table: Table
) -> None:
    """A query that is composed from a declared column must find it."""
    assert set(declared(connection, table)) <= set(columns(connection, "tollgate"))


def test_each_lock_has_its_table_alone(connection: Connection) -> None:
    """A lock without its table is an error at the first use; a table without its lock is dead."""
    found = connection.execute(
        text(
            "SELECT relname FROM pg_class WHERE relnamespace = 'tollgate'::regnamespace "
            "AND relname LIKE 'lock\\_%' AND relkind = 'r' AND relnatts = 0"
        )
    )
    assert sorted(found.scalars()) == sorted(f"lock_{lock}" for lock in TableLock)


def test_the_declared_rights_are_the_granted_ones(connection: Connection) -> None:
    """A right that a migration gives or forgets by mistake must be seen in a review."""
    declared = RIGHTS.read_text().splitlines()
    granted = sorted(connection.execute(text(GRANTED)).scalars())
    assert granted == declared
