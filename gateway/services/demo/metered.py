"""Adds up the metered usage and cost of generated events by day and deployment: the basis of the
demo's invoices.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date, timedelta
from uuid import UUID

from gateway.domain.ids import day_of
from gateway.domain.ledger.usage_event import Outcome, UsageEvent
from gateway.domain.pricing.pricing import Line
from gateway.domain.pricing.tokens import TokenKind, UsageSource

Key = tuple[date, str]  # a day and a deployment


@dataclass(slots=True)
class Amount:
    """Tokens or calls of one kind, and their cost in nano-dollars."""

    tokens: int = 0
    nusd: int = 0

    def add(self, tokens: int, nusd: int) -> None:
        """Add tokens and their cost."""
        self.tokens += tokens
        self.nusd += nusd


@dataclass(frozen=True, slots=True)
class NotedAttempt:
    """One attempt that a planted gap may be about."""

    request_id: UUID
    lines: tuple[Line, ...]


@dataclass(slots=True)
class Metered:
    """The usage of one deployment on one day.

    `aborted` is the day's first attempt whose caller left, `over_midnight` an attempt that began on
    the day and ended after it; each None if there was none.
    """

    requests: int = 0
    unknown: int = 0
    amounts: dict[TokenKind, Amount] = field(default_factory=dict)
    aborted: NotedAttempt | None = None
    over_midnight: NotedAttempt | None = None

    @property
    def nusd(self) -> int:
        """Return the day's cost in nano-dollars."""
        return sum(amount.nusd for amount in self.amounts.values())

    def add_lines(self, lines: Iterable[Line], *, times: int = 1) -> None:
        """Add priced lines; with `times` -1 take them away."""
        for line in lines:
            amount = self.amounts.setdefault(line.kind, Amount())
            amount.add(times * line.tokens, times * line.cost_nusd)

    def add(self, other: Metered) -> None:
        """Add the usage of other attempts of the same day and deployment."""
        self.requests += other.requests
        self.unknown += other.unknown
        for kind, amount in other.amounts.items():
            self.amounts.setdefault(kind, Amount()).add(amount.tokens, amount.nusd)
        self.aborted = self.aborted or other.aborted
        self.over_midnight = self.over_midnight or other.over_midnight


def metered(events: Iterable[UsageEvent]) -> dict[Key, Metered]:
    """Return the usage of some events, by the day of the request and the deployment."""
    found: dict[Key, Metered] = {}
    # Generated events share their lines: each is added once, times its events.
    priced: dict[tuple[Key, int], list[tuple[Line, ...]]] = {}
    for event in events:
        lines, started_at = event.lines, event.started_at
        key = (day_of(event.request_id), event.deployment)
        one = found.get(key)
        if one is None:
            one = found[key] = Metered()
        if event.usage_source is UsageSource.UNKNOWN:
            one.unknown += 1
        elif event.usage_source is not UsageSource.NONE:
            one.requests += 1
            priced.setdefault((key, id(lines)), []).append(lines)
        if event.outcome is Outcome.CLIENT_GONE and one.aborted is None:
            one.aborted = NotedAttempt(event.request_id, lines)
        if lines and (started_at + timedelta(seconds=event.duration_s)).day != started_at.day:
            one.over_midnight = NotedAttempt(event.request_id, lines)
    for (key, _), alike in priced.items():
        found[key].add_lines(alike[0], times=len(alike))
    return found


def add_up(total: dict[Key, Metered], part: dict[Key, Metered]) -> None:
    """Add a slice's usage to the total."""
    for key, one in part.items():
        total.setdefault(key, Metered()).add(one)
