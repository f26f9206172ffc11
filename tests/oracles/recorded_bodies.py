"""All recorded usages are read as an outside project's extractors read them; each difference is
listed in `recorded_differences.json` with who is right and why.
"""

from __future__ import annotations

from collections import Counter

from tests.oracles.recorded import LISTED, found_differences, recorded


def test_no_body_is_unread() -> None:
    """An unread one is an estimate."""
    assert [one for one in recorded() if one.ours is None] == []


def test_none_is_booked_below_its_own_total() -> None:
    """It is held and marked instead."""
    below = [
        one
        for one in recorded()
        if one.total is not None and one.booked is not None and one.booked < one.total
    ]
    assert below == []


def test_each_difference_is_listed() -> None:
    """And each listed one is found."""
    listed = Counter({(entry["dialect"], entry["count"]): entry["usages"] for entry in LISTED})
    assert found_differences() == listed
    for entry in LISTED:
        assert entry["right"] in ("ours", "theirs", "both")
        assert entry["why"]
