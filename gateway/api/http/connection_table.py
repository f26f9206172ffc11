"""Tracks a process's open connections and, above the cap, closes the oldest one that has not sent a
complete request head.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from gateway.api.http.deadlines import Deadlines, Timed
from gateway.api.http.limits import HttpLimits

# Of the places, for connections that were served and may stay idle. Beyond it each answer ends its
# connection, so that idle ones never take all places.
SHARE_OF_SERVED = 0.75


class TableEntry(Timed, Protocol):
    """One open connection of a caller."""

    def abort(self) -> None:
        """Close the connection at once."""


class ConnectionTable:
    """All open connections. `unserved` are those that have not sent a complete head yet, oldest
    first.

    A served connection is never closed for a new one, so a flood of idle sockets only displaces
    itself; a flood of served ones is not kept. `is_crowded`: so many connections were served that
    none is kept after its answer.
    """

    def __init__(
        self, limits: HttpLimits, *, on_closed: Callable[[str], None] = lambda reason: None
    ) -> None:
        """Make an empty table; `on_closed` is called with the reason of each connection that the
        gateway ends.
        """
        self.limits = limits
        self.deadlines = Deadlines()
        self.open: set[TableEntry] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self._unserved: dict[TableEntry, None] = {}
        self._most_served = SHARE_OF_SERVED * limits.connections
        self.is_crowded = False
        self.count_closed = on_closed

    def admit(self, new: TableEntry) -> None:
        """Add an accepted connection.

        Above the cap the oldest unserved one is closed; that may be the new one.
        """
        self.open.add(new)
        self._unserved[new] = None
        if len(self.open) > self.limits.connections:
            self.count_closed("at_cap")
            next(iter(self._unserved)).abort()

    def keep(self, task: asyncio.Task[None]) -> None:
        """Keep a reference to a task until it is done: the loop itself has only a weak one."""
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def note_served(self, one: TableEntry) -> None:
        """Record that a connection sent a complete head."""
        if one in self._unserved:
            del self._unserved[one]
            self._count_served()

    def forget(self, one: TableEntry) -> None:
        """Remove a closed connection from the table."""
        self.open.discard(one)
        self._unserved.pop(one, None)
        self.deadlines.forget(one)
        self._count_served()

    def _count_served(self) -> None:
        """Update `is_crowded`."""
        self.is_crowded = len(self.open) - len(self._unserved) > self._most_served
