"""The ledger's own connections: kept between batches, replaced when they break, and breakable from another thread.

Apart from the pool of `Database`: its check before each use cannot be interrupted, and a server that hangs would hold
the ledger's thread for ever.
"""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import uniform
from threading import Lock
from time import sleep
from typing import Any, TypeVar

import psycopg
from psycopg.errors import DeadlockDetected, SerializationFailure

from gateway.errors import DatabaseUnavailable
from gateway.storage.database import Database

T = TypeVar("T")

# Two writers in each other's way: one of them is thrown out and tries again, later by chance than the other.
MOST_TRIES = 5
FIRST_PAUSE_S = 0.02
# SQLSTATE classes that speak of the data, not of the server: data exception, integrity, a limit that a value exceeds.
_DATA_CLASSES = ("22", "23", "54")


class Session:
    """One connection and a second handle of its socket, which shuts it down whatever the driver is doing."""

    def __init__(self, database: Database) -> None:
        """Connect. Raises `psycopg.OperationalError`."""
        self.connection: psycopg.Connection[Any] = database.connect()
        # A duplicate: the driver may close its own at any time, and the number may then be somebody else's.
        self._wire = socket.socket(fileno=os.dup(self.connection.fileno()))
        self.is_prepared = False
        self.is_interrupted = False
        self.is_lost = False

    def interrupt(self) -> None:
        """Make whatever waits for the server fail."""
        self.is_interrupted = True
        with suppress(OSError):  # it went away by itself
            self._wire.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the connection back."""
        self._wire.close()
        self.connection.close()


class Sessions:
    """Runs transactions, each on a session of its own. Safe to share between threads."""

    def __init__(self, database: Database, *, prepare: str) -> None:
        """Take the database and what a new connection runs first; nothing is opened before the first transaction."""
        self._database, self._prepare = database, prepare.encode()
        self._idle: list[Session] = []
        self._busy: set[Session] = set()
        self._lock = Lock()
        weakref.finalize(self, _close_all, self._idle)

    def transact(self, work: Callable[[psycopg.Connection[Any]], T]) -> T:
        """Run `work` in one transaction, committed at its end; again where another writer was in the way.

        `work` must be safe to repeat even after it was committed: the server's word on the commit may be lost.
        Raises `DatabaseUnavailable`, or the driver's error where the data themselves are refused. Either way nothing
        is known to be changed.
        """
        try:
            with self._database.explained():
                return self._until_ordered(work)
        except psycopg.Error as error:
            if is_about_data(error):
                raise
            # Whatever it is, it is not about one document: setting those aside would empty the journal for nothing.
            raise DatabaseUnavailable(f"Postgres does not take events now: {error} ({error.sqlstate}).") from error

    def interrupt(self) -> bool:
        """Make the transactions that are running now fail with `DatabaseUnavailable`; False where there are none."""
        with self._lock:
            for session in self._busy:
                session.interrupt()
            return bool(self._busy)

    def close(self) -> None:
        """Close what is idle. A later transaction opens it again."""
        _close_all(self._idle)

    def _until_ordered(self, work: Callable[[psycopg.Connection[Any]], T]) -> T:
        for tries in range(MOST_TRIES - 1):
            try:
                return self._on_a_session(work)
            except (DeadlockDetected, SerializationFailure):
                sleep(uniform(0, FIRST_PAUSE_S * 2**tries))  # noqa: S311 - not a secret
        return self._on_a_session(work)

    def _on_a_session(self, work: Callable[[psycopg.Connection[Any]], T]) -> T:
        session = _pop(self._idle)
        if session is not None:
            try:
                return self._run(session, work)
            except psycopg.OperationalError:
                # A server that was restarted since is not worth an error: once more, on a new connection.
                if session.is_interrupted or not session.is_lost:
                    raise
        return self._run(Session(self._database), work)

    def _run(self, session: Session, work: Callable[[psycopg.Connection[Any]], T]) -> T:
        # Kept only where the server did its part: one that turned read-only is best asked for by its name again.
        is_kept = False
        with self._lock:
            self._busy.add(session)
        try:
            if not session.is_prepared:
                with session.connection.transaction():
                    session.connection.execute(self._prepare)
                session.is_prepared = True
            with session.connection.transaction():
                result = work(session.connection)
            is_kept = True
        except psycopg.Error as error:
            is_kept, session.is_lost = is_about_data(error), session.connection.closed
            raise
        finally:
            with self._lock:
                self._busy.discard(session)
            if is_kept and not session.is_interrupted:
                self._idle.append(session)
            else:
                session.close()
        return result


class Asking:
    """Runs single statements, one at a time, on a session that is kept between them and replaced when it breaks.

    Without a transaction block: the server commits with its answer, and no row stays locked while a worker is busy.
    """

    def __init__(self, database: Database, *, prepare: str = "") -> None:
        """Take the database and what a new connection runs first; nothing is opened before the first question."""
        self._database, self._prepare = database, prepare.encode()
        self._session: Session | None = None
        self._busy: Session | None = None

    def rows(self, statement: str, values: Sequence[Any]) -> list[Any]:
        """Run a statement and return its rows.

        Raises `DatabaseUnavailable`, or the driver's error where the statement itself is refused; after the first it
        is not known whether it was done.
        """
        with self._database.explained():
            session = self._session
            if session is not None:
                try:
                    return self._run(session, statement, values)
                except psycopg.OperationalError:
                    # A server that was restarted since is not worth an error: once more, on a new connection.
                    if session.is_interrupted or not session.connection.closed:
                        raise
            return self._run(self._opened(), statement, values)

    def interrupt(self) -> bool:
        """Make a statement that hangs raise `DatabaseUnavailable`, from another thread; False where there is none."""
        session = self._busy
        if session is not None:
            session.interrupt()
        return session is not None

    def close(self) -> None:
        """Give the connection back. A later question opens it again."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _run(self, session: Session, statement: str, values: Sequence[Any]) -> list[Any]:
        self._busy = session
        try:
            return session.connection.execute(statement.encode(), values).fetchall()
        except psycopg.Error:
            if session.connection.closed or session.is_interrupted:
                self.close()
            raise
        finally:
            self._busy = None

    def _opened(self) -> Session:
        session = Session(self._database)
        session.connection.autocommit = True
        if self._prepare:
            session.connection.execute(self._prepare)
        self._session = session
        return session


def is_about_data(error: psycopg.Error) -> bool:
    """True where Postgres refuses what it was given, and would refuse it tomorrow."""
    return (error.sqlstate or "")[:2] in _DATA_CLASSES


def _pop(sessions: list[Session]) -> Session | None:
    try:
        return sessions.pop()
    except IndexError:
        return None


def _close_all(sessions: list[Session]) -> None:
    while (session := _pop(sessions)) is not None:
        session.close()
