"""Tests that `db upgrade` gives the roles every right that a freshly migrated database gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.storage.postgres import migrations, rights
from gateway.storage.postgres.database import Database
from tests.postgres import separate_server

FILE = Path(migrations.migrations.__file__ or "").parent / "rights.tsv"


def test_the_declared_rights_are_those_of_a_freshly_migrated_database(database: Database) -> None:
    """A migration that changes rights changes `migrations/rights.tsv` too."""
    with database.begin() as connection:
        found = rights.without_months(rights.read(connection))
    # A database that was copied from a template has the rights of none on itself.
    fresh = {right for right in found if right.kind != "database"} | {
        right for right in rights.declared() if right.kind == "database"
    }
    lines = "".join("\t".join(right) + "\n" for right in sorted(fresh))
    assert FILE.read_text() == lines, f"write this to {FILE}:\n{lines}"


def test_a_restored_dump_without_rights_gets_all_of_them_back(database: Database) -> None:
    """As after `pg_restore --no-acl`: no role has a right, and every login may call functions."""
    _break(database, *_without_acl(database))
    with database.begin() as connection:
        before = rights.state(connection)
    assert len(before.lost) > 200
    assert any("every login has EXECUTE" in difference for difference in before.loose)
    assert migrations.upgrade(database) == []
    assert _state(database) == ((), ())


@pytest.mark.parametrize(
    ("breaking", "lost"),
    [
        ("REVOKE INSERT ON tollgate.usage_events FROM tollgate_gateway", "INSERT on table toll"),
        ("REVOKE USAGE ON SCHEMA tollgate FROM tollgate_gateway", "USAGE on schema tollgate"),
        (
            "REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA tollgate FROM tollgate_gateway",
            "EXECUTE on function tollgate.settle_holds(uuid, jsonb)",
        ),
        ("REVOKE SELECT ON ALL TABLES IN SCHEMA finance FROM tollgate_reader", "finance.budgets"),
        ("REVOKE UPDATE (revoked_at) ON tollgate.api_keys FROM tollgate_admin", "revoked_at"),
        (
            "DO $$ BEGIN EXECUTE format('REVOKE TEMPORARY ON DATABASE %I FROM PUBLIC, "
            "tollgate_gateway', current_database()); END $$",
            "tollgate_gateway lacks TEMPORARY on database",
        ),
        ("DROP VIEW IF EXISTS finance.none", ""),
    ],
)
def test_each_lost_right_is_named_and_given_back(
    database: Database, breaking: str, lost: str
) -> None:
    with database.begin() as connection:
        rights.give_back(connection)  # the copy of a template has no rights on the database
    _break(database, breaking)
    named, _ = _state(database)
    assert any(lost in one for one in named) or not lost
    migrations.upgrade(database)
    assert _state(database) == ((), ())
    migrations.upgrade(database)
    assert _state(database) == ((), ())


def test_rights_that_new_tables_and_roles_inherit_come_back() -> None:
    """On a server of its own: roles belong to the whole server."""
    with separate_server() as url:
        database = Database(url)
        _break(
            database,
            "ALTER DEFAULT PRIVILEGES IN SCHEMA finance REVOKE SELECT ON TABLES FROM "
            "tollgate_reader",
            "REVOKE tollgate_reader FROM tollgate_admin",
        )
        assert len(_state(database)[1]) == 2
        migrations.upgrade(database)
        assert _state(database) == ((), ())
        _break(database, "DROP OWNED BY tollgate_team_reader", "DROP ROLE tollgate_team_reader")
        assert _state(database)[0]
        migrations.upgrade(database)
        assert _state(database) == ((), ())
        database.close()


def test_a_login_that_may_not_give_rights_gets_the_sql_for_one_that_may(
    database: Database, database_url: str
) -> None:
    _break(database, "REVOKE INSERT ON tollgate.usage_events FROM tollgate_gateway")
    gateway = Database(database_url, role="tollgate_gateway")
    with pytest.raises(migrations.BadUsage) as refused:
        migrations.upgrade(gateway)
    gateway.close()
    _, *statements = str(refused.value).splitlines()
    assert statements == ["  GRANT INSERT ON TABLE tollgate.usage_events TO tollgate_gateway;"]
    _break(database, *statements)
    assert _state(database)[0] == ()


def test_objects_of_another_owner_get_the_owner_of_the_schema(
    database: Database,
) -> None:
    """As after a restore by another login: a function of its owner writes no table of another's."""
    _break(
        database,
        "GRANT CREATE ON SCHEMA finance TO tollgate_gateway",
        "ALTER VIEW finance.budgets OWNER TO tollgate_gateway",
        "REVOKE CREATE ON SCHEMA finance FROM tollgate_gateway",
    )
    assert any("ALTER VIEW finance.budgets OWNER" in one for one in _state(database)[1])
    migrations.upgrade(database)
    assert _state(database) == ((), ())


def _state(database: Database) -> tuple[tuple[str, ...], tuple[str, ...]]:
    with database.begin() as connection:
        found = rights.state(connection)
    return found.lost, found.loose


def _break(database: Database, *statements: str) -> None:
    with database.connect() as session:
        for statement in statements:
            session.execute(statement.encode())


def _without_acl(database: Database) -> list[str]:
    roles = ", ".join(rights.ROLES)
    statements = []
    for schema in rights.SCHEMAS:
        statements += [
            f"REVOKE ALL ON ALL TABLES IN SCHEMA {schema} FROM {roles}",
            f"REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {schema} FROM {roles}",
            f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO PUBLIC",
            f"REVOKE ALL ON SCHEMA {schema} FROM {roles}",
        ]
    return statements
