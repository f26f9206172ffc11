"""Runs transactions and statements on private Postgres connections of one component, which are kept
between calls and replaced when they break.

The ledger, for example, has its own. They are apart from the pool of `Database`: its ping before
each use is one more round trip, and other components may use it up.
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

# Two writers can block each other: Postgres cancels one of them, which tries again after a random
# pause.
MOST_TRIES = 5
FIRST_PAUSE_S = 0.02
# SQLSTATE classes about the data, not about the server: data exception, integrity, a limit that a
# value exceeds.
_DATA_CLASSES = ("22", "23", "54")


class Sessions:
    """A set of sessions that runs transactions and single statements, each on its own session.

    Safe to share between threads.
    """

    def __init__(self, database: Database, *, prepare: str = "", limit_s: float) -> None:
        """Take the database and the first statement of a new connection; the first use opens one.

        `limit_s` is the total time that one transaction or statement may wait for Postgres, retries
        included.
        """
        self._database, self._prepare, self._limit_s = database, prepare.encode(), limit_s
        self._idle: list[Session] = []
        weakref.finalize(self, _close_all, self._idle)

    def transact(self, work: Callable[[Session], T]) -> T:
        """Run `work` in one transaction and commit it; retry if another writer was in the way.

        `work` must be safe to repeat even after its commit: the server's answer to the commit may
        be lost. Raises `DatabaseUnavailable`, or the driver's error if the data itself is refused.
        In both cases no change is confirmed.
        """

        def in_a_block(session: Session) -> T:
            with session.transaction():
                return work(session)

        try:
            with self._database.explained(), within(self._limit_s):
                return self._retry_conflicts(in_a_block)
        except psycopg.Error as error:
            if is_about_data(error):
                raise
            # This error is not about one document: setting documents aside would empty the journal
            # for nothing.
            raise DatabaseUnavailable(
                f"Postgres does not take events now: {error} ({error.sqlstate})."
            ) from error

    def rows(self, statement: str, values: Sequence[Any]) -> list[Any]:
        """Run a statement and return its rows.

        There is no transaction block: the server commits with its answer, and no row stays locked
        while a worker is busy. Raises `DatabaseUnavailable` if the outcome is unknown, or the
        driver's error if the statement itself is refused.
        """
        with self._database.explained(), within(self._limit_s):
            return self._on_a_session(
                lambda session: session.execute(statement.encode(), values).fetchall()
            )

    def close(self) -> None:
        """Close the idle connections. A later use opens them again."""
        _close_all(self._idle)

    def _retry_conflicts(self, work: Callable[[Session], T]) -> T:
        """Run `work` on a session, and again after a pause if it conflicts with another
        transaction.
        """
        for tries in range(MOST_TRIES - 1):
            try:
                return self._on_a_session(work)
            except (DeadlockDetected, SerializationFailure):
                sleep(uniform(0, FIRST_PAUSE_S * 2**tries))  # noqa: S311 - not a secret
        return self._on_a_session(work)

    def _on_a_session(self, work: Callable[[Session], T]) -> T:
        """Run `work` on an idle session, or on a new one if none is idle or the server ended it."""
        session = _pop_or_none(self._idle)
        if session is not None:
            try:
                return self._run_and_keep(session, work)
            except psycopg.OperationalError:
                # A restarted server is not an error: try once more on a new connection.
                if session.is_lost:
                    self.close()  # the others are older, and so are broken too
                if not session.is_lost or self._database.left_s(monotonic()) <= 0:
                    raise
        return self._run_and_keep(self._open_session(), work)

    def _open_session(self) -> Session:
        """Open a session in autocommit mode, with its prepared settings."""
        session = self._database.connect()
        try:
            session.autocommit = True
            if self._prepare:
                session.execute(self._prepare)
        except BaseException:
            session.close()
            raise
        return session

    def _run_and_keep(self, session: Session, work: Callable[[Session], T]) -> T:
        """Run `work` on a session; keep the session for reuse only if the server did its part."""
        # Keep the session only if the server did its part: after a switch to read-only, a new
        # connection finds the primary by name.
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
    """Return True if Postgres refuses the data itself, so that a retry would fail too."""
    return (error.sqlstate or "")[:2] in _DATA_CLASSES


def _pop_or_none(sessions: list[Session]) -> Session | None:
    """Take one session from a list that other threads use too, None if it is empty."""
    try:
        return sessions.pop()
    except IndexError:
        return None


def _close_all(sessions: list[Session]) -> None:
    """Close all sessions of a list that other threads use too, and empty it."""
    while (session := _pop_or_none(sessions)) is not None:
        session.close()
