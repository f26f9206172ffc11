"""Makes the logins of a database, as its owner, and checks the database as a whole for commands:
whether Tollgate can work with it, the power of its logins, and its clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path

from sqlalchemy import text

from gateway.domain.logins import CreatedLogins, LoginPurpose
from gateway.storage.postgres import logins
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.entry import close_to_others

_TOO_POWERFUL = """
SELECT rolname::text, rolsuper FROM pg_roles, pg_namespace
WHERE rolname = ANY(:users) AND nspname = 'tollgate' AND pg_has_role(pg_roles.oid, nspowner,
  'MEMBER')
"""


def ensure_logins(
    database: Database, home: Path, *, given: Mapping[LoginPurpose, str], renews: bool = False
) -> CreatedLogins:
    """Create the missing logins, as the owner, and keep their passwords in the home; `given` are
    the addresses of the settings. Then close the database to the logins of others, as far as the
    owner may.
    """
    # Imported here: Alembic takes longer than most commands.
    from gateway.storage.postgres import migrations

    # Another upgrade would make the same logins with other passwords.
    with migrations.alone(database):
        made = logins.ensure_logins(database, database.url, home, given=given, renews=renews)
        if not made.sql:  # else an administrator has yet to make some of them
            with database.begin() as connection:
                close_to_others(connection)
    return made


def too_powerful(database: Database, users: Iterable[str]) -> list[tuple[str, bool]]:
    """Return the users that are the tables' owner or superusers; True for a superuser."""
    with database.begin() as connection:
        rows = connection.execute(text(_TOO_POWERFUL), {"users": list(users)})
        return [(str(user), bool(is_superuser)) for user, is_superuser in rows]


def require_suitable(database: Database) -> None:
    """Raise `UnsuitableDatabase` if the address leads to a pooler that keeps no sessions, or to a
    server that takes no writes.
    """
    database.require_sessions()
    database.require_primary()


def clock_skew_s(database: Database, now: Callable[[], datetime]) -> float:
    """Return how far the database's clock is ahead of `now`, in seconds."""
    with database.begin() as connection:
        connection.execute(text("SELECT 1"))  # so that opening the connection is not measured
        before = now()
        theirs: datetime = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
        after = now()
    return (theirs - (before + (after - before) / 2)).total_seconds()
