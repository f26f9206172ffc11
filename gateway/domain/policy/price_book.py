"""Declares the price book's dated entries, and selects the one in force for a deployment or listed
model at a moment; stores none.

Entries are never edited. `services.policy.apply.prices_of` decides between the sources of a price
(policy, override, calibration, GPU, list).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, time
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from gateway.domain.policy.policy import Deployment
from gateway.domain.pricing.pricing import Price, Rate
from gateway.domain.pricing.selfhost import Calibration

EVER = datetime(1970, 1, 1, tzinfo=UTC)  # `valid_from` of a listed price without a stated beginning


class PriceOrigin(StrEnum):
    """The origin of an entry."""

    LIST = "list"  # imported from the built-in list
    OVERRIDE = "override"  # `price add`
    CALIBRATED = "calibrated"  # `engine calibrate --apply`


class ModelKey(NamedTuple):
    """A model as the built-in list names it."""

    provider: str
    model: str


@dataclass(frozen=True, slots=True)
class DailyWindow:
    """A part of each day, in UTC; `until` before `since` crosses midnight."""

    since: time
    until: time

    def holds(self, clock: time) -> bool:
        """Return True if a time of day (UTC) is inside the window."""
        if self.until <= self.since:
            return clock >= self.since or clock < self.until
        return self.since <= clock < self.until


@dataclass(frozen=True, slots=True, kw_only=True)
class Dated:
    """A price from a moment on, only at a part of each day if `daily` is set.

    None: no price any more.
    """

    valid_from: datetime
    price: Price | None
    daily: DailyWindow | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BookEntry:
    """One stored entry.

    An override names a deployment, or a model and perhaps its provider; the list both. A calibrated
    one names a deployment, and its price is computed from `calibration` at the GPU rate of the day.
    """

    entry_id: int
    origin: PriceOrigin
    provider: str | None
    model: str | None
    deployment: str | None
    dated: Dated
    source: str
    author: str
    reason: str
    created_at: datetime
    calibration: Calibration | None = None

    def is_meant_for(self, at: datetime, clock: time) -> bool:
        """Return True if the entry covers a moment and a time of day; a later entry may still
        override it.
        """
        daily = self.dated.daily
        return self.dated.valid_from <= at and (daily is None or daily.holds(clock))


@dataclass(frozen=True, kw_only=True)
class PriceBook:
    """The entries with the rule that selects: of those for a moment the one that began last,
    then the newest.
    """

    entries: tuple[BookEntry, ...] = field(default=())

    def override(self, deployment: Deployment, at: datetime) -> Price | None:
        """Return the price that `price add` set for a deployment: for itself, else for its
        provider's model, else for its model; None if none is set.

        A withdrawn one is skipped.
        """
        for key in (
            (None, None, deployment.name),
            (deployment.provider, deployment.model, None),
            (None, deployment.model, None),
        ):
            found = latest(self._overrides.get(key, ()), at)
            if found is not None and found.dated.price is not None:
                return found.dated.price
        return None

    def calibrated(self, deployment: Deployment, at: datetime) -> Calibration | None:
        """Return the latest calibration of a deployment at a moment; None if it was never
        calibrated.
        """
        own = (
            entry
            for entry in self.entries
            if entry.origin is PriceOrigin.CALIBRATED and entry.deployment == deployment.name
        )
        found = latest(own, at)
        return None if found is None else found.calibration

    def has_listed(self, key: ModelKey) -> bool:
        """Return True once the list's price of this model was imported: the book then replaces
        the bundled list.
        """
        return key in self._listed

    def listed(self, key: ModelKey, at: datetime) -> Price | None:
        """Return the imported list price of a model at a moment."""
        found = latest(self.list_entries(key), at)
        return None if found is None else found.dated.price

    def list_entries(self, key: ModelKey) -> tuple[BookEntry, ...]:
        """Return all imported entries of a model of the list, in their order."""
        return self._listed.get(key, ())

    def history(self, deployment: Deployment, key: ModelKey | None) -> tuple[BookEntry, ...]:
        """Return every entry that ever covered a deployment, by its beginning."""
        own = [
            entry
            for entry in self.entries
            if entry.origin is not PriceOrigin.LIST
            and (
                entry.deployment == deployment.name
                or (
                    entry.model == deployment.model
                    and entry.provider in (None, deployment.provider)
                )
            )
        ]
        listed = () if key is None else self.list_entries(key)
        return tuple(
            sorted((*own, *listed), key=lambda entry: (entry.dated.valid_from, entry.entry_id))
        )

    @cached_property
    def _overrides(
        self,
    ) -> Mapping[tuple[str | None, str | None, str | None], tuple[BookEntry, ...]]:
        """Return the entries of `price add`, in their order, by provider, model and deployment."""
        found: dict[tuple[str | None, str | None, str | None], tuple[BookEntry, ...]] = {}
        for entry in self.entries:
            if entry.origin is PriceOrigin.OVERRIDE:
                key = (entry.provider, entry.model, entry.deployment)
                found[key] = (*found.get(key, ()), entry)
        return found

    @cached_property
    def _listed(self) -> Mapping[ModelKey, tuple[BookEntry, ...]]:
        """Return the imported entries of the price list, in their order, by model."""
        found: dict[ModelKey, tuple[BookEntry, ...]] = {}
        for entry in self.entries:
            if entry.origin is PriceOrigin.LIST:
                key = ModelKey(entry.provider or "", entry.model or "")
                found[key] = (*found.get(key, ()), entry)
        return found


def latest(
    entries: Iterable[BookEntry], at: datetime, *, clock: time | None = None
) -> BookEntry | None:
    """Return the price entry in force at a moment: of those that cover it the one that began last;
    of these the newest.

    `clock` asks for another time of the day in UTC than the moment's own.
    """
    time_of_day = at.astimezone(UTC).time() if clock is None else clock
    meant = [entry for entry in entries if entry.is_meant_for(at, time_of_day)]
    return max(meant, key=lambda entry: (entry.dated.valid_from, entry.entry_id), default=None)


def same_rates(one: Price | None, other: Price | None) -> bool:
    """Return True if two prices charge the same, whatever their sources are called."""
    return _rates(one) == _rates(other)


def _rates(price: Price | None) -> frozenset[Rate] | None:
    """Return a price's rates without its source, for comparison; None without a price."""
    return None if price is None else frozenset(price.rates)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEntry:
    """An entry to add to the book. `source` is the price's own source unless one is given."""

    origin: PriceOrigin
    dated: Dated
    provider: str | None = None
    model: str | None = None
    deployment: str | None = None
    source: str = ""
    calibration: Calibration | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce:
    """A price that a deployment was charged by, with its start."""

    valid_from: datetime
    price_id: str
    source: str
    policy_version: int
