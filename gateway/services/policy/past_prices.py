"""Looks up the prices of a policy's deployments at past moments, as if the policy had been in force
then, for a replay.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from gateway.domain.budgets.budgets import EPOCH
from gateway.domain.policy.policy import Policy
from gateway.domain.pricing.pricing import Price
from gateway.services.policy.apply import Book, prices_of
from gateway.services.ports import BuiltinPrices

_HOUR_MS, _MINUTE_MS = 3_600_000, 60_000


class PastPrices:
    """Prices by deployment at a moment, looked up once an hour, and each minute in an hour with a
    change.

    The policy's own prices count as if they had always been there. Prices of the book and the list
    count from their own dates.
    """

    def __init__(self, policy: Policy, *, builtin: BuiltinPrices, book: Book | None) -> None:
        """Start without any looked-up price of the policy's deployments."""
        self._policy, self._builtin, self._book = policy, builtin, book
        self._epochs: list[Mapping[str, Price]] = []
        self._at: dict[int, int] = {}
        self._hours: dict[int, int | None] = {}

    def at(self, at_ms: int) -> int:
        """Return the number of the price set in force at a moment; equal numbers mean equal
        prices.
        """
        hour = at_ms // _HOUR_MS
        if hour not in self._hours:
            first, next_ = self._looked_up(hour * _HOUR_MS), self._looked_up((hour + 1) * _HOUR_MS)
            self._hours[hour] = first if first == next_ else None
        known = self._hours[hour]
        return self._looked_up(at_ms - at_ms % _MINUTE_MS) if known is None else known

    def prices(self, number: int) -> Mapping[str, Price]:
        """Return the prices by deployment of a number that `at` returned."""
        return self._epochs[number]

    def _looked_up(self, at_ms: int) -> int:
        """Look up all prices at a moment and return the number of their set, an earlier one if
        equal.
        """
        found = self._at.get(at_ms)
        if found is None:
            moment = EPOCH + timedelta(milliseconds=at_ms)
            prices = prices_of(self._policy, at=moment, builtin=self._builtin, book=self._book)
            if prices not in self._epochs:
                self._epochs.append(prices)
            found = self._at[at_ms] = self._epochs.index(prices)
        return found
