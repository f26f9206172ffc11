"""Rates and re-allocations as people enter them: a wrong one is refused, because no entry is ever
taken back; and amounts in another currency that add up.
"""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from gateway.domain.allocation.currency import new_rate
from gateway.domain.allocation.reallocation import new_reallocation
from gateway.domain.money import round_parts, usd_from_nusd
from gateway.errors import BadUsage

NOVEMBER = date(2026, 11, 1)


@pytest.mark.parametrize(
    ("usd", "currency", "source"),
    [
        ("0", "EUR", "s"),
        ("-1", "EUR", "s"),
        ("NaN", "EUR", "s"),
        ("Infinity", "EUR", "s"),
        ("1", "USD", "s"),
        ("1", "EU", "s"),
        ("1", "EUR", " "),
        ("1." + "1" * 40, "EUR", "s"),
        ("1e-30", "EUR", "s"),
    ],
)
def test_a_wrong_rate_is_refused(usd: str, currency: str, source: str) -> None:
    """An entry cannot be taken back."""
    with pytest.raises(BadUsage):
        new_rate(
            currency=currency,
            first_day=NOVEMBER,
            usd_per_unit=Decimal(usd),
            source=source,
        )


def test_rounded_parts_add_up() -> None:
    """The largest remainders get the units that are left, the first of equal ones."""
    third = Decimal(1) / 3
    whole = usd_from_nusd(10**9)
    assert round_parts([third, third, third], whole) == [
        Decimal("0.333333334"),
        Decimal("0.333333333"),
        Decimal("0.333333333"),
    ]
    assert round_parts([Decimal("-0.0000000004"), Decimal("1.0000000004")], whole) == [0, 1]
    assert round_parts([Decimal(5)], whole) == [5]
    assert round_parts([], Decimal(0)) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"to_cost_centre": "CC-1207"},
        {"from_cost_centre": " "},
        {"reason": " "},
        {"amount_usd": Decimal(0)},
        {"amount_usd": Decimal(-3)},
        {"amount_usd": Decimal("0.0000000001")},
        {"amount_usd": Decimal(10_000_000_000)},
    ],
    ids=str,
)
def test_a_wrong_entry_is_refused(wrong: dict[str, Any]) -> None:
    """An entry that cannot be booked must fail at its author, not at its approver."""
    right: dict[str, Any] = {
        "month": NOVEMBER,
        "from_cost_centre": "CC-1207",
        "to_cost_centre": "CC-3100",
        "amount_usd": Decimal("120.5"),
        "reason": "r",
    }
    assert new_reallocation(**right).amount_nusd == 120_500_000_000
    with pytest.raises(BadUsage, match="Nothing was entered"):
        new_reallocation(**right | wrong)


def test_a_rate_is_kept_as_it_was_entered() -> None:
    """Blanks around its source are none of it."""
    rate = new_rate(
        currency="eur", first_day=NOVEMBER, usd_per_unit=Decimal("1.0850"), source=" ECB "
    )
    assert (rate.currency, rate.first_day, rate.source) == ("EUR", NOVEMBER, "ECB")
    assert str(rate.usd_per_unit) == "1.0850"
