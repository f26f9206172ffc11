"""Tracks a process's open connections and chooses the one that makes room for a new one above the
cap: a connection that is owed no answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from gateway.api.http.deadlines import Deadlines, Timed
from gateway.api.http.limits import HttpLimits

# Of the places, for connections whose first head is on its way, before they displace each other: a
# flood of silent sockets takes no place of an authenticated caller.
SHARE_OF_UNASKED = 0.1
# Idle connections that are looked at for each new one. More of them have a request on its way only
# while the loop is late.
MOST_TRIES = 16

Queue = dict["TableEntry", None]  # oldest first


class TableEntry(Timed, Protocol):
    """One open connection of a caller. `queue` belongs to `ConnectionTable`; None at first.

    `is_authenticated`: it brought a key that was accepted.
    """

    queue: Queue | None
    is_authenticated: bool

    def abort(self) -> None:
        """Close the connection at once."""

    def may_end(self) -> bool:
        """Return True if its end loses no byte of a request, and no byte of an answer to an
        authenticated caller.
        """


class ConnectionTable:
    """All open connections, and three queues of those that are owed no answer.

    At the cap they make room in this order: answered connections without an accepted key, those
    whose head is on its way if they are many, idle ones with an accepted key; of each the oldest
    first. A connection in no queue has a request in flight and is never closed for a new one.
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
        self._unasked: Queue = {}
        self._idle_strangers: Queue = {}
        self._idle_callers: Queue = {}
        self.count_closed = on_closed

    def admit(self, new: TableEntry) -> None:
        """Add an accepted connection. Above the cap one is closed; that may be the new one."""
        self.open.add(new)
        new.queue = self._unasked
        self._unasked[new] = None
        if len(self.open) > self.limits.connections:
            self.count_closed("at_cap")
            self._least_needed().abort()

    def keep(self, task: asyncio.Task[None]) -> None:
        """Keep a reference to a task until it is done: the loop itself has only a weak one."""
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def note_asked(self, one: TableEntry) -> None:
        """Record that a connection sent a complete head, so it is owed an answer."""
        queue = one.queue
        if queue is not None:
            del queue[one]
            one.queue = None

    def note_answered(self, one: TableEntry) -> None:
        """Record that a connection has all of its answers, so it may make room for a new one."""
        if one.queue is None:
            one.queue = self._idle_callers if one.is_authenticated else self._idle_strangers
            one.queue[one] = None

    def note_begun(self, one: TableEntry) -> None:
        """Record a part of a later head: an authenticated caller's request is in flight, and a
        stranger's connection counts as new.
        """
        self.note_asked(one)
        if not one.is_authenticated:
            one.queue = self._unasked
            self._unasked[one] = None

    def forget(self, one: TableEntry) -> None:
        """Remove a closed connection from the table."""
        self.open.discard(one)
        self.note_asked(one)
        self.deadlines.forget(one)

    def _least_needed(self) -> TableEntry:
        """Return the connection that makes room for the newest one."""
        found = self._longest_idle(self._idle_strangers)
        if found is None and len(self._unasked) <= 1 + SHARE_OF_UNASKED * self.limits.connections:
            found = self._longest_idle(self._idle_callers)
        return next(iter(self._unasked)) if found is None else found

    def _longest_idle(self, queue: Queue) -> TableEntry | None:
        """Return the longest idle connection that may end, None if there is none among the first.
        The others go to the queue's end: the loop reads or writes their bytes next.
        """
        for _ in range(min(MOST_TRIES, len(queue))):
            one = next(iter(queue))
            if one.may_end():
                return one
            del queue[one]
            queue[one] = None
        return None
