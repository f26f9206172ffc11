"""Sums the used tokens of one request's attempts, notes whether any may be charged, and calls
listeners once when the request and its attempts have ended.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.domain.ledger.usage_event import UsageEvent

OnSettled = Callable[[UsageEvent | None], None]
"""Called once when an attempt ends: with its event, or None if it was never sent."""


class RequestTotals:
    """Adds up a request's attempts, and calls the listeners in `on_end` once, when nothing more can
    come.

    An answer may continue long after its request, so the last attempt may be settled after `close`.
    """

    __slots__ = ("_in_flight", "_is_closed", "on_end", "used_tokens", "was_charged")

    def __init__(self) -> None:
        """Start without attempts, and without listeners for the request's end."""
        self.on_end: list[Callable[[RequestTotals], None]] = []
        self.used_tokens: int | None = 0  # None as soon as one attempt's usage is unknown
        self.was_charged = False  # it cost something, or may have
        self._in_flight = 0
        self._is_closed = False

    def note_attempt_started(self) -> None:
        """Count another attempt of the request in flight."""
        self._in_flight += 1

    def note_settled(self, event: UsageEvent | None) -> None:
        """Add an ended attempt to the sums; `event` is None if it was never sent."""
        self._in_flight -= 1
        if event is not None:
            self.was_charged = self.was_charged or event.cost_nusd != 0
            used_tokens = event.used_tokens
            if used_tokens is None or self.used_tokens is None:
                self.used_tokens = None
            else:
                self.used_tokens += used_tokens
        self._end_if_over()

    def close(self) -> None:
        """Record that the request starts no further attempt."""
        self._is_closed = True
        self._end_if_over()

    def _end_if_over(self) -> None:
        """Call the listeners once, if no attempt is in flight and none can start."""
        if self._is_closed and not self._in_flight:
            listeners, self.on_end = self.on_end, []
            for listener in listeners:
                listener(self)
