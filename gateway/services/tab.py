"""What one request runs up over all its attempts, for those who must hear when it is over."""

from __future__ import annotations

from typing import Protocol

from gateway.domain.usage_event import UsageEvent


class OnEnd(Protocol):
    """Hears of the end of a request, once. `used_tokens` is None where it is unknown."""

    def __call__(self, *, used_tokens: int | None, was_charged: bool) -> None:
        """`was_charged`: it cost something or may have."""


class Follower(Protocol):
    """Follows attempts from their intent to their settlement; a tab is one."""

    def begin(self) -> None:
        """An attempt is under way."""

    def settle(self, event: UsageEvent) -> None:
        """It is settled."""

    def close(self) -> None:
        """No attempt will begin any more."""


class Tab:
    """Open until `close`, and then until the last attempt is settled: an answer may go on long after its request."""

    __slots__ = ("_is_closed", "_on_end", "_under_way", "_used_tokens", "_was_charged")

    def __init__(self, *on_end: OnEnd) -> None:
        self._on_end: tuple[OnEnd, ...] = on_end
        self._under_way = 0
        self._is_closed = self._was_charged = False
        self._used_tokens: int | None = 0

    def tell(self, on_end: OnEnd) -> None:
        """One more who must hear."""
        self._on_end += (on_end,)

    def begin(self) -> None:
        """An attempt is under way."""
        self._under_way += 1

    def settle(self, event: UsageEvent) -> None:
        """One that was under way is settled."""
        self._under_way -= 1
        self._was_charged = self._was_charged or event.cost_nusd != 0
        usage = event.usage
        if event.cost_nusd is None or self._used_tokens is None:
            self._used_tokens = None
        else:
            self._used_tokens += (usage.input_tokens or 0) + (usage.output_tokens or 0)
        self._end_if_over()

    def close(self) -> None:
        """No attempt will begin any more."""
        self._is_closed = True
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self._is_closed and not self._under_way:
            listeners, self._on_end = self._on_end, ()
            for hear in listeners:
                hear(used_tokens=self._used_tokens, was_charged=self._was_charged)
