"""Applies or lists a database's missing migrations, after checks of the server and the login; the
package `migrations` has the steps.

That package is at the top level of the repository.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
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
from sqlalchemy.exc import DBAPIError

import migrations
from gateway.errors import BadUsage, DatabaseUnavailable
from gateway.storage.postgres import rights
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.partitions import ensure_coming_months
from gateway.storage.postgres.rights import ROLES
from gateway.storage.postgres.schema.baseline import refuse_older

SCHEMA = "tollgate"
OLDEST_SERVER = 150000

# Locked for the whole upgrade: two replicas that start at once apply each step once. Alembic's own
# updates of the table do not wait for this lock.
_MAKE_LOCK = """
CREATE TABLE IF NOT EXISTS tollgate.alembic_version
    (version_num varchar(32) NOT NULL CONSTRAINT alembic_version_pkc PRIMARY KEY)
"""
_LOCK = "LOCK TABLE tollgate.alembic_version IN SHARE UPDATE EXCLUSIVE MODE"
_OTHER_UPGRADE_LIMIT = "120s"
_LOCK_LIMIT = "5s"  # a step that waits longer for a table would block the requests queued behind it


def upgrade(database: Database, *, on_step: Callable[[str], None] | None = None) -> list[str]:
    """Apply the missing revisions in order and return them; give the roles the rights that they
    have lost since.

    Raises `BadUsage` if the server or the login is unsuitable, with the commands that an
    administrator runs, or if the database is older than the baseline or newer than this version.
    """
    applied: list[str] = []

    def on_version_apply(*, step: Any, **_: Any) -> None:
        applied.append(step.up_revision_id)
        if on_step is not None:
            on_step(f"{step.up_revision_id}: {step.up_revision.doc}")

    with database.explained(), _long_session(database) as connection:
        _check_server(connection)
        lacks_schema = not _has_schema(connection)
        refuse_older(_heads_of(connection))
        if lacks_schema or _lacks_a_role(connection):
            _check_login(connection, is_new=lacks_schema)
        has_none = not _heads_of(connection)
        connection.commit()
        # Without the lock if there is nothing to do: a login with fewer rights may look.
        if not _is_current(connection) or _may_adopt(connection):
            with upgrade_lock(database, is_made=has_none):
                is_new = not _heads_of(connection)
                connection.commit()
                _apply(connection, is_new=is_new, on_version_apply=on_version_apply)
        _give_back_rights(database, connection)
    return applied


def _give_back_rights(database: Database, connection: Connection) -> None:
    """Give the roles the rights that a fresh database has, for example after a restored dump.

    Raises `BadUsage` with the SQL if this login may not give one that a program needs.
    """
    found = rights.state(connection)
    connection.commit()
    if not found.missing and not found.other_owners:
        return
    with suppress(DBAPIError), upgrade_lock(database):
        rights.give_back(connection)
        connection.commit()
    connection.rollback()
    left = rights.state(connection)
    if not left.lost:
        return
    login, name = connection.execute(
        text("SELECT quote_ident(current_user), current_database()")
    ).one()
    connection.commit()
    needed = rights.statements(left.missing, owner=left.owner, database=name)
    raise BadUsage(
        f"The roles lack rights that the login {login} may not give: {'; '.join(left.lost)}. The "
        f"owner of the tables ({left.owner}) runs this command, or an administrator runs:\n  "
        + "\n  ".join(needed)
    )


def _apply(connection: Connection, *, is_new: bool, on_version_apply: Callable[..., None]) -> None:
    """Apply the missing revisions under the upgrade lock, and adopt a restored ledger."""
    if not _is_current(connection):
        config = _config()
        config.attributes.update(connection=connection, on_version_apply=on_version_apply)
        with _newer_explained():
            command.upgrade(config, "head")
        connection.commit()
    if is_new:
        # The baseline makes its months by a rule of its own, which is frozen.
        ensure_coming_months(connection)
    _adopt_ledger(connection)
    connection.commit()


def _is_current(connection: Connection) -> bool:
    """Return True if every revision of this installation was applied."""
    is_current = _has_schema(connection) and _heads_of(connection) == frozenset(
        _script().get_heads()
    )
    connection.commit()
    return is_current


def _may_adopt(connection: Connection) -> bool:
    """Return True if this login may adopt a restored ledger: the owner of the schema alone may."""
    may = text("SELECT has_function_privilege('tollgate.adopt_ledger()', 'EXECUTE')")
    is_allowed = bool(connection.execute(may).scalar_one())
    connection.commit()
    return is_allowed


def _adopt_ledger(connection: Connection) -> None:
    """Let a ledger that was restored from another server's dump count by this server's
    transactions. Without the right to, nothing happens.
    """
    if _may_adopt(connection):
        connection.execute(text("SELECT tollgate.adopt_ledger()"))


def pending(database: Database) -> list[str]:
    """Return the revisions that `upgrade` would apply, in order. Changes nothing.

    Raises `BadUsage` if the database is older than the baseline or newer than this version.
    """
    script = _script()
    with database.begin() as connection:
        done = _heads_of(connection) if _has_schema(connection) else frozenset()
    refuse_older(done)
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
def _long_session(database: Database) -> Iterator[Connection]:
    """Yield a separate connection whose statements may take as long as a migration needs."""
    with database.engine.connect() as connection:
        connection.detach()
        connection.execute(text(f"SET lock_timeout = '{_LOCK_LIMIT}'"))
        connection.execute(text("SET statement_timeout = 0"))
        connection.execute(text("SET idle_in_transaction_session_timeout = 0"))
        connection.commit()
        yield connection


@contextmanager
def upgrade_lock(database: Database, *, is_made: bool = False) -> Iterator[None]:
    """Hold the upgrade lock, which ends with its own connection; `is_made`: make its table
    first.
    """
    with _long_session(database) as connection:
        connection.execute(text(f"SET lock_timeout = '{_OTHER_UPGRADE_LIMIT}'"))
        connection.commit()
        if is_made:
            with suppress(DBAPIError), connection.begin():  # another upgrade may make it now
                connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
                connection.execute(text(_MAKE_LOCK))
        connection.execute(text(_LOCK))
        yield


@contextmanager
def alone(database: Database) -> Iterator[None]:
    """Keep other upgrades of this database waiting, if this login may."""
    with ExitStack() as held:
        with suppress(DBAPIError):
            held.enter_context(upgrade_lock(database))
        yield


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
    """Return the migrations of this installation."""
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
