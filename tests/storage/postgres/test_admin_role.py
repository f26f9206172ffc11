"""The administration role may do the commands' work and nothing else, and no other role may do
it; finance's role may approve, and change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import text

from gateway.errors import DatabaseUnavailable
from gateway.storage.budgets import budgets
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.policy import pepper
from gateway.storage.policy.keys import KeyStore
from gateway.storage.postgres import migrations
from gateway.storage.postgres.database import Database
from tests.storage.factories import PEPPER, event, key

ADMIN, GATEWAY, READER = "tollgate_admin", "tollgate_gateway", "tollgate_reader"
FINANCE = "tollgate_finance"
LEDGER = (
    "usage_events",
    "usage_events_default",
    "adjustments",
    "prices",
    "price_entries",
    "deployment_prices",
)
# Forbidden acts of each role, independent of the needs of current commands and gateways.
FORBIDDEN = [
    *(
        (role, table, verb)
        for role in (ADMIN, GATEWAY, READER, FINANCE)
        for table in LEDGER
        for verb in ("UPDATE", "DELETE", "TRUNCATE")
    ),
    *(
        (role, "audit_log", verb)
        for role in (ADMIN, GATEWAY, READER, FINANCE)
        for verb in ("INSERT", "UPDATE", "DELETE", "TRUNCATE")
    ),
    *(
        (role, "audit_notes", verb)
        for role in (ADMIN, GATEWAY, READER, FINANCE)
        for verb in ("INSERT", "UPDATE", "DELETE", "TRUNCATE")
    ),
    *(
        (role, "policies", verb)
        for role in (ADMIN, GATEWAY, READER, FINANCE)
        for verb in ("UPDATE", "DELETE", "TRUNCATE")
    ),
    *(
        (role, "api_keys", verb)
        for role in (ADMIN, GATEWAY, READER, FINANCE)
        for verb in ("DELETE", "TRUNCATE")
    ),
    *(
        (role, "budget_grants", verb)
        for role in (ADMIN, GATEWAY, READER, FINANCE)
        for verb in ("UPDATE", "DELETE", "TRUNCATE")
    ),
    *(
        (role, table, "INSERT")
        for role in (GATEWAY, READER, FINANCE)
        for table in ("policies", "api_keys", "budget_grants", "budgets", "price_entries")
    ),
    *(
        (role, table, "UPDATE")
        for role in (GATEWAY, READER, FINANCE)
        for table in ("api_keys", "budgets")
    ),
    *(
        (FINANCE, table, "INSERT")
        for table in (
            "usage_events",
            "adjustments",
            "prices",
            "periods",
            "journals",
            "dead_letters",
        )
    ),
    (FINANCE, "journals", "UPDATE"),
    (FINANCE, "dead_letters", "UPDATE"),
    (ADMIN, "usage_events", "INSERT"),
    (ADMIN, "leases", "INSERT"),
    (ADMIN, "leases", "UPDATE"),
    (ADMIN, "leases", "DELETE"),
    (ADMIN, "budget_periods", "UPDATE"),
    (ADMIN, "budgets", "DELETE"),
    (ADMIN, "periods", "UPDATE"),
    (ADMIN, "periods", "DELETE"),
    (ADMIN, "journals", "DELETE"),
    (ADMIN, "dead_letters", "INSERT"),
    (ADMIN, "dead_letters", "DELETE"),
    (ADMIN, "alembic_version", "UPDATE"),
]


@pytest.fixture
def admin(database_url: str) -> Iterator[Database]:
    """Yield the database in the role of a command."""
    opened = Database(database_url, role_if_member=ADMIN)
    yield opened
    opened.close()


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """Yield a connection of the owner, who may take every role."""
    with psycopg.connect(database_url) as opened:
        yield opened


@pytest.mark.parametrize(
    ("role", "table", "verb"), FORBIDDEN, ids=lambda part: str(part).removeprefix("tollgate_")
)
def test_a_role_cannot_change_protected_records(
    connection: psycopg.Connection[tuple[object, ...]], role: str, table: str, verb: str
) -> None:
    """A stolen administrator's login cannot change booked, applied or logged records."""
    name = sql.Identifier("tollgate", table)
    rows = connection.execute(
        "SELECT column_name::text FROM information_schema.columns WHERE table_schema = 'tollgate' "
        "AND table_name = %s AND is_identity = 'NO'",
        (table,),
    ).fetchall()
    connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
    for (column,) in rows if verb == "UPDATE" else rows[:1]:
        statements = {
            "INSERT": sql.SQL("INSERT INTO {} ({}) VALUES (NULL)"),
            "UPDATE": sql.SQL("UPDATE {} SET {} = NULL WHERE false"),
            "DELETE": sql.SQL("DELETE FROM {} WHERE {} IS NULL"),
            "TRUNCATE": sql.SQL("TRUNCATE {}"),
        }
        with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
            connection.execute(statements[verb].format(name, sql.Identifier(str(column))))
    assert rows


@pytest.mark.parametrize(
    "column", ["digest", "team", "project", "pepper_id", "key_id", "created_by", "is_demo"]
)
def test_an_administrator_cannot_make_a_key_another_teams(admin: Database, column: str) -> None:
    """A key can be made, paused, ended and revoked, but its team and its properties are
    permanent.
    """
    with (
        pytest.raises(DatabaseUnavailable, match="tollgate_admin may not do this"),
        admin.begin() as connection,
    ):
        connection.execute(text(f"UPDATE tollgate.api_keys SET {column} = {column}"))


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE tollgate.audit_log DISABLE TRIGGER ALL",
        "ALTER TABLE tollgate.api_keys DISABLE TRIGGER ALL",
        "ALTER TABLE tollgate.policies ADD COLUMN x int",
        "DROP TRIGGER audit_log_never_changes ON tollgate.audit_log",
        "DROP TABLE tollgate.audit_log",
        "CREATE TABLE tollgate.x (n int)",
        "SET session_replication_role = replica",
        "SELECT tollgate.append_audit('key.create', 'x', '{}')",
        "SELECT tollgate.note_audit('key.create', 'x', '{}')",
        "SELECT tollgate.make_immutable('tollgate.audit_log')",
        "SELECT tollgate.settle_holds(NULL, '[]')",
    ],
)
def test_an_administrator_cannot_switch_the_watch_off(admin: Database, statement: str) -> None:
    """A trigger that its subject can drop protects nothing, and rows that its subject can add
    prove nothing.
    """
    with (
        pytest.raises(DatabaseUnavailable, match="tollgate_admin may not do this"),
        admin.begin() as connection,
    ):
        connection.execute(text(statement))


def test_a_member_acts_as_the_role(admin: Database, database_url: str) -> None:
    """The owner's own login has all rights; its commands must not need them."""
    login, role = admin.acts_as()
    owner = Database(database_url)
    assert (role, owner.acts_as()) == (ADMIN, (login, login))
    KeyStore(admin).create(key(), created_by="ada")
    pepper.register(admin, [PEPPER])
    assert migrations.pending(admin) == []
    assert budgets.budget_mistakes(admin) == ()
    with pytest.raises(DatabaseUnavailable, match="may not do this"):
        Ledger(admin).write([event()])
    owner.close()


def test_a_login_outside_the_role_acts_as_itself(empty_database_url: str) -> None:
    """`doctor` reports it, and before the first `db upgrade` the role does not exist."""
    database = Database(empty_database_url, role_if_member="tollgate_no_such_role")
    login, role = database.acts_as()
    assert login == role
    database.close()
