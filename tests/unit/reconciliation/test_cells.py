"""The cells of exports: a number, a moment or a name that is none is refused in words that help."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from decimal import Decimal

import pytest

from gateway.domain.reconciliation.metered import Owner
from gateway.domain.reconciliation.statement import (
    Cause,
    ReconciledRow,
    RowKey,
    merged,
    totals_of,
)
from gateway.wire.bills.exports.cells import (
    WrongCell,
    read_count,
    read_day,
    read_name,
    read_number,
    read_unix_day,
)

MOST = Decimal(100)


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (lambda: read_number(None, "x", most=MOST), "x is missing, not a number"),
        (lambda: read_number(True, "x", most=MOST), "x is true or false, not a number"),
        (lambda: read_number({}, "x", most=MOST), "x is an object, not a number"),
        (lambda: read_number([1], "x", most=MOST), "x is a list, not a number"),
        (lambda: read_number(1.5, "x", most=MOST), "x is '1.5', not a number"),
        (lambda: read_number("101", "x", most=MOST), "at most 100"),
        (lambda: read_count(Decimal("1.5"), "x"), "whole numbers"),
        (lambda: read_day(None, "x"), "x is missing; write a day"),
        (lambda: read_day("1969-12-31", "x"), "years are from"),
        (lambda: read_unix_day(10**10, "x"), "of this century"),
        (lambda: read_unix_day(-(10**11), "x"), "Unix seconds"),
        (lambda: read_name(7, "x"), "x is '7', not text"),
        (lambda: read_name("a" * 301, "x"), "at most 300 printable characters"),
        (lambda: read_name("a\x00b", "x"), "printable characters"),
    ],
)
def test_a_wrong_cell_is_named(read: Callable[[], object], words: str) -> None:
    """A guess would become a difference of money."""
    with pytest.raises(WrongCell, match=words):
        read()


def test_a_missing_count_is_none_used() -> None:
    """Providers leave out the kinds of tokens that were not used."""
    assert read_count(None, "x") == 0
    assert read_name(None, "x") is None


def test_rows_of_one_place_become_one_with_bounded_evidence() -> None:
    """A day may have a hundred keys past the gateway: their names would fill the screen."""
    key = RowKey(date(2026, 10, 5), "a", "m", "output")
    rows = [
        ReconciledRow(
            key=key,
            cause=Cause.UNMETERED,
            evidence=f"key {number:03} " + "x" * 90,
            billed_quantity=Decimal(2),
            billed_nusd=3,
        )
        for number in range(9)
    ]
    (found,) = merged(rows)
    assert (found.billed_quantity, found.metered_quantity) == (18, None)
    assert found.evidence.endswith(" And 5 more.")
    totals = totals_of([found])
    assert (totals.difference_nusd, totals.unexplained_nusd) == (27, 0)
    assert totals.coverage_share is None


def test_the_owners_of_joined_rows_keep_their_amounts() -> None:
    """A true-up is booked on the teams of all parts."""
    key = RowKey(date(2026, 10, 5), "a", "m", "output")
    payments, search = Owner("payments", "CC-1"), Owner("search", "CC-2")
    rows = [
        ReconciledRow(key=key, cause=Cause.PRICE, evidence="x", billed_nusd=3, owners=owners)
        for owners in ({payments: 3}, {payments: 1, search: 2}, None)
    ]
    (found,) = merged(rows)
    assert found.owners == {payments: 4, search: 2}
