"""Adds up facts for one question in plain Python: the oracle of the reports of sums.

Amounts are exact fractions of nano-dollars. Nothing here is taken from `gateway.reports`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from fractions import Fraction
from itertools import product
from math import prod

from tests.reports.oracle.raw_ledger import Books, Fact

NONE = "unallocated"
TIMES = ("hour", "day", "week", "month", "quarter")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question: a month, a range of days, or (neither) all months; splits and filters."""

    month: date | None = None
    days: tuple[date, date] | None = None
    by: tuple[str, ...] = ()
    where: Mapping[str, str] = field(default_factory=dict)
    currency: str | None = None
    kinds: frozenset[str] = frozenset({"event", "adjustment"})  # of facts

    @property
    def names_cost_centres(self) -> bool:
        """Return True if money is shared by cost centres."""
        return "cost_centre" in self.by or "cost_centre" in self.where


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A fact in one row: how often its money counts there, and how often its counts do."""

    fact: Fact
    money: Fraction
    times: int


Rows = Mapping[tuple[str, ...], Sequence[Part]]


def is_idle_unknown(books: Books, asked: Asked, whole: Sequence[Part]) -> bool:
    """Return True if own engines worked in the asked time, and no hour of theirs has a bill."""
    bills = [
        hour
        for hour, deployment in books.billed_hours
        if asked.where.get("deployment", deployment) == deployment
        and asked.where.get("day", f"{hour:%Y-%m-%d}") == f"{hour:%Y-%m-%d}"
        and (asked.month is None or hour.date().replace(day=1) == asked.month)
        and (asked.days is None or asked.days[0] <= hour.date() <= asked.days[1])
    ]
    return not bills and any(p.fact.names.get("destination") == "self-hosted" for p in whole)


def rows_of(books: Books, asked: Asked, *, overlap: bool = False) -> Rows:
    """Return the parts of each row; those of the total are in the row without names, `()`.

    If they `overlap`, the line `unallocated` of a split by tag has only facts without a tag.
    """
    rows: dict[tuple[str, ...], list[Part]] = defaultdict(list)
    for whole in chosen(books, asked):
        rows[()].append(whole[1])
        if asked.by:
            for names, part in _parts(whole, asked, overlap=overlap):
                rows[names].append(part)
    return rows


def chosen(books: Books, asked: Asked) -> Iterator[tuple[str | None, Part]]:
    """Yield the facts of a question, each once for each of its cost centres if it names any."""
    for fact in books.facts:
        if (
            fact.kind in asked.kinds
            and _is_in_time(fact, asked)
            and all(
                _has(fact, name, value, asked)
                for name, value in asked.where.items()
                if name != "cost_centre"
            )
        ):
            yield from _shared(books, fact, asked)


def _shared(books: Books, fact: Fact, asked: Asked) -> Iterator[tuple[str | None, Part]]:
    day = fact.at.astimezone(UTC).date()
    rate = Fraction(1) if asked.currency is None else books.per_usd(asked.currency, day)
    own = fact.names.get("cost_centre")
    if not asked.names_cost_centres:
        yield own, Part(fact=fact, money=rate, times=1)
        return
    shares = books.shares(fact.names.get("team", ""), day)
    largest = min(shares, key=lambda one: (-shares[one], one)) if shares else None
    if own is None or own != largest:
        shares = {own or NONE: Fraction(1)}
    for centre, share in shares.items():
        if asked.where.get("cost_centre", centre) == centre:
            is_own = centre == (own or NONE)
            yield centre, Part(fact=fact, money=share * rate, times=int(is_own))


def _parts(
    whole: tuple[str | None, Part], asked: Asked, *, overlap: bool
) -> Iterator[tuple[tuple[str, ...], Part]]:
    centre, part = whole
    choices = [
        [(centre or NONE, 1)] if name == "cost_centre" else values(part.fact, name, asked)
        for name in asked.by
    ]
    if overlap:
        choices = [[(one, times) for one, times in found if times > 0] for found in choices]
    for pairs in product(*choices):
        factor = prod(times for _, times in pairs)
        yield (
            tuple(value for value, _ in pairs),
            replace(part, money=part.money * factor, times=part.times * factor),
        )


def values(fact: Fact, name: str, asked: Asked) -> list[tuple[str, int]]:
    """Return the rows of a split that a fact is in, and how often it counts there."""
    if name == "tag":
        pairs = [(f"{key}={value}", 1) for key, value in fact.tags.items()]
        rest = 1 - len(pairs)
        return [*pairs, (NONE, rest)] if rest else pairs
    if name.startswith("tag:"):
        return [(fact.tags.get(name.removeprefix("tag:"), NONE), 1)]
    if name in TIMES:
        is_posted = name in ("month", "quarter") and asked.days is None
        moment = datetime(fact.posted.year, fact.posted.month, 1, tzinfo=UTC)
        return [(label(name, moment if is_posted else fact.at.astimezone(UTC)), 1)]
    return [(fact.names.get(name, NONE), 1)]


def label(name: str, moment: datetime) -> str:
    """Return the label of a time."""
    if name == "week":
        year, week, _ = moment.isocalendar()
        return f"{year}-W{week:02}"
    if name == "quarter":
        return f"{moment.year}-Q{(moment.month + 2) // 3}"
    shapes = {"hour": "%Y-%m-%dT%H:00Z", "day": "%Y-%m-%d", "month": "%Y-%m"}
    return moment.strftime(shapes[name])


def _has(fact: Fact, name: str, value: str, asked: Asked) -> bool:
    if name == "tag":
        pairs = [f"{key}={one}" for key, one in fact.tags.items()]
        return value in pairs if value != NONE else not pairs
    return value in [found for found, _ in values(fact, name, asked)]


def _is_in_time(fact: Fact, asked: Asked) -> bool:
    if asked.days is not None:
        return asked.days[0] <= fact.at.astimezone(UTC).date() <= asked.days[1]
    return asked.month is None or fact.posted == asked.month


def counted(parts: Iterable[Part], name: str, *, is_reported: bool = False) -> int | None:
    """Return the sum of a count. None if it `is_reported` by upstreams, and by none of these."""
    found = [
        (part.fact.counts[name], part.times)
        for part in parts
        if name in part.fact.counts and part.times
    ]
    if is_reported and not found:
        return None
    return sum(count * times for count, times in found)


def amount(parts: Iterable[Part], name: str) -> Fraction:
    """Return the sum of an amount in nano-units of the currency; 0 without any."""
    return sum(
        (part.fact.nusd[name] * part.money for part in parts if name in part.fact.nusd),
        Fraction(0),
    )


def known(parts: Sequence[Part], name: str = "cost_usd") -> Fraction | None:
    """Return a sum of costs; None if there are events, and none of them has a known cost."""
    events = [part for part in parts if part.fact.kind == "event"]
    if events and not any(name in part.fact.nusd for part in events):
        return None
    return amount(parts, name)


def total(parts: Sequence[Part]) -> Fraction | None:
    """Return the cost and the adjustments; None if there are events and nothing is known."""
    cost = known(parts)
    if cost is None and not any(part.fact.kind == "adjustment" for part in parts):
        return None
    return (cost or 0) + amount(parts, "adjustments_usd")
