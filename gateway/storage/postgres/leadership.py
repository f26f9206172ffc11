"""Elects one worker of all for a named job, by a lock that lasts as long as its connection; runs no
job.

A process that dies, or that loses its connection to Postgres, loses the job with it; nothing has to
expire.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress

import psycopg

from gateway.errors import DatabaseUnavailable
from gateway.storage.postgres.database import PING_S, SERVING_LIMIT_S, Database, within
from gateway.storage.postgres.locks import TableLock

# The leader's transaction stays open without a statement. Between two of them it has no snapshot,
# so it holds back nothing but its lock.
_STAY = "SET LOCAL idle_in_transaction_session_timeout = 0"


class Leadership:
    """The lock of one job.

    Safe to share between threads; holds one connection while it leads.
    """

    def __init__(self, database: Database, job: TableLock) -> None:
        self._database, self._job = database, job
        self._connection: psycopg.Connection | None = None
        self._lock = threading.Lock()

    def is_mine(self) -> bool:
        """Return True if this worker has the job; take it if it is free.

        Raises `DatabaseUnavailable`.
        """
        with self._lock:
            if self._connection is not None and self._still_leads(self._connection):
                return True
            self._close()
            return self._try_lock()

    def _try_lock(self) -> bool:
        """Try to take the job's lock; return True if this worker leads now."""
        with self._database.explained(), within(SERVING_LIMIT_S), ExitStack() as unless_taken:
            connection = self._database.connect()
            unless_taken.callback(connection.close)
            connection.execute(_STAY)
            try:
                connection.execute(self._job.tried.encode())
            except psycopg.errors.LockNotAvailable:
                return False
            unless_taken.pop_all()
            self._connection = connection
        return True

    def _still_leads(self, connection: psycopg.Connection) -> bool:
        """Return True if the connection answers: then it is the very transaction that holds the
        lock.
        """
        with suppress(psycopg.Error, DatabaseUnavailable), within(PING_S):
            connection.execute("SELECT 1")
            return True
        return False

    def _close(self) -> None:
        """Close the connection, which gives up the job."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
