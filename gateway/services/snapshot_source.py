"""Builds the snapshot from what is stored: current policy, its prices, live keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.domain.api_keys import KeyRecord, Pepper
from gateway.domain.policy import PolicyVersion
from gateway.domain.pricing import Price
from gateway.services.policies import BuiltinPrices, PriceShelf, StoredDocument, prices_of, version_of
from gateway.services.ports import Clock
from gateway.services.snapshot import Snapshot


class PolicySource(Protocol):
    """Where policies are stored."""

    def current(self) -> StoredDocument | None:
        """The version in force."""


class KeySource(Protocol):
    """Where keys are stored."""

    def live(self) -> Sequence[KeyRecord]:
        """Keys that are not revoked."""


class Changes(Protocol):
    """Word of changes."""

    def wait(self, timeout_s: float) -> bool:
        """True if something changed within the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSnapshots:
    """A `SnapshotSource` over the stores. Returns the same snapshot while nothing changed."""

    policies: PolicySource
    keys: KeySource
    prices: PriceShelf
    changes: Changes
    peppers: Mapping[str, Pepper]
    builtin: BuiltinPrices
    clock: Clock

    def load(self, before: Snapshot | None) -> Snapshot | None:
        """Read what is stored now. Raises `DatabaseUnavailable`."""
        stored = self.policies.current()
        if stored is None:
            return None
        keys = {record.key_id: record for record in self.keys.live()}
        policy = self._version(stored, before)
        prices = self._prices(policy, before)
        if before is not None and (policy, prices, keys) == (before.policy, before.prices, before.keys):
            return before
        return Snapshot(policy=policy, prices=prices, keys=keys, peppers=self.peppers)

    def wait(self, timeout_s: float) -> None:
        """Return when something changed or the time is over."""
        self.changes.wait(timeout_s)

    def _version(self, stored: StoredDocument, before: Snapshot | None) -> PolicyVersion:
        if before is not None and before.policy.version == stored.version:
            return before.policy
        return version_of(stored)

    def _prices(self, policy: PolicyVersion, before: Snapshot | None) -> Mapping[str, Price]:
        """Prices change by date or time of day without any other change, so they are asked for each time."""
        now = self.clock.now()
        book = self.prices.book(policy.policy.deployments.values())
        prices = prices_of(policy.policy, at=now, builtin=self.builtin, book=book)
        if before is None or before.prices != prices:
            self.prices.ensure(prices, policy_version=policy.version, at=now)
        return prices
