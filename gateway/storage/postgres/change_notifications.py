"""Waits over LISTEN until Postgres notifies of a changed policy, key, price or ejection; does not
read the change.

A notification can be lost, so callers also poll after a while.
"""

from __future__ import annotations

from typing import Any

import psycopg

from gateway.storage.postgres.database import PING_S, Database, within

CHANNEL = "tollgate_changes"


class ChangeFeed:
    """One connection that listens. For one thread at a time."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: psycopg.Connection[Any] | None = None

    def wait(self, timeout_s: float) -> bool:
        """Wait for a change; return True as soon as a notification came, False after
        `timeout_s` seconds without.

        Returns True also right after connecting, since earlier changes may have been missed. Raises
        `DatabaseUnavailable` if the connection is lost or cannot be made; the next call tries
        again.
        """
        try:
            with self._database.explained():
                if self._connection is None:
                    self._connection = self._listen()
                    return True
                if any(True for _ in self._connection.notifies(timeout=timeout_s, stop_after=1)):
                    return True
                with within(PING_S):  # a dead connection would never deliver anything
                    self._connection.execute("SELECT 1")
                return False
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop listening. A later `wait` starts again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _listen(self) -> psycopg.Connection[Any]:
        """Return a new connection that listens for changes; close it on any error."""
        connection = self._database.connect()
        try:
            connection.autocommit = True
            connection.execute(f"LISTEN {CHANNEL}")
        except BaseException:
            connection.close()
            raise
        return connection
