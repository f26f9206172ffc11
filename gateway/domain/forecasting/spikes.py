"""Finds days whose amount stands out of a series' usual days.

A day is compared with the median of the same weekday in the four weeks before it. It stands out if
it differs by more than 3.5 times the usual share, by a quarter at least, and by more than a floor
in money. The usual share is the median of those of the last four weeks, times 1.4826, which makes
it a standard deviation where days scatter normally (B. Iglewicz and D. Hoaglin, How to Detect and
Handle Outliers, 1993). Shares, not amounts: a workday scatters by more money than a Sunday.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from statistics import median
from typing import TypeVar

from gateway.domain.forecasting.daily import USED_DAYS, WEEK, History
from gateway.domain.money import format_usd

THRESHOLD = Decimal("3.5")
TO_DEVIATION = Decimal("1.4826")
LEAST_SHARE = Decimal("0.25")
"""Of the usual amount: a team whose days are all alike would else alarm at each cent."""
FLOOR_USD = Decimal(1)
LEAST_COMPARED = WEEK
"""Days whose usual difference must be known."""


COMPARED_DAYS = 2 * USED_DAYS
"""Days before a day that are read to judge it."""

Driver = TypeVar("Driver", bound=tuple[str | None, str | None])
"""A model and a key; a reader may have None, or a word, where events have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """One day that stands out, and the usual amount."""

    day: date
    amount: Decimal
    usual: Decimal

    @property
    def change(self) -> Decimal:
        """Return the difference from the usual amount; negative for a drop."""
        return self.amount - self.usual


def spikes(history: History, *, floor: Decimal = FLOOR_USD) -> Iterator[Spike]:
    """Yield the days that stand out, the oldest first. The first weeks have no usual yet."""
    amounts = history.amounts
    usual = [_usual(amounts, index) for index in range(len(amounts))]
    away = [
        abs(amount - known) / known if known else None
        for amount, known in zip(amounts, usual, strict=True)
    ]
    for index, (amount, known) in enumerate(zip(amounts, usual, strict=True)):
        compared = [one for one in away[max(0, index - USED_DAYS) : index] if one is not None]
        if known is None or len(compared) < LEAST_COMPARED:
            continue
        share = max(LEAST_SHARE, THRESHOLD * TO_DEVIATION * median(compared))
        difference = abs(amount - known)
        if difference > share * abs(known) and difference > floor:
            day = history.first_day + timedelta(days=index)
            yield Spike(day=day, amount=amount, usual=known)


def weekdays_before(day: date) -> tuple[date, ...]:
    """Return the same weekday in the four weeks before a day, the last one first."""
    return tuple(day - timedelta(days=WEEK * back) for back in range(1, USED_DAYS // WEEK + 1))


def largest_driver(
    spike: Spike,
    *,
    now: Mapping[Driver, Decimal],
    before: Sequence[Mapping[Driver, Decimal]],
) -> tuple[Driver, Decimal]:
    """Return the model and key whose change was largest in the spike's direction, and that change.

    `now` has the amounts of the day, `before` those of the same weekdays before it.
    """
    usual: dict[Driver, Decimal] = {}
    for day in before:
        for driver, amount in day.items():
            usual[driver] = usual.get(driver, Decimal(0)) + amount / len(before)
    changes = {
        driver: now.get(driver, Decimal(0)) - usual.get(driver, Decimal(0))
        for driver in now.keys() | usual.keys()
    }
    sign = 1 if spike.change > 0 else -1
    in_order = sorted(changes, key=lambda driver: tuple(name or "" for name in driver))
    found = max(in_order, key=lambda driver: sign * changes[driver])
    return found, changes[found]


def sentence(spike: Spike, *, part: str, model: str, key: str) -> str:
    """Return a spike in words; `part` names the owner of the amounts, such as `team payments`."""
    direction = "above" if spike.change > 0 else "below"
    against = (
        f"{100 * abs(spike.change) / spike.usual:,.0f} % {direction} its usual {spike.day:%A}, "
        if spike.usual > 0
        else f"where {spike.day:%A}s usually cost nothing, "
    )
    return (
        f"{spike.day}: {part}, model {model}, key {key}: {against}{format_usd(abs(spike.change))}."
    )


def _usual(amounts: tuple[Decimal, ...], index: int) -> Decimal | None:
    """Return the median of the same weekday in the four weeks before a day, None without them."""
    if index < USED_DAYS:
        return None
    return median(amounts[index - USED_DAYS : index : WEEK])
