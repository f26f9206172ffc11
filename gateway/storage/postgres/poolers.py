"""Finds out whether an address leads to a pooler in transaction or statement mode, from the
sessions behind it; asks no pooler about itself.

Such a pooler gives each transaction of a client to any free session. A role that was set for one
client then stays for the next, and a prepared statement of one name is another's.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg

LIMIT_S = 5.0  # of the whole test, in seconds
ROUNDS = 3
_PID = "SELECT pg_catalog.pg_backend_pid()"


def shares_sessions(connect: Callable[[], psycopg.Connection[Any]]) -> bool:
    """Return True if two connections, or two transactions of one, have shared a session.

    A session belongs to one connection for as long as that lives, unless a pooler takes it away
    between two transactions. So while the first connection rests, a second one begins a
    transaction: a pooler gives it the session that was used last, which is the first one's. If it
    takes turns, or if other clients took that session, the first connection's next transaction is
    in another session.
    """
    with closing(connect()) as first:
        first.autocommit = True
        own = _pid(first)
        for _ in range(ROUNDS):
            with closing(connect()) as second:
                try:
                    second.execute("SELECT 1")  # begins a transaction first
                    if _pid(second) == own or _pid(first) != own:
                        return True
                except psycopg.errors.ProtocolViolation:
                    return True  # statement mode refuses the transaction
    return False


def _pid(connection: psycopg.Connection[Any]) -> int:
    """Return the process of the session in which a statement runs."""
    row = connection.execute(_PID).fetchone()
    assert row is not None, "a SELECT of one row gives one row"
    return int(row[0])
