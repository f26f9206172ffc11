"""Works out the entries that bring the price book up to the bundled list, and the adjustments that
reprice an open month; the callers write them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time
from functools import cached_property
from typing import Protocol

from gateway.domain.policy.policy import Policy
from gateway.domain.policy.price_book import (
    BookEntry,
    Dated,
    ModelKey,
    PriceBook,
    PriceOrigin,
    latest,
    same_rates,
)
from gateway.domain.pricing.price_corrections import Adjustment, PricedEvent, refuse_unless_open
from gateway.domain.pricing.pricing import Price, Rate, cost_nusd, lines
from gateway.errors import NothingFound
from gateway.services.policy.apply import Book, price_of
from gateway.services.ports import BuiltinPrices


class RepriceLedger(Protocol):
    """The events of a month, to be priced again."""

    def state(self, month: date) -> str | None:
        """Return whether a month's ledger is open or closed, as its stored state; None if nothing
        was booked in it.
        """

    def events(
        self, month: date, *, route: str | None, deployment: str | None
    ) -> Iterator[PricedEvent]:
        """Yield a month's charged events, of one route or deployment if given; demo data is left
        out.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class RateChange:
    """One rate that a sync would change. None means that there is no rate before or after."""

    key: ModelKey
    dated: Dated
    rate: Rate
    was: Rate | None
    becomes: Rate | None


def sync_steps(
    key: ModelKey, listed: Sequence[Dated], book: PriceBook, *, now: datetime
) -> tuple[Dated, ...]:
    """Return the entries to add so that the price book agrees with the list about a model.

    The list knows the past only roughly. If the book has no entry for a beginning, the list's date
    is taken. From now on the book follows every change of the list. A price that the list changed
    in place therefore holds from now on, because its true date is unknown. An announced price that
    the list withdrew never comes into force. If the list disagrees about a past that the book has,
    the book stays: those requests were charged as known then.
    """
    entries = book.list_entries(key)
    units = _units(listed)
    known = {entry.dated.valid_from for entry in entries}
    new_past = {unit[0].valid_from for unit in units if unit[0].valid_from <= now} - known
    ahead = {at for at in (*known, *(unit[0].valid_from for unit in units)) if at > now}
    added: list[Dated] = []
    for at in sorted(new_past | {now} | ahead):
        unit = _unit_at(units, at)
        if not _agrees((*entries, *_as_entries(key, added, now)), unit, at):
            added += [replace(dated, valid_from=at) for dated in unit]
    return tuple(added)


def rate_changes(key: ModelKey, added: Sequence[Dated], book: PriceBook) -> Iterator[RateChange]:
    """Yield each rate that a sync's added prices change, compared with the book at their begin."""
    for dated in added:
        was = _by_place(_in_force(book.list_entries(key), dated))
        becomes = _by_place(dated.price)
        for place in [*becomes, *(place for place in was if place not in becomes)]:
            old, new = was.get(place), becomes.get(place)
            if old != new:
                rate = new or old
                assert rate is not None, "a place is that of one of the two"
                yield RateChange(key=key, dated=dated, rate=rate, was=old, becomes=new)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The change that repricing makes for one team and model. `was_nusd` includes earlier
    adjustments.
    """

    team: str
    model: str
    deployment: str
    events: int
    was_nusd: int
    becomes_nusd: int


PolicyOf = Callable[[int], Policy | None]
BookOf = Callable[[Policy], Book]


@dataclass(frozen=True, kw_only=True)
class Repricing:
    """Prices the events of one open month again, each by the current book's price for its moment.

    `policy_of` returns a policy version, None if it cannot be read any more. Events are only read;
    differences become adjustments.
    """

    ledger: RepriceLedger
    policy_of: PolicyOf
    book_of: BookOf
    builtin: BuiltinPrices
    month: date
    route: str | None = None
    deployment: str | None = None

    def require_open(self) -> None:
        """Check that the month may still change. Raises `NothingFound` or `OperatorError` if
        not.
        """
        state = self.ledger.state(self.month)
        if state is None:
            raise NothingFound(
                f"There is nothing in {self.month:%Y-%m}: no event was booked in it."
            )
        refuse_unless_open(self.month, state)

    def differences(self) -> tuple[list[Difference], Mapping[str, int]]:
        """Return the cost changes by team and model, and the number of unchanged events by
        reason. Raises `NothingFound` if no event has the named route and deployment.
        """
        found: dict[tuple[str, str, str], list[int]] = {}
        kept: Counter[str] = Counter()
        for event in self._events():
            verdict = self._verdict(event)
            if isinstance(verdict, str):
                kept[verdict] += 1
                continue
            _, becomes = verdict
            sums = found.setdefault((event.team, event.model, event.deployment), [0, 0, 0])
            sums[0] += 1
            sums[1] += _cost(event)
            sums[2] += becomes
        differences = [
            Difference(
                team=team,
                model=model,
                deployment=name,
                events=n,
                was_nusd=was,
                becomes_nusd=becomes,
            )
            for (team, model, name), (n, was, becomes) in sorted(found.items())
        ]
        if not (differences or kept) and (self.route or self.deployment):
            filters = {"route": self.route, "deployment": self.deployment}
            named = " and ".join(f"{kind} '{name}'" for kind, name in filters.items() if name)
            raise NothingFound(
                f"No event of {self.month:%Y-%m} has {named}. See: tollgate report spend "
                f"--month {self.month:%Y-%m} --by route,deployment"
            )
        return differences, kept

    def adjustments(self) -> Iterator[Adjustment]:
        """Yield the adjustments to post, one for each event with a changed cost."""
        for event in self._events():
            verdict = self._verdict(event)
            if not isinstance(verdict, str):
                price, becomes = verdict
                yield Adjustment(
                    event=event,
                    amount_nusd=becomes - _cost(event),
                    reason=f"repriced from {event.price_id} to {price.price_id} ({price.source})",
                )

    def _events(self) -> Iterator[PricedEvent]:
        """Return the month's charged events that are to be repriced: all, or those of one route or
        deployment.
        """
        return self.ledger.events(self.month, route=self.route, deployment=self.deployment)

    def _verdict(self, event: PricedEvent) -> tuple[Price, int] | str:
        """Return an event's new price and cost, or the reason why its cost stays."""
        if event.cost_nusd is None:
            return "unknown usage"
        if event.is_corrected:
            return "corrected otherwise"
        price = self._current_price(event)
        if price is None:
            return "no price at their time"
        try:
            of_tier = price.for_tier(event.service_tier)
            if event.has_stated_writes:
                of_tier = of_tier.with_stated_writes
            becomes = cost_nusd(lines(event.usage, of_tier))
        except ValueError:  # the price does not cover a kind of tokens or a service tier
            return "not covered by the price at their time"
        return "same cost" if becomes == _cost(event) else (price, becomes)

    def _current_price(self, event: PricedEvent) -> Price | None:
        """Return the price that the current book has for an event's moment, at the place that its
        answer stated.
        """
        policy, book = self._policy_and_book(event.policy_version)
        if policy is None or book is None or event.deployment not in policy.deployments:
            return None
        price = price_of(
            policy.deployments[event.deployment],
            at=event.occurred_at,
            builtin=self.builtin,
            book=book,
        )
        return None if price is None else price.at(event.stated_geo)

    def _policy_and_book(self, version: int) -> tuple[Policy | None, Book | None]:
        """Return a policy version and its part of the price book, each read once."""
        if version not in self._versions:
            policy = self.policy_of(version)
            self._versions[version] = (policy, None if policy is None else self.book_of(policy))
        return self._versions[version]

    @cached_property
    def _versions(self) -> dict[int, tuple[Policy | None, Book | None]]:
        """Return the cache of the policy versions that were read so far, each with its part of the
        price book.
        """
        return {}


def _cost(event: PricedEvent) -> int:
    """Return an event's current cost: the booked one plus earlier adjustments."""
    assert event.cost_nusd is not None, "only a known cost can change"
    return event.cost_nusd + event.adjusted_nusd


def _units(listed: Sequence[Dated]) -> list[list[Dated]]:
    """Group list prices that begin together: the price of the day, then its time-of-day windows."""
    units: list[list[Dated]] = []
    for dated in listed:
        if units and units[-1][0].valid_from == dated.valid_from:
            units[-1].append(dated)
        else:
            units.append([dated])
    return units


def _unit_at(units: Sequence[Sequence[Dated]], at: datetime) -> Sequence[Dated]:
    """Return the list's group of prices in force at a moment; empty before its first beginning."""
    begun = [unit for unit in units if unit[0].valid_from <= at]
    return begun[-1] if begun else [Dated(valid_from=at, price=None)]


def _as_entries(key: ModelKey, added: Sequence[Dated], now: datetime) -> Iterator[BookEntry]:
    """Yield prices to add as entries of the book: later ones must be compared with the changes of
    earlier ones.
    """
    for number, dated in enumerate(added):
        yield BookEntry(
            entry_id=2**62 + number,
            origin=PriceOrigin.LIST,
            provider=key.provider,
            model=key.model,
            deployment=None,
            dated=dated,
            source="",
            author="",
            reason="",
            created_at=now,
        )


def _agrees(entries: Sequence[BookEntry], unit: Sequence[Dated], at: datetime) -> bool:
    """Return True if the book charges the same as the unit at every time of the day."""
    windows = [
        dated.daily
        for dated in (*unit, *(entry.dated for entry in entries))
        if dated.daily is not None
    ]
    edges = {time(), *(edge for window in windows for edge in (window.since, window.until))}
    return all(
        same_rates(_price_in(latest(entries, at, clock=edge)), _price_of_unit(unit, clock=edge))
        for edge in edges
    )


def _price_of_unit(unit: Sequence[Dated], *, clock: time) -> Price | None:
    """Return the unit's price at a time of day: windows follow the price of the day and override
    it.
    """
    return [dated for dated in unit if dated.daily is None or dated.daily.holds(clock)][-1].price


def _in_force(entries: Sequence[BookEntry], added: Dated) -> Price | None:
    """Return the book's price when an added price begins, for the whole day or its window."""
    if added.daily is None:
        return _price_in(
            latest([entry for entry in entries if entry.dated.daily is None], added.valid_from)
        )
    return _price_in(latest(entries, added.valid_from, clock=added.daily.since))


def _price_in(entry: BookEntry | None) -> Price | None:
    """Return the price of an entry in the book; None without an entry, or if the entry withdraws
    the price.
    """
    return None if entry is None else entry.dated.price


def _by_place(price: Price | None) -> dict[tuple[str, str | None, int], Rate]:
    """Return a price's rates by kind, service tier and context tier."""
    rates = () if price is None else price.rates
    return {(rate.kind, rate.service_tier, rate.from_input_tokens): rate for rate in rates}
