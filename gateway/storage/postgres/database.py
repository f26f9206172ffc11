"""Connects to Postgres: one pool, one transaction per block, a deadline for every wait, and errors
that an operator can act on.

It is synchronous on purpose: the async gateway calls it through threads, so that one driver serves
the CLI, the writer and tests. Every connection of Tollgate is a `Session`. Its waits end at the
deadline of the waiting thread, so a server that keeps the connection open without an answer blocks
no thread (docs/decisions/0019).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from math import ceil, inf
from time import monotonic
from traceback import clear_frames
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import Connection, create_engine, event, text
from sqlalchemy.exc import DBAPIError, InvalidatePoolError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import ConnectionPoolEntry

from gateway.errors import BadUsage, DatabaseTooSlow, DatabaseUnavailable

# A vanished server is noticed within 25 s, instead of the two hours of Linux.
LOGIN = {
    "connect_timeout": "5",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "25000",
}
# A statement that runs longer is a fault, not a wait: batches take milliseconds, and reports read
# roll-ups.
SESSION = {
    "statement_timeout": "30s",
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "60s",
    "timezone": "UTC",
    # A server with LLVM, as in Postgres' own images, compiles the hundreds of sums of a roll-up at
    # each call: 12 hours then took 4,078 ms, and 10 ms without.
    "jit": "off",
}
POOL_SIZE, POOL_OVERFLOW, POOL_WAIT_S = 4, 4, 5
# If a pooled connection does not answer a ping within this time (seconds), the whole pool is
# replaced.
PING_S = 1.0
# Seconds that a query without a limit waits before a second connection checks the server, and the
# limit of that check.
LOOK_AFTER_S, LOOK_S = 10.0, 5.0
LONGEST_CONNECT_S = 60  # if the address has 0, which means no limit
# The limits of a serving process in seconds: for a transaction, and for a job that reads or books
# whole hours.
SERVING_LIMIT_S, JOB_LIMIT_S = 20.0, 60.0
END_SEEN_S = 0.5  # how soon a current wait notices that the process ends
ROLES_SET_APART = (
    160000  # from this server version on, being a member and acting as the role are two rights
)

_GIVE_REASON = "SELECT set_config('tollgate.reason', :reason, true)"
_NAME_OPERATOR = "SELECT set_config('tollgate.operator', %s, false)"
_NAME_PERSON = "SELECT set_config('tollgate.person', %s, false)"
_TAKE_ROLE = """
SELECT set_config('role', rolname, false) FROM pg_catalog.pg_roles
WHERE rolname = %s AND pg_catalog.pg_has_role(session_user, oid, %s)
"""

_LOST_CLASSES = ("08", "57")  # connection exception, operator intervention
# SQLSTATE classes about the server's state and not about the statement: invalid transaction state,
# rollback, resources, object state, system error, internal error.
_SERVER_CLASSES = ("25", "40", "53", "55", "58", "XX")
_NO_SLOT = ("too many clients", "connection slots are reserved", "too many connections")
_SCHEMA = "The database's schema is missing or older than this Tollgate. Run: tollgate db upgrade"
_BUSY = (
    "Postgres was too busy to answer in time. The step that failed changed nothing. Try again; "
    "look for long transactions."
)
_CANCELLED = "57014"
_TOO_SLOW = (
    "Postgres answers, but this question took longer than its limit of "
    f"{SESSION['statement_timeout']}. Nothing was changed. Ask for less, look for long "
    "transactions, or let a gateway sum up the hours first: tollgate serve"
)
_REMEDIES = {
    "25006": "Postgres is read-only here, probably a standby. Point TOLLGATE_DATABASE_URL at "
    "the primary.",
    "3D000": "The database does not exist. Create it, or fix its address.",
    "3F000": _SCHEMA,
    "42P01": _SCHEMA,
    "42703": _SCHEMA,
    "42883": _SCHEMA,
    "40P01": _BUSY,
    "55P03": _BUSY,
    "53100": "The disk of Postgres is full. Make room there; nothing is lost meanwhile.",
    "53300": "Postgres has no connection left. Raise max_connections or run fewer workers.",
}


T = TypeVar("T")


class _Deadline(threading.local):
    """The moment until which this thread may wait for Postgres, by the monotonic clock."""

    until_s: float = inf


_deadline = _Deadline()


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Limit the total time of all Postgres calls that this thread makes in the block.

    After the limit a query fails as if the server were gone, and its connection is closed. It is
    then unknown whether a statement was executed.
    """
    before_s = _deadline.until_s
    _deadline.until_s = min(before_s, monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.until_s = before_s


class _DeadlineExceeded(psycopg.OperationalError):
    """Postgres did not answer before the deadline."""

    def __init__(self) -> None:
        super().__init__("it holds the connection and did not answer in time")


class Session(psycopg.Connection[Any]):
    """A connection whose waits end at their thread's deadline and when its database is ended."""

    database: Database
    is_lost = False  # set by `Sessions`: the connection broke during a query

    def wait(
        self, gen: Generator[Any, Any, T], interval: float = 0.1, timeout: float | None = None
    ) -> T:
        """Wait like the driver, in short steps, but only until the thread's deadline, an `end_by`
        set in between, or the server's silence.
        """
        asked_until_s = inf if timeout is None else monotonic() + timeout
        look_at_s = monotonic() + LOOK_AFTER_S
        while True:
            now_s = monotonic()
            left_s = self.database.left_s(now_s)
            if now_s >= look_at_s and left_s == inf:
                left_s = inf if self.database.answers() else 0
                look_at_s = monotonic() + LOOK_AFTER_S
            if left_s <= 0:
                # a late answer may still come: this connection cannot be used again
                self.pgconn.finish()
                raise _DeadlineExceeded
            try:
                return super().wait(gen, interval, min(left_s, asked_until_s - now_s, END_SEEN_S))
            except psycopg.errors._WaitTimeout:
                if monotonic() >= asked_until_s:
                    raise


class Database:
    """A pool of connections to one database as one role. The first use opens it."""

    def __init__(
        self,
        url: str,
        *,
        role: str | None = None,
        role_if_member: str | None = None,
        operator: str | None = None,
        person: str | None = None,
        application_name: str = "tollgate",
        limit_s: float = inf,
        statement_limit_s: float = inf,
        renew: Callable[[], str] | None = None,
        setting: str = "TOLLGATE_DATABASE_URL",
    ) -> None:
        """Take a database's address, opening no connection yet. Act as `role`, or as
        `role_if_member` if the login may.

        `operator` is the person's name for the audit log. `person` is set if that person signed in:
        an approval then needs another one.

        `renew` returns the current address, if its password may change while the process runs.
        `setting` is the variable that has the address, for messages.

        `limit_s` is the total time that a pooled transaction may wait for Postgres.
        `statement_limit_s` is Postgres' own limit per statement, if it is shorter than the usual
        one.
        """
        self.role = role
        self._role_if_member, self._has_taken_role = role_if_member, False
        self._operator, self._person = operator, person
        self._setting = setting
        self._login: dict[str, Any] = (
            LOGIN | {"application_name": application_name} | parse_url(url)
        )
        self._limit_s, self._end_s, self._renew = limit_s, inf, renew
        self._session = (
            SESSION
            if statement_limit_s == inf
            else SESSION | {"statement_timeout": f"{round(statement_limit_s * 1000)}ms"}
        )
        self.engine = create_engine(
            "postgresql+psycopg://",
            creator=self.connect,
            pool_size=POOL_SIZE,
            max_overflow=POOL_OVERFLOW,
            pool_timeout=POOL_WAIT_S,
            use_native_hstore=False,  # saves a catalogue query on every first connection
        )
        event.listen(self.engine, "checkout", self._ping)

    @property
    def name(self) -> str:
        """Return the server and database for messages, never with a password."""
        host, port = str(self._login.get("host", "localhost")), self._login.get("port")
        # A socket's folder is enough; for several servers on one host only the port identifies the
        # one in use.
        where = f"{host}:{port}" if port is not None and not host.startswith("/") else host
        return f"{where}/{self._login.get('dbname', '')}"

    @contextmanager
    def begin(self, *, reason: str | None = None, is_long: bool = False) -> Iterator[Connection]:
        """Run one transaction: committed at the end, rolled back on any error.

        The audit log keeps `reason`.

        If `is_long`, it and each of its statements may take at least `JOB_LIMIT_S`. Raises
        `DatabaseUnavailable` if Postgres cannot be reached, refuses the role or does not answer in
        time.
        """
        limit_s = max(self._limit_s, JOB_LIMIT_S) if is_long else self._limit_s
        with self.explained(), within(limit_s), self.engine.begin() as connection:
            if is_long:
                connection.execute(text(f"SET LOCAL statement_timeout = '{JOB_LIMIT_S:.0f}s'"))
            if reason:
                connection.execute(text(_GIVE_REASON), {"reason": reason})
            yield connection

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn the driver's errors into `DatabaseUnavailable`; constraint and data errors stay
        unchanged.
        """
        try:
            yield
        except DBAPIError as error:
            _clear_tracebacks(error)
            self._raise_explained(error.orig, error)
        except psycopg.Error as error:
            _clear_tracebacks(error)
            self._raise_explained(error, error)
        except PoolTimeout as error:
            raise DatabaseUnavailable(
                f"{_BUSY} (all connections to {self.name} are in use)"
            ) from error

    def left_s(self, now_s: float) -> float:
        """Return the seconds that this thread may still wait for this database."""
        return min(_deadline.until_s, self._end_s) - now_s

    def end_by(self, end_s: float) -> None:
        """Make every wait for Postgres fail at that moment of the monotonic clock: the process is
        about to end.
        """
        self._end_s = end_s

    def connect(self) -> Session:
        """Open a connection, also for the pool, with a renewed address if the first is refused. The
        caller closes it.
        """
        try:
            return self._connected()
        except psycopg.OperationalError:
            if not self._has_new_login():
                raise
        return self._connected()

    def _has_new_login(self) -> bool:
        """Read the current address again and use it; return False if it is unchanged or cannot be
        read.
        """
        if self._renew is None:
            return False
        before = self._login
        with suppress(BadUsage):
            self._login = before | parse_url(self._renew())
        return self._login != before

    def answers(self) -> bool:
        """Check the server over a second connection; return False if it is silent for `LOOK_S`.

        A statement may run for long, and the server enforces its own limit only while it does its
        work.
        """
        try:
            with within(LOOK_S), closing(self.connect()) as session:
                session.execute("SELECT 1")
        except (_DeadlineExceeded, psycopg.errors.ConnectionTimeout):
            return False
        except psycopg.Error:
            pass  # it answered: it has no free connection or is starting
        return True

    def _connected(self) -> Session:
        """Return a new session with the login's role and time limits. Raises `DatabaseUnavailable`
        if the role is refused.
        """
        settings = dict(self._session) if self.role is None else self._session | {"role": self.role}
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        login = self._login | {"options": f"{self._login.get('options', '')} {options}".strip()}
        left_s = self.left_s(monotonic())
        if left_s <= 0:
            raise _DeadlineExceeded
        login["connect_timeout"] = min(
            int(login["connect_timeout"]) or LONGEST_CONNECT_S, ceil(min(left_s, 3600))
        )
        try:
            session = Session.connect(**login)
            session.database = self
            return self._prepared(session)
        except psycopg.OperationalError as error:
            _clear_tracebacks(error)
            has_schema = None if self.role is None else self._has_schema_without_role()
            if has_schema is False:
                raise DatabaseUnavailable(f"{_SCHEMA} ({self.name} has no tables yet)") from error
            if has_schema:
                raise DatabaseUnavailable(
                    f"The login of {self.name} may not act as {self.role}. Run: tollgate db "
                    f"upgrade. Or, as an administrator: GRANT {self.role} TO "
                    f"{_quoted(str(self._login.get('user', 'the login')))};"
                ) from error
            raise

    def acts_as(self) -> tuple[str, str]:
        """Return the database login and the role that it acts as; they are equal if it took no
        role.
        """
        with self.begin() as connection:
            login, role = connection.execute(text("SELECT session_user, current_user")).one()
            return str(login), str(role)

    def close(self) -> None:
        """Close the pool. A later use opens it again."""
        self.engine.dispose()

    def _ping(self, session: Session, record: ConnectionPoolEntry, proxy: object) -> None:
        """Check that a pooled connection answers before its use; replace the pool's connections if
        it does not.

        Not the pool's own `pre_ping`: that has no limit, or could use up the query's whole time.
        """
        if record.info.setdefault("is_new", True):
            record.info["is_new"] = False
            return
        try:
            with within(PING_S):
                self.engine.dialect.do_ping(session)  # type: ignore[arg-type]  # the driver's connection, as in `creator`
        except psycopg.Error as error:
            _clear_tracebacks(error)
            raise InvalidatePoolError from None

    def _prepared(self, connection: Session) -> Session:
        """Set the operator and the role for the whole session.

        The login's options cannot set the role: before the schema exists there is no such role.
        """
        try:
            if self._operator is not None:
                connection.execute(_NAME_OPERATOR, (self._operator,))
            if self._person is not None:
                connection.execute(_NAME_PERSON, (self._person,))
            if self._role_if_member is not None:
                can = "SET" if connection.info.server_version >= ROLES_SET_APART else "MEMBER"
                taken = connection.execute(_TAKE_ROLE, (self._role_if_member, can))
                self._has_taken_role = taken.rowcount > 0
            connection.commit()
        except BaseException:
            connection.close()
            raise
        return connection

    def _has_schema_without_role(self) -> bool | None:
        """Return whether our schema exists, or None if the server refuses the login itself."""
        # libpq gives no SQLSTATE for a refused connection, and its messages are translated. So
        # connect again without the role.
        login = self._login | {"connect_timeout": ceil(LOOK_S)}
        try:
            with within(LOOK_S), closing(Session.connect(**login)) as session:
                session.database = self
                found = session.execute(
                    "SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'tollgate'"
                )
                return found.rowcount > 0
        except psycopg.OperationalError as error:
            _clear_tracebacks(error)
            return None

    def _forbidden(self, problem: str) -> str:
        """Return a message that names the login without the right, and the remedy."""
        login, role = str(self._login.get("user", "the login")), self._role_if_member
        if role is not None and not self._has_taken_role:
            return (
                f"Login {login} is not in {role}, so it may not do this in {self.name} "
                f"({problem}). As an administrator: GRANT {role} TO {_quoted(login)}; or set "
                "TOLLGATE_ADMIN_DATABASE_URL to one that is."
            )
        return (
            f"{self.role or role or f'Login {login}'} may not do this in {self.name} ({problem}). "
            "Run as the owner of the schema: tollgate db upgrade"
        )

    def _raise_explained(self, cause: BaseException | None, error: Exception) -> None:
        """Raise a driver's error as `DatabaseUnavailable` or `DatabaseTooSlow` with its remedy;
        raise any other unchanged.
        """
        state = getattr(cause, "sqlstate", None)
        if state == "42501":
            raise DatabaseUnavailable(self._forbidden(_first_line(cause))) from error
        if state == _CANCELLED:
            raise DatabaseTooSlow(f"{_TOO_SLOW} ({self.name}: {_first_line(cause)})") from error
        if state in _REMEDIES:
            raise DatabaseUnavailable(
                f"{_REMEDIES[state]} ({self.name}: {_first_line(cause)})"
            ) from error
        is_lost = state is None and isinstance(
            cause, (psycopg.OperationalError, psycopg.InterfaceError)
        )
        if is_lost or (state or "")[:2] in _LOST_CLASSES:
            reason = _first_line(cause)
            is_full = any(
                words in reason for words in _NO_SLOT
            )  # libpq gives no SQLSTATE for a refused connection
            remedy = (
                "End idle sessions, or raise max_connections."
                if is_full
                else f"Start it, or fix {self._setting}."
            )
            raise DatabaseUnavailable(
                f"Postgres cannot be reached at {self.name}: {reason}. {remedy}"
            ) from error
        if (state or "")[:2] in _SERVER_CLASSES:
            raise DatabaseUnavailable(
                f"Postgres at {self.name} cannot do its work now: {_first_line(cause)} "
                f"({state}). Look at its log."
            ) from error
        raise error


def parse_url(url: str) -> dict[str, Any]:
    """Return the driver's connection parameters for a database URL.

    Raises `BadUsage` without repeating the address, which contains a password.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in ("postgresql", "postgres", "postgresql+psycopg"):
        raise BadUsage(
            "The database URL must look like postgresql://user:password@host:5432/tollgate."
        )
    try:
        return dict(conninfo_to_dict(f"postgresql://{rest}"))
    except psycopg.ProgrammingError:
        # The driver's message would repeat the URL, and with it the password.
        raise BadUsage(
            "The database URL cannot be read. Percent-encode special characters in the password."
        ) from None


def _clear_tracebacks(error: BaseException) -> None:
    """Clear the frames of an exception's tracebacks.

    The driver's frames refer to the exception that refers to them, and to a connection with its
    buffers. While a database is away, that would leak 5 MiB a minute until the garbage collector,
    which seldom runs, frees it.
    """
    cause: BaseException | None = error
    while cause is not None:
        clear_frames(cause.__traceback__)
        cause = cause.__cause__ or cause.__context__


def _first_line(error: BaseException | None) -> str:
    """Return the first line of an error's text, without a period at its end."""
    return (str(error).strip().splitlines() or ["no details"])[0].rstrip(".")


def _quoted(name: str) -> str:
    """Return a name as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
