"""Declares a closed version of a month and the parts of its hash; hashes the parts together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from hashlib import sha256

from gateway.domain.calendar_months import next_month


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedPart:
    """One kind of facts of a month: their number, and the SHA-256 over all of them, in hex."""

    name: str
    rows: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthClose:
    """A version of a month, as it was closed. `month` is the first day.

    `events` and `adjustments` are counts. `total_usd` includes adjustments, not holds. `author` is
    the database login; `operator` is the person, if known. `accepted` has the reason for each open
    check.
    """

    month: date
    version: int
    sha256: str
    events: int
    adjustments: int
    total_usd: Decimal
    closed_at: datetime
    author: str
    operator: str | None
    accepted: dict[str, str]
    parts: tuple[HashedPart, ...]
    is_reopened: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedMonth:
    """A closed month with the hash of its facts as they are now. `events`, `adjustments` and
    `total_usd` are its figures by the same facts.
    """

    close: MonthClose
    recomputed: tuple[HashedPart, ...]
    events: int
    adjustments: int
    total_usd: Decimal

    @property
    def sha256(self) -> str:
        """Return the hash of the facts as they are now, in hex."""
        return month_sha256(self.recomputed)

    @property
    def differing(self) -> Sequence[str]:
        """Return the names of the parts that differ from those that were closed, and `figures` if
        the counts or the total of the close are not those of its facts.
        """
        stored = {part.name: part for part in self.close.parts}
        found = [part.name for part in self.recomputed if stored.get(part.name) != part]
        closed = (self.close.events, self.close.adjustments, self.close.total_usd)
        if closed != (self.events, self.adjustments, self.total_usd):
            found.append("figures")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class BilledSpan:
    """The hours of a month that a policy declares a deployment's GPUs are paid for, `end`
    exclusive.
    """

    deployment: str
    begin: datetime
    end: datetime


def month_sha256(parts: Iterable[HashedPart]) -> str:
    """Return the hash of a month: SHA-256 over a line for each part, `name rows sha256`."""
    lines = "".join(f"{part.name} {part.rows} {part.sha256}\n" for part in parts)
    return sha256(lines.encode()).hexdigest()


def month_moments(month: date) -> tuple[datetime, datetime]:
    """Return the moments at which a month begins and ends, in UTC."""
    return (
        datetime.combine(month, time(), UTC),
        datetime.combine(next_month(month), time(), UTC),
    )
