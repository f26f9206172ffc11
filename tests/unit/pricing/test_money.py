"""Exact money: nothing is lost on the way in, and a non-zero amount is never shown as zero."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.money import (
    format_unit_cost,
    format_usd,
    nusd_from_usd,
    plain_usd,
    usd_from_nusd,
)

amounts_nusd = st.integers(min_value=-(10**18), max_value=10**18)


@given(amounts_nusd)
def test_nano_dollars_survive_the_way_there_and_back(amount: int) -> None:
    """Storage is integers, the way is decimals: no amount changes by being written down."""
    assert nusd_from_usd(usd_from_nusd(amount)) == amount
    assert Decimal(plain_usd(amount)) * 10**9 == amount


@given(amounts_nusd)
def test_plain_dollars_have_no_exponent(amount: int) -> None:
    """`1E-7` in JSON or CSV becomes a float in most readers."""
    text = plain_usd(amount)
    assert set(text) <= set("-0123456789.")
    assert not text.endswith(".")
    assert "." not in text or not text.endswith("0")


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0"),
        (1, "0.000000001"),
        (123_400, "0.0001234"),
        (1_000_000_000, "1"),
        (-5, "-0.000000005"),
    ],
)
def test_plain_dollars_are_the_amount(amount: int, text: str) -> None:
    """The text is the amount itself, digit for digit."""
    assert plain_usd(amount) == text


@given(
    st.decimals(
        allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9, places=12
    )
)
def test_a_non_zero_amount_never_prints_as_zero(amount: Decimal) -> None:
    """A report full of $0.00 is how a meter loses its readers."""
    printed = format_usd(amount)
    digits = Decimal(printed.replace("$", "").replace(",", ""))
    assert (digits == 0) == (amount == 0)
    assert printed.startswith("-$" if amount < 0 else "$")
    assert "E" not in printed


@pytest.mark.parametrize(
    ("amount", "printed"),
    [
        (None, "unknown"),
        (Decimal(0), "$0.00"),
        (Decimal("1234.565"), "$1,234.56"),
        (Decimal("0.01"), "$0.01"),
        (usd_from_nusd(10_000_000), "$0.01"),
        (Decimal("0.0099999"), "$0.01000"),
        (Decimal("0.00012345678"), "$0.0001235"),
        (Decimal("-0.5"), "-$0.50"),
    ],
)
def test_money_for_people(amount: Decimal | None, printed: str) -> None:
    """Cents above a cent, four digits below it, `unknown` for an unknown amount."""
    assert format_usd(amount) == printed


def test_a_cost_is_rounded_to_even() -> None:
    """Halves that always went up would drift in one direction."""
    half = Decimal("0.0000000005")
    assert (nusd_from_usd(half), nusd_from_usd(3 * half)) == (0, 2)


@pytest.mark.parametrize(
    ("unit_cost", "printed"),
    [
        ("6.832", "$6.83"),
        ("1", "$1.00"),
        ("0.4912", "$0.4912"),
        ("0.012958", "$0.01296"),
        ("0.01", "$0.01000"),
        ("0.002384", "$0.002384"),
        ("-0.0149", "-$0.01490"),
        ("0", "$0.00"),
    ],
)
def test_a_unit_cost_keeps_four_digits(unit_cost: str, printed: str) -> None:
    """A thousand tokens at $0.01296 and at $0.0149 were both $0.01 in unit costs."""
    assert format_unit_cost(Decimal(unit_cost)) == printed
