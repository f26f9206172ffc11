"""Runs the commands on one database as a whole, for the CLI: migrations, partitions, logins,
peppers, roll-ups, ledger state and clock skew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path

from sqlalchemy import text

from gateway.domain.database_server import ServerFacts
from gateway.domain.ledger.health import LedgerState
from gateway.domain.logins import CreatedLogins, LoginPurpose
from gateway.domain.policy.api_keys import Pepper
from gateway.domain.policy.unlisted_use import UnlistedUse
from gateway.storage.ledger import rollups
from gateway.storage.ledger.state import read_state
from gateway.storage.ledger.unlisted_use import unlisted_uses
from gateway.storage.policy import pepper
from gateway.storage.postgres import logins, partitions
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.entry import close_to_others
from gateway.storage.postgres.server_facts import read_facts

_TOO_POWERFUL = """
SELECT rolname::text, rolsuper FROM pg_roles, pg_namespace
WHERE rolname = ANY(:users) AND nspname = 'tollgate' AND pg_has_role(pg_roles.oid, nspowner,
  'MEMBER')
"""


class Administration:
    """Everything that commands do to a database as a whole.

    Alembic is imported where it is used: that takes longer than most commands.

    Each method raises `DatabaseUnavailable`.
    """

    def __init__(self, database: Database, *, url: str, home: Path) -> None:
        """Take the database, its owner's URL, and the home that keeps the passwords of logins."""
        self._database = database
        self._url = url
        self._home = home

    @property
    def name(self) -> str:
        """Return the database's address without the password."""
        return self._database.name

    def upgrade(self, *, on_step: Callable[[str], None] | None = None) -> list[str]:
        """Apply the missing migrations, one after the other; return their names."""
        from gateway.storage.postgres import migrations

        return migrations.upgrade(self._database, on_step=on_step)

    def pending(self) -> list[str]:
        """Return the migrations that are not applied yet."""
        from gateway.storage.postgres import migrations

        return migrations.pending(self._database)

    def attach_months(self) -> list[str]:
        """Attach each month's detached partition, as the owner; return their names."""
        return partitions.attach_months(self._database)

    def ensure_months(self, *, first: date, last: date) -> list[str]:
        """Create the missing monthly partitions from `first` to `last`; return their names."""
        return partitions.ensure_months(self._database, first=first, last=last)

    def ensure_logins(
        self, *, given: Mapping[LoginPurpose, str], renews: bool = False
    ) -> CreatedLogins:
        """Create the missing logins, as the owner; `given` are the addresses of the settings. Then
        close the database to the logins of others, as far as the owner may.
        """
        from gateway.storage.postgres import migrations

        # Another upgrade would make the same logins with other passwords.
        with migrations.alone(self._database):
            made = logins.ensure_logins(
                self._database, self._url, self._home, given=given, renews=renews
            )
            if not made.sql:  # else an administrator has yet to make some of them
                with self._database.begin() as connection:
                    close_to_others(connection)
        return made

    def role_problem(self, address: str, purpose: LoginPurpose) -> str | None:
        """Return why the login of an address cannot work for its purpose, with the remedy."""
        return logins.role_problem(self._database, address, purpose)

    def register_peppers(self, peppers: Sequence[Pepper]) -> None:
        """Record the peppers in use. Raises `BadUsage` if the keys were made with others."""
        pepper.register(self._database, peppers)

    def check_peppers(self, peppers: Sequence[Pepper]) -> None:
        """Raise `BadUsage` if this database's keys were made with other peppers."""
        pepper.check(self._database, peppers)

    def refresh_rollups(self, *, before: date | None = None) -> int:
        """Bring the sums by hour, day and month up to date, or with `before` those that end
        before a day; return the number of hours.
        """
        return rollups.refresh(self._database, before=before)

    def sum_wrong_hours_again(self, *, since: datetime) -> int:
        """Mark the hours whose sums differ from their events, for the next refresh to sum again;
        return their number.
        """
        return rollups.sum_wrong_hours_again(self._database, since=since)

    def ledger_state(
        self, *, partitions_until: date, rollup_since: datetime | None = None
    ) -> LedgerState:
        """Return the ledger's state; with `rollup_since` also compare roll-ups with events."""
        return read_state(
            self._database, partitions_until=partitions_until, rollup_since=rollup_since
        )

    def unlisted_uses(self, *, teams: Sequence[str], since: datetime) -> tuple[UnlistedUse, ...]:
        """Return the use of unlisted members by some teams since a moment."""
        return unlisted_uses(self._database, teams=teams, since=since)

    def acts_as(self) -> tuple[str, str]:
        """Return the database login and the role that it acts as; they are equal if it took no
        role.
        """
        return self._database.acts_as()

    def too_powerful(self, users: Iterable[str]) -> list[tuple[str, bool]]:
        """Return the users that are the tables' owner or superusers; True for a superuser."""
        with self._database.begin() as connection:
            rows = connection.execute(text(_TOO_POWERFUL), {"users": list(users)})
            return [(str(user), bool(is_superuser)) for user, is_superuser in rows]

    def require_suitable(self) -> None:
        """Raise `UnsuitableDatabase` if the address leads to a pooler that keeps no sessions, or to
        a server that takes no writes.
        """
        self._database.require_sessions()
        self._database.require_primary()

    def server_facts(self) -> ServerFacts:
        """Return the server's durability, the rights of every login, and the holders of locks."""
        return read_facts(self._database)

    def clock_skew_s(self, now: Callable[[], datetime]) -> float:
        """Return how far the database's clock is ahead of `now`, in seconds."""
        with self._database.begin() as connection:
            connection.execute(text("SELECT 1"))  # so that opening the connection is not measured
            before = now()
            theirs: datetime = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
            after = now()
        return (theirs - (before + (after - before) / 2)).total_seconds()

    def close(self) -> None:
        """Close the connections. A later use opens them again."""
        self._database.close()
