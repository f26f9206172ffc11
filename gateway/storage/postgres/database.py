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
from datetime import datetime
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

from gateway.domain.database_server import HeldLock
from gateway.domain.words import host_and_port
from gateway.errors import (
    BadUsage,
    DatabaseTooSlow,
    DatabaseUnavailable,
    OperatorError,
    ReadOnlyDatabase,
    UnsuitableDatabase,
)
from gateway.storage import refused_logins
from gateway.storage.postgres import poolers
from gateway.storage.postgres.locks import HELD, LEADERS

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
    # The journal lets go of an event, and a command reports a revoked key, once Postgres confirms
    # the commit. A server, database or role that is set to `off` would lose both in a crash.
    "synchronous_commit": "on",
    "statement_timeout": "30s",
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "60s",
    # Sessions are kept between uses, and `within` limits each of these.
    "idle_session_timeout": "0",
    "transaction_timeout": "0",
    # The form of values and statements, however the server, database or role is set.
    "client_encoding": "UTF8",
    "timezone": "UTC",
    "timezone_abbreviations": "Default",
    "datestyle": "ISO, MDY",
    "intervalstyle": "postgres",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "xmloption": "content",
    "xmlbinary": "base64",
    "array_nulls": "on",
    "row_security": "on",
    "quote_all_identifiers": "off",
    "exit_on_error": "off",
    "gin_fuzzy_search_limit": "0",
    "standard_conforming_strings": "on",
    "backslash_quote": "safe_encoding",
    "transform_null_equals": "off",
    "lc_monetary": "C",
    "lc_numeric": "C",
    "lc_time": "C",
    "default_text_search_config": "pg_catalog.simple",
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    "check_function_bodies": "on",
    # A function or operator in another schema could otherwise fit better than Postgres's own.
    "search_path": "pg_catalog, pg_temp",
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
# From this server version on, being a member and acting as the role are two rights.
ROLES_SET_APART = 160000

_SINCE = {"transaction_timeout": 170000}  # the server's version that has the setting
_GIVE_REASON = "SELECT set_config('tollgate.reason', :reason, true)"
# Not the login's options: poolers refuse or drop those.
_TAKE_SETTINGS = """
SELECT pg_catalog.pg_backend_pid(), pg_catalog.count(pg_catalog.set_config(name, value, false))
FROM ROWS FROM (pg_catalog.unnest(%s::text[]), pg_catalog.unnest(%s::text[]))
    AS wanted (name, value)
"""
_TAKE_ROLE = """
SELECT set_config('role', rolname, false) FROM pg_catalog.pg_roles
WHERE rolname = %s AND pg_catalog.pg_has_role(session_user, oid, %s)
"""

_LOST_CLASSES = ("08", "57")  # connection exception, operator intervention
# SQLSTATE classes about the server's state and not about the statement: invalid transaction state,
# rollback, resources, object state, system error, internal error.
_SERVER_CLASSES = ("25", "40", "53", "55", "58", "XX")
NO_SLOT = ("too many clients", "connection slots are reserved", "too many connections")
# Errors in a session that lacks the search path, role or statement of the one before it.
_OF_ANOTHER_SESSION = frozenset(
    {"3F000", "42P01", "42703", "42883", "42704", "42501", "26000", "42P05", "34000"}
)
_SCHEMA = "The database's schema is missing or older than this Tollgate. Run: tollgate db upgrade"
_BUSY = (
    "Postgres was too busy to answer in time. The step that failed changed nothing. Try again; "
    "look for long transactions."
)
_POOLER = (
    "{name} is a pooler in transaction or statement mode: it gives the transactions of one client "
    "to several sessions, and Tollgate needs the state of a session (role, settings, locks, "
    "LISTEN, prepared statements). Set {setting} to the direct address of Postgres, or let the "
    "pooler work in session mode."
)
_IS_READ_ONLY = "SELECT current_setting('transaction_read_only')::boolean, pg_is_in_recovery()"
_ENCODING = "SELECT current_setting('server_encoding')"
_TIME = "SELECT clock_timestamp()"
_UNREADABLE = (
    "The database URL cannot be read. Percent-encode special characters in the password, for "
    "example @ as %40 and / as %2F."
)
_CANCELLED, _LOCKED = "57014", "55P03"
_TOO_SLOW = (
    "Postgres answers, but this question took longer than its limit, a statement_timeout that "
    "Tollgate sets. Nothing was changed. Ask for less, look for long transactions, or let a "
    "gateway sum up the hours first: tollgate serve"
)
# The limit of the login, the database or the server holds until a session has set its own.
_LIFT_LIMIT, _LIFT_TRIES = "SET statement_timeout = 0", 5
_CUT_AT_START = (
    "Postgres ended the first statement of login {login} at {name} by a statement_timeout that is "
    "not Tollgate's. As an administrator: ALTER ROLE {quoted} RESET statement_timeout; and "
    "likewise ALTER ROLE … IN DATABASE, ALTER DATABASE or ALTER SYSTEM, if it was set there "
    "(SELECT * FROM pg_db_role_setting)."
)
_REMEDIES = {
    "25006": "Postgres is read-only here: a standby, or by a setting. tollgate doctor tells which.",
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
        self.url = url  # with the password
        self._role_if_member, self._has_taken_role = role_if_member, False
        self._setting = setting
        self._login: dict[str, Any] = (
            LOGIN | {"application_name": application_name} | parse_url(url)
        )
        self._limit_s, self._end_s, self._renew = limit_s, inf, renew
        self._is_pooled = False  # whether a pooler answered the last login
        self._is_checked = False  # whether a pooler at this address was found to keep sessions
        self._session = SESSION | {
            name: value
            for name, value in (
                ("statement_timeout", _milliseconds(statement_limit_s)),
                ("tollgate.operator", operator),
                ("tollgate.person", person),
                ("role", role),  # the last: the role has fewer rights than the login
            )
            if value is not None
        }
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
        where = host_and_port(host, port) if port is not None and not host.startswith("/") else host
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
        except DatabaseUnavailable as unavailable:
            unavailable.has_details = True
            raise

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

    def require_sessions(self) -> None:
        """Raise `UnsuitableDatabase` if this address leads to a pooler that gives one client's
        transactions to several sessions.
        """
        with self.explained(), within(poolers.LIMIT_S):
            if poolers.shares_sessions(self._opened):
                raise UnsuitableDatabase(_POOLER.format(name=self.name, setting=self._setting))
            self._is_checked = True

    def require_primary(self) -> None:
        """Raise `UnsuitableDatabase` if the server at this address takes no writes, or the database
        is not encoded in UTF-8.
        """
        with self.begin() as connection:
            encoding = connection.execute(text(_ENCODING)).scalar_one()
            if encoding != "UTF8":
                raise UnsuitableDatabase(
                    f"The database {self.name} is encoded in {encoding}. Create one with: CREATE "
                    f"DATABASE … ENCODING 'UTF8' TEMPLATE template0; and point {self._setting} at "
                    "it."
                )
            is_read_only, is_standby = connection.execute(text(_IS_READ_ONLY)).one()
            if is_read_only and is_standby:
                raise ReadOnlyDatabase(
                    f"Postgres at {self.name} is read-only: a standby or a replica. Point "
                    f"{self._setting} at the primary."
                )
            if is_read_only:
                raise ReadOnlyDatabase(
                    f"Postgres at {self.name} is a primary, and read-only by its setting "
                    "default_transaction_read_only. Hosts set it while the disk is full: make room "
                    "first. Then, as the database's owner: ALTER DATABASE … RESET "
                    "default_transaction_read_only; and likewise ALTER ROLE or ALTER SYSTEM if it "
                    "was set there."
                )

    def stated_time(self) -> datetime:
        """Return the present by Postgres's clock."""
        with self.begin() as connection:
            stated: datetime = connection.execute(text(_TIME)).scalar_one()
        return stated

    def _connected(self) -> Session:
        """Return a new session with the role and the settings of all sessions. Raises
        `DatabaseUnavailable` if the role is refused or the address leads to no session.
        """
        try:
            session = self._opened()
        except psycopg.OperationalError as error:
            _clear_tracebacks(error)
            raise
        try:
            is_direct = self._take_settings(session)
        except BaseException:
            session.close()
            raise
        self._is_pooled = not is_direct
        if not is_direct and not self._is_checked:
            session.close()
            self.require_sessions()
            return self._connected()
        return session

    def _opened(self) -> Session:
        """Return a new connection to the server, as it lets this login in."""
        login, left_s = dict(self._login), self.left_s(monotonic())
        if left_s <= 0:
            raise _DeadlineExceeded
        login["connect_timeout"] = min(
            int(login["connect_timeout"]) or LONGEST_CONNECT_S, ceil(min(left_s, 3600))
        )
        session = Session.connect(**login)
        session.database = self
        return session

    def _take_settings(self, session: Session) -> bool:
        """Set everything that a session keeps, in one exchange; return False if a pooler answered
        the login in place of the session.
        """
        session.autocommit = True
        try:
            version = session.info.server_version
            wanted = {
                name: value
                for name, value in self._session.items()
                if version >= _SINCE.get(name, 0)
            }
            row = self._take(session, wanted)
        except (
            psycopg.errors.InvalidParameterValue,
            psycopg.errors.InsufficientPrivilege,
        ) as error:
            _clear_tracebacks(error)
            raise DatabaseUnavailable(self._refused_role(session)) from error
        if self._role_if_member is not None:
            can = "SET" if session.info.server_version >= ROLES_SET_APART else "MEMBER"
            taken = session.execute(_TAKE_ROLE, (self._role_if_member, can))
            self._has_taken_role = taken.rowcount > 0
        session.autocommit = False
        assert row is not None, "a SELECT of one row gives one row"
        return bool(row[0] == session.info.backend_pid)

    def _take(self, session: Session, wanted: dict[str, str]) -> tuple[Any, ...] | None:
        """Set a session's settings; return its process. Raises `DatabaseUnavailable` if the limit
        that it starts with is too short even to be lifted.
        """
        settings = list(wanted), list(wanted.values())
        with suppress(psycopg.errors.QueryCanceled):
            return session.execute(_TAKE_SETTINGS, settings).fetchone()
        for _ in range(_LIFT_TRIES):
            with suppress(psycopg.errors.QueryCanceled):
                session.execute(_LIFT_LIMIT)
                return session.execute(_TAKE_SETTINGS, settings).fetchone()
        raise DatabaseUnavailable(
            _CUT_AT_START.format(login=self._user, name=self.name, quoted=_quoted(self._user))
        )

    def _refused_role(self, session: Session) -> str:
        """Return the message for a login that may not act as the role."""
        found = session.execute("SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'tollgate'")
        if not found.rowcount:
            return f"{_SCHEMA} ({self.name} has no tables yet)"
        return (
            f"The login of {self.name} may not act as {self.role}. Run: tollgate db upgrade. Or, "
            f"as an administrator: GRANT {self.role} TO "
            f"{_quoted(str(self._login.get('user', 'the login')))};"
        )

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

    def _require_sessions_still(self) -> None:
        """Raise `UnsuitableDatabase` if the pooler at this address has left session mode since it
        was checked: a role, setting or statement of one session was then missing in another.
        """
        self._is_checked = False
        try:
            self.require_sessions()
        except UnsuitableDatabase:
            raise
        except DatabaseUnavailable:
            pass  # it is away now: the first error stands

    @property
    def _user(self) -> str:
        """Return the login for messages."""
        return str(self._login.get("user", "the login"))

    def _lock_holders(self) -> str:
        """Return the sessions that have a lock of Tollgate now, for a message; empty if they cannot
        be asked for.
        """
        with (
            suppress(psycopg.Error, OperatorError),
            within(LOOK_S),
            closing(self.connect()) as asked,
        ):
            held = [HeldLock(*row) for row in asked.execute(HELD.encode())]
            return "".join(
                f"; {lock.holder} has the lock of {lock.name}"
                for lock in held
                if not lock.name.startswith(LEADERS)
            )
        return ""

    def _raise_explained(self, cause: BaseException | None, error: Exception) -> None:
        """Raise a driver's error as `DatabaseUnavailable` or `DatabaseTooSlow` with its remedy;
        raise any other unchanged.
        """
        state = getattr(cause, "sqlstate", None)
        if self._is_pooled and state in _OF_ANOTHER_SESSION:
            self._require_sessions_still()
        if state == "42501":
            raise DatabaseUnavailable(self._forbidden(_first_line(cause))) from error
        if state == _CANCELLED:
            raise DatabaseTooSlow(f"{_TOO_SLOW} ({self.name}: {_first_line(cause)})") from error
        if state in _REMEDIES:
            holders = self._lock_holders() if state == _LOCKED else ""
            raise DatabaseUnavailable(
                f"{_REMEDIES[state]} ({self.name}: {_first_line(cause)}{holders})"
            ) from error
        is_lost = state is None and isinstance(
            cause, (psycopg.OperationalError, psycopg.InterfaceError)
        )
        if is_lost or (state or "")[:2] in _LOST_CLASSES:
            reason = _first_line(cause)
            # libpq gives no SQLSTATE for a refused connection.
            is_full = any(words in reason for words in NO_SLOT)
            if refused_logins.is_refusal(reason):
                raise DatabaseUnavailable(
                    f"Postgres at {self.name} does not let {self._user} in: {reason}. "
                    f"{refused_logins.remedy(self._login, reason, setting=self._setting)}"
                ) from error
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


def user_of(url: str) -> str | None:
    """Return the user in a database URL, if it names one. Raises `BadUsage` as `parse_url`."""
    user = parse_url(url).get("user")
    return None if user is None else str(user)


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
        found = dict(conninfo_to_dict(f"postgresql://{rest}"))
    except psycopg.ProgrammingError:
        # The driver's message would repeat the URL, and with it the password.
        raise BadUsage(_UNREADABLE) from None
    if not _has_one_reading(rest, ports=str(found.get("port", ""))):
        raise BadUsage(_UNREADABLE)
    return found


def address_parts(rest: str) -> tuple[str, str, str]:
    """Return the authority, the path and the query of a database URL behind its scheme, cut where
    libpq cuts: a question mark before an `@` belongs to the password.
    """
    authority, slash, behind = rest.partition("/")
    if "@" not in authority and "?" in authority:
        authority, _, query = rest.partition("?")
        return authority, "", query
    path, _, query = behind.partition("?")
    return authority, slash + path, query


def _has_one_reading(rest: str, *, ports: str) -> bool:
    """Return True if a reserved character in the password has not cut the address at another place:
    a part of the password would be its host, its port or its database, which messages name.
    """
    authority, path, _ = address_parts(rest)
    return (
        authority.count("@") <= 1
        and "@" not in path
        and all(port.isdecimal() for port in ports.split(",") if port)
    )


def _milliseconds(limit_s: float) -> str | None:
    """Return a time limit as Postgres reads it; None without a limit."""
    return None if limit_s == inf else f"{round(limit_s * 1000)}ms"


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
