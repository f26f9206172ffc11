"""Applies or lists a database's missing migrations, after checks of the server and the login; the
package `migrations` has the steps.

That package is at the top level of the repository.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.script.revision import RevisionError
from alembic.util import CommandError
from sqlalchemy import Connection, text

import migrations
from gateway.errors import BadUsage, DatabaseUnavailable
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.partitions import ensure_coming_months

SCHEMA = "tollgate"
ROLES = (
    "tollgate_reader",
    "tollgate_gateway",
    "tollgate_admin",
    "tollgate_finance",
    "tollgate_team_reader",
)
OLDEST_SERVER = 150000

# Held for the whole upgrade: two replicas that start at once apply each step once.
_LOCK_KEY = 0x746F6C6C  # "toll"
_OTHER_UPGRADE_LIMIT = "120s"
_LOCK_LIMIT = "5s"  # a step that waits longer for a table would block the requests queued behind it


def upgrade(database: Database, *, on_step: Callable[[str], None] | None = None) -> list[str]:
    """Apply the missing revisions in order and return them.

    Raises `BadUsage` if the server or the login is unsuitable, with the commands that an
    administrator runs.
    """
    applied: list[str] = []

    def on_version_apply(*, step: Any, **_: Any) -> None:
        applied.append(step.up_revision_id)
        if on_step is not None:
            on_step(f"{step.up_revision_id}: {step.up_revision.doc}")

    with database.explained(), _upgrading(database) as connection:
        _check_server(connection)
        is_new = not _has_schema(connection)
        if is_new or _lacks_a_role(connection):
            _check_login(connection, is_new=is_new)
        if is_new:
            connection.execute(text(f"CREATE SCHEMA {SCHEMA}"))
        connection.commit()
        is_current = _heads_of(connection) == frozenset(_script().get_heads())
        connection.commit()
        if not is_current:
            config = _config()
            config.attributes.update(connection=connection, on_version_apply=on_version_apply)
            with _newer_explained():
                command.upgrade(config, "head")
            connection.commit()
        if is_new:
            # The first migration makes its months by a rule of its own, which is frozen.
            ensure_coming_months(connection)
        _adopt_ledger(connection)
        connection.commit()
    return applied


def _adopt_ledger(connection: Connection) -> None:
    """Let a ledger that was restored from another server's dump count by this server's
    transactions. Only the owner of the schema may; without that right nothing happens.
    """
    may = text("SELECT has_function_privilege('tollgate.adopt_ledger()', 'EXECUTE')")
    if connection.execute(may).scalar_one():
        connection.execute(text("SELECT tollgate.adopt_ledger()"))


def pending(database: Database) -> list[str]:
    """Return the revisions that `upgrade` would apply, in order. Changes nothing."""
    script = _script()
    with database.begin() as connection:
        done = _heads_of(connection) if _has_schema(connection) else frozenset()
    with _newer_explained():
        known = {
            revision.revision
            for head in done
            for revision in script.iterate_revisions(head, "base")
        }
    return [
        revision.revision
        for revision in reversed(list(script.walk_revisions()))
        if revision.revision not in known
    ]


@contextmanager
def _upgrading(database: Database) -> Iterator[Connection]:
    """Yield a separate connection that holds the upgrade lock; closing it returns the lock and
    the settings.
    """
    with database.engine.connect() as connection:
        connection.detach()
        connection.execute(text(f"SET lock_timeout = '{_OTHER_UPGRADE_LIMIT}'"))
        connection.execute(text("SET statement_timeout = 0"))
        connection.execute(text("SET idle_in_transaction_session_timeout = 0"))
        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _LOCK_KEY})
        connection.execute(text(f"SET lock_timeout = '{_LOCK_LIMIT}'"))
        connection.commit()
        yield connection


@contextmanager
def _newer_explained() -> Iterator[None]:
    """Raise `BadUsage` if the block fails because a newer Tollgate has upgraded the database."""
    try:
        yield
    except (CommandError, RevisionError) as error:
        raise BadUsage(
            f"This database was upgraded by a newer Tollgate ({error}). Install that version; "
            "nothing was changed."
        ) from error


def _config() -> Config:
    """Return Alembic's configuration, which finds the migrations of this installation."""
    assert migrations.__file__ is not None, (
        "the package migrations must have been installed with its files"
    )
    config = Config()
    # Alembic would read a % in the path as an interpolation.
    config.set_main_option(
        "script_location", str(Path(migrations.__file__).parent).replace("%", "%%")
    )
    return config


@cache
def _script() -> ScriptDirectory:
    """Return the migrations of this installation. To load their modules takes 60 ms."""
    return ScriptDirectory.from_config(_config())


def _heads_of(connection: Connection) -> frozenset[str]:
    """Return the last revisions of a database, none if it has no table of them."""
    context = MigrationContext.configure(connection, opts={"version_table_schema": SCHEMA})
    return frozenset(context.get_current_heads())


def _has_schema(connection: Connection) -> bool:
    """Return True if the database has Tollgate's schema."""
    found = connection.execute(
        text("SELECT FROM pg_namespace WHERE nspname = :name"), {"name": SCHEMA}
    )
    return found.first() is not None


def _check_server(connection: Connection) -> None:
    """Raise an error with the remedy if the server is too old, not UTF-8, or a standby."""
    number, name, encoding, is_standby = connection.execute(
        text(
            "SELECT current_setting('server_version_num')::int, current_setting('server_version'), "
            "current_setting('server_encoding'), pg_is_in_recovery()"
        )
    ).one()
    if number < OLDEST_SERVER:
        raise BadUsage(
            f"This server is PostgreSQL {name}; Tollgate needs 15 or newer. Upgrade it, or use "
            "another."
        )
    if encoding != "UTF8":
        raise BadUsage(
            f"This database is encoded in {encoding}. Create one with: CREATE DATABASE … "
            "ENCODING 'UTF8'"
        )
    if is_standby:
        raise DatabaseUnavailable(
            "This server is a standby. Point TOLLGATE_DATABASE_URL at the primary."
        )


def _lacks_a_role(connection: Connection) -> bool:
    """Return True if the server lacks one of Tollgate's roles, for example one that a later version
    added.
    """
    found = connection.execute(
        text("SELECT count(*) FROM pg_roles WHERE rolname = ANY(:names)"), {"names": list(ROLES)}
    )
    return int(found.scalar_one()) < len(ROLES)


def _check_login(connection: Connection, *, is_new: bool) -> None:
    """Raise `BadUsage`, before any change, unless this login may create the roles and, in a new
    database, the schemas.
    """
    login, may_create_roles, name, may_create_schemas = connection.execute(
        text(
            "SELECT quote_ident(rolname), rolsuper OR rolcreaterole, "
            "quote_ident(current_database()), has_database_privilege(current_database(), 'CREATE') "
            "FROM pg_roles WHERE rolname = current_user"
        )
    ).one()
    # Until PostgreSQL 15 a login that may create roles may grant all of them; since 16 only those
    # that it created.
    existing = connection.execute(
        text(
            "SELECT rolname, pg_has_role(oid, 'USAGE') OR pg_has_role(oid, 'MEMBER WITH ADMIN "
            "OPTION') OR :may_create_roles AND current_setting('server_version_num')::int < 160000 "
            "AS is_usable FROM pg_roles WHERE rolname = ANY(:names)"
        ),
        {"names": list(ROLES), "may_create_roles": may_create_roles},
    )
    is_usable = {row.rolname: row.is_usable for row in existing}
    needed = []
    if not may_create_roles:
        needed += [f"CREATE ROLE {role} NOLOGIN;" for role in ROLES if role not in is_usable]
    needed += [
        f"GRANT {role} TO {login};" for role in ROLES if not is_usable.get(role, may_create_roles)
    ]
    if is_new and not may_create_schemas:
        needed.append(f"GRANT CREATE ON DATABASE {name} TO {login};")
    if needed:
        raise BadUsage(
            f"The login {login} may not prepare this database. Nothing was changed. An "
            "administrator runs once:\n  " + "\n  ".join(needed)
        )
