"""The hash of a closed month: one line for each part, so that anybody can compute it again."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from hashlib import sha256

from gateway.domain.ledger.month_close import (
    HashedPart,
    MonthClose,
    VerifiedMonth,
    month_moments,
    month_sha256,
)

PARTS = (
    HashedPart(name="events", rows=2, sha256="ab" * 32),
    HashedPart(name="rates", rows=0, sha256="cd" * 32),
)


def test_the_hash_is_that_of_the_lines_of_its_parts() -> None:
    """An auditor needs no Tollgate to check it."""
    text = f"events 2 {'ab' * 32}\nrates 0 {'cd' * 32}\n"
    assert month_sha256(PARTS) == sha256(text.encode()).hexdigest()


def test_a_verified_month_names_the_parts_that_differ() -> None:
    """Another number of rows, another hash, a part that the close did not have, or a count or total
    that its facts do not have.
    """
    close = MonthClose(
        month=date(2026, 10, 1),
        version=1,
        sha256=month_sha256(PARTS),
        events=2,
        adjustments=0,
        total_usd=Decimal(1),
        closed_at=datetime(2026, 11, 2, tzinfo=UTC),
        author="ada",
        operator=None,
        accepted={},
        parts=PARTS,
        is_reopened=False,
    )
    same = VerifiedMonth(
        close=close, recomputed=PARTS, events=2, adjustments=0, total_usd=Decimal("1.00")
    )
    assert (same.differing, same.sha256) == ([], close.sha256)
    found = (replace(PARTS[0], rows=3), PARTS[1], replace(PARTS[1], name="shares"))
    changed = replace(same, recomputed=found, events=3)
    assert changed.differing == ["events", "shares", "figures"]
    assert changed.sha256 != close.sha256


def test_a_month_ends_with_the_first_moment_of_the_next() -> None:
    """Also in December."""
    assert month_moments(date(2026, 12, 1)) == (
        datetime(2026, 12, 1, tzinfo=UTC),
        datetime(2027, 1, 1, tzinfo=UTC),
    )
