"""Connections of one user alone, such as the ledger: kept between questions and replaced when they
break.

Apart from the pool of `Database`: its ping before each use is a round trip of its own, and others
may have it all.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from random import uniform
from time import monotonic, sleep
from typing import Any, TypeVar

import psycopg
from psycopg.errors import DeadlockDetected, LockNotAvailable, QueryCanceled, SerializationFailure

from gateway.errors import DatabaseUnavailable
from gateway.storage.postgres.database import Database, Session, within

T = TypeVar("T")

# Two writers in each other's way: one of them is thrown out and tries again, later by chance than
# the other.
MOST_TRIES = 5
FIRST_PAUSE_S = 0.02
# SQLSTATE classes that speak of the data, not of the server: data exception, integrity, a limit
# that a value exceeds.
_DATA_CLASSES = ("22", "23", "54")


class Sessions:
    """Runs transactions and single statements, each on a session of its own.

    Safe to share between threads.
    """

    def __init__(self, database: Database, *, prepare: str = "", limit_s: float) -> None:
        """Take the database and what a new connection runs first; nothing is opened before the
        first use.

        `limit_s` is how long one transaction or statement may wait for Postgres in all, new tries
        included.
        """
        self._database, self._prepare, self._limit_s = database, prepare.encode(), limit_s
        self._idle: list[Session] = []
        weakref.finalize(self, _close_all, self._idle)

    def transact(self, work: Callable[[Session], T]) -> T:
        """Run `work` in one transaction, committed at its end; again where another writer was in
        the way.

        `work` must be safe to repeat even after it was committed: the server's word on the commit
        may be lost. Raises `DatabaseUnavailable`, or the driver's error where the data themselves
        are refused. Either way nothing is known to be changed.
        """

        def in_a_block(session: Session) -> T:
            with session.transaction():
                return work(session)

        try:
            with self._database.explained(), within(self._limit_s):
                return self._until_ordered(in_a_block)
        except psycopg.Error as error:
            if is_about_data(error):
                raise
            # Whatever it is, it is not about one document: setting those aside would empty the
            # journal for nothing.
            raise DatabaseUnavailable(
                f"Postgres does not take events now: {error} ({error.sqlstate})."
            ) from error

    def rows(self, statement: str, values: Sequence[Any]) -> list[Any]:
        """Run a statement and return its rows.

        Without a transaction block: the server commits with its answer, and no row stays locked
        while a worker is busy. Raises `DatabaseUnavailable`, or the driver's error where the
        statement itself is refused; after the first it is not known whether it was done.
        """
        with self._database.explained(), within(self._limit_s):
            return self._on_a_session(
                lambda session: session.execute(statement.encode(), values).fetchall()
            )

    def close(self) -> None:
        """Close what is idle. A later use opens it again."""
        _close_all(self._idle)

    def _until_ordered(self, work: Callable[[Session], T]) -> T:
        for tries in range(MOST_TRIES - 1):
            try:
                return self._on_a_session(work)
            except (DeadlockDetected, SerializationFailure):
                sleep(uniform(0, FIRST_PAUSE_S * 2**tries))  # noqa: S311 - not a secret
        return self._on_a_session(work)

    def _on_a_session(self, work: Callable[[Session], T]) -> T:
        session = _pop(self._idle)
        if session is not None:
            try:
                return self._run(session, work)
            except psycopg.OperationalError:
                # A server that was restarted since is not worth an error: once more, on a new
                # connection.
                if session.is_lost:
                    self.close()  # the others were made before it, and are as dead
                if not session.is_lost or self._database.left_s(monotonic()) <= 0:
                    raise
        return self._run(self._opened(), work)

    def _opened(self) -> Session:
        session = self._database.connect()
        try:
            session.autocommit = True
            if self._prepare:
                session.execute(self._prepare)
        except BaseException:
            session.close()
            raise
        return session

    def _run(self, session: Session, work: Callable[[Session], T]) -> T:
        # Kept only where the server did its part: one that turned read-only is best asked for by
        # its name again.
        is_kept = False
        try:
            result = work(session)
            is_kept = True
        except psycopg.Error as error:
            session.is_lost = session.closed
            is_kept = is_about_data(error) or isinstance(error, (QueryCanceled, LockNotAvailable))
            raise
        finally:
            if is_kept:
                self._idle.append(session)
            else:
                session.close()
        return result


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
