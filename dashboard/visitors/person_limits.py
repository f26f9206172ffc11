"""Limits a signed-in person's tabs, and the pages that are drawn for the person at once: one person
with a dozen tabs of wide questions made everybody else's pages wait.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

MOST_TABS = 40  # each is a WebSocket, a session in memory and four descriptors
PAGES_AT_ONCE = 3
PATIENCE_S = 60.0


class TooManyPages(Exception):
    """A page waited too long for the same person's other pages."""


class Tabs:
    """The open tabs by person."""

    def __init__(self) -> None:
        """Begin with none."""
        self._open: Counter[str] = Counter()

    def enter(self, person: str) -> bool:
        """Count a tab of a person; return False if there are too many."""
        if self._open[person] >= MOST_TABS:
            return False
        self._open[person] += 1
        return True

    def leave(self, person: str) -> None:
        """Count a closed tab."""
        self._open[person] -= 1
        if not self._open[person]:
            del self._open[person]


class PageTurns:
    """The pages that are drawn now, by person. Streamlit draws each in a thread of its own."""

    def __init__(self) -> None:
        """Begin with none."""
        self._drawn: Counter[str] = Counter()
        self._changed = threading.Condition()

    @contextmanager
    def turn(self, person: str | None, *, patience_s: float = PATIENCE_S) -> Iterator[None]:
        """Wait until fewer than `PAGES_AT_ONCE` of the person's pages are drawn, and draw one.

        Without sign-in (`person` is None) nothing is counted. Raises `TooManyPages`.
        """
        if person is None:
            yield
            return
        with self._changed:
            has_room = self._changed.wait_for(
                lambda: self._drawn[person] < PAGES_AT_ONCE, patience_s
            )
            if not has_room:
                raise TooManyPages
            self._drawn[person] += 1
        try:
            yield
        finally:
            with self._changed:
                self._drawn[person] -= 1
                if not self._drawn[person]:
                    del self._drawn[person]
                self._changed.notify_all()


# Of this process, and in none of Streamlit's caches: those forget.
TABS, TURNS = Tabs(), PageTurns()
