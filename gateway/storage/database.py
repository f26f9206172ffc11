"""The connection to Postgres: one pool, one transaction per block, and errors an operator can act on.

Sync on purpose: the async gateway calls it through threads, so that one driver serves the CLI, the writer and tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from traceback import clear_frames
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from gateway.errors import BadUsage, DatabaseUnavailable

# A server that vanished without a word is noticed within 25 s, instead of the two hours of Linux.
LOGIN = {
    "connect_timeout": "5",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "25000",
}
# A statement that runs longer is a fault, not a wait: batches take milliseconds, reports have rolled-up data.
SESSION = {
    "statement_timeout": "30s",
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "60s",
    "timezone": "UTC",
}
POOL_SIZE, POOL_OVERFLOW, POOL_WAIT_S = 4, 4, 5
ROLES_SET_APART = 160000  # the server version from which being a member and acting as the role are two rights

_GIVE_REASON = "SELECT set_config('tollgate.reason', :reason, true)"
_NAME_OPERATOR = "SELECT set_config('tollgate.operator', %s, false)"
_TAKE_ROLE = """
SELECT set_config('role', rolname, false) FROM pg_catalog.pg_roles
WHERE rolname = %s AND pg_catalog.pg_has_role(session_user, oid, %s)
"""

_DISCONNECT_CLASSES = ("08", "57")  # connection exception, operator intervention
_SCHEMA = "The database's schema is missing or older than this Tollgate. Run: tollgate db upgrade"
_BUSY = "Postgres was too busy to answer in time. Nothing was changed. Try again; look for long transactions."
_MENDS = {
    "25006": "Postgres is read-only here, probably a standby. Point TOLLGATE_DATABASE_URL at the primary.",
    "3D000": "The database does not exist. Create it, or mend TOLLGATE_DATABASE_URL.",
    "3F000": _SCHEMA,
    "42P01": _SCHEMA,
    "42703": _SCHEMA,
    "42883": _SCHEMA,
    "40P01": _BUSY,
    "55P03": _BUSY,
    "57014": _BUSY,
    "53100": "The disk of Postgres is full. Make room there; nothing is lost meanwhile.",
    "53300": "Postgres has no connection left. Raise max_connections or run fewer workers.",
}


class Database:
    """A pool of connections to one database as one role. Nothing is opened before the first use."""

    def __init__(
        self,
        url: str,
        *,
        role: str | None = None,
        role_if_member: str | None = None,
        operator: str | None = None,
        application_name: str = "tollgate",
    ) -> None:
        """Act as `role`; as `role_if_member` where the login may. `operator` is who, for the audit log."""
        self.role = role
        self._role_if_member = role_if_member
        self._operator = operator
        self._login: dict[str, Any] = LOGIN | {"application_name": application_name} | _parse(url)
        self.engine = create_engine(
            "postgresql+psycopg://",
            creator=self.connect,
            pool_size=POOL_SIZE,
            max_overflow=POOL_OVERFLOW,
            pool_timeout=POOL_WAIT_S,
            pool_pre_ping=True,
            use_native_hstore=False,  # saves a catalogue query on every first connection
        )

    @property
    def name(self) -> str:
        """Where this is, for messages: never with a password."""
        return f"{self._login.get('host', 'localhost')}/{self._login.get('dbname', '')}"

    @contextmanager
    def begin(self, *, reason: str | None = None) -> Iterator[Connection]:
        """One transaction: committed at the end, rolled back on any error. The audit log keeps `reason`.

        Raises `DatabaseUnavailable` where Postgres cannot be asked or refuses the role.
        """
        with self.explained(), self.engine.begin() as connection:
            if reason:
                connection.execute(text(_GIVE_REASON), {"reason": reason})
            yield connection

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn the driver's errors into `DatabaseUnavailable`; constraint and data errors stay what they are."""
        try:
            yield
        except DBAPIError as error:
            _let_go(error)
            self._raise_explained(error.orig, error)
        except psycopg.Error as error:
            _let_go(error)
            self._raise_explained(error, error)
        except PoolTimeout as error:
            raise DatabaseUnavailable(f"{_BUSY} (all connections to {self.name} are in use)") from error

    def connect(self) -> psycopg.Connection[Any]:
        """Open a connection outside the pool. The caller closes it."""
        settings = dict(SESSION) if self.role is None else SESSION | {"role": self.role}
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        login = self._login | {"options": f"{self._login.get('options', '')} {options}".strip()}
        try:
            return self._prepared(psycopg.connect(**login))
        except psycopg.OperationalError as error:
            _let_go(error)
            if self.role is not None and self._lets_in_without_role():
                raise DatabaseUnavailable(
                    f"The login of {self.name} may not act as {self.role}. Run: tollgate db upgrade. Or, as an "
                    f"administrator: GRANT {self.role} TO {_quoted(str(self._login.get('user', 'the login')))};"
                ) from error
            raise

    def acts_as(self) -> tuple[str, str]:
        """The login, and the role it acts as: the same where it took none."""
        with self.begin() as connection:
            login, role = connection.execute(text("SELECT session_user, current_user")).one()
            return str(login), str(role)

    def close(self) -> None:
        """Close the pool. A later use opens it again."""
        self.engine.dispose()

    def _prepared(self, connection: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
        """For the whole session: before the schema there is no such role, so this cannot be an option of the login."""
        try:
            if self._operator is not None:
                connection.execute(_NAME_OPERATOR, (self._operator,))
            if self._role_if_member is not None:
                can = "SET" if connection.info.server_version >= ROLES_SET_APART else "MEMBER"
                connection.execute(_TAKE_ROLE, (self._role_if_member, can))
            connection.commit()
        except BaseException:
            connection.close()
            raise
        return connection

    def _lets_in_without_role(self) -> bool:
        # libpq gives no SQLSTATE for a refused connection, and its words are translated: so ask again without.
        try:
            psycopg.connect(**self._login).close()
        except psycopg.OperationalError as error:
            _let_go(error)
            return False
        return True

    def _raise_explained(self, cause: BaseException | None, error: Exception) -> None:
        state = getattr(cause, "sqlstate", None)
        if state == "42501":
            raise DatabaseUnavailable(
                f"{self.role or self._role_if_member or 'The login'} may not do this in {self.name} "
                f"({_first_line(cause)}). Run as the owner of the schema: tollgate db upgrade"
            ) from error
        if state in _MENDS:
            raise DatabaseUnavailable(f"{_MENDS[state]} ({self.name}: {_first_line(cause)})") from error
        is_lost = state is None and isinstance(cause, (psycopg.OperationalError, psycopg.InterfaceError))
        if is_lost or (state or "")[:2] in _DISCONNECT_CLASSES:
            raise DatabaseUnavailable(
                f"Postgres cannot be reached at {self.name}: {_first_line(cause)}. "
                f"Start it, or mend TOLLGATE_DATABASE_URL."
            ) from error
        raise error


def _parse(url: str) -> dict[str, Any]:
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in ("postgresql", "postgres", "postgresql+psycopg"):
        raise BadUsage("The database URL must look like postgresql://user:password@host:5432/tollgate.")
    try:
        return dict(conninfo_to_dict(f"postgresql://{rest}"))
    except psycopg.ProgrammingError:
        # The driver's message would repeat the URL, and with it the password.
        raise BadUsage("The database URL cannot be read. Percent-encode special characters in the password.") from None


def _let_go(error: BaseException) -> None:
    """Free what the frames of a failure hold.

    The drivers' own refer to the failure that refers to them, and to a connection with its buffers: a database that
    is away would cost 5 MiB a minute until the collector, which seldom has to, comes by.
    """
    cause: BaseException | None = error
    while cause is not None:
        clear_frames(cause.__traceback__)
        cause = cause.__cause__ or cause.__context__


def _first_line(error: BaseException | None) -> str:
    return (str(error).strip().splitlines() or ["no details"])[0].rstrip(".")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
