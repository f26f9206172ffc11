"""The result of a batch: it is booked in parts, and each document is counted once."""

from __future__ import annotations

from dataclasses import astuple

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.ledger.records import Written

counts = st.integers(0, 10**6)
parts = st.builds(Written, inserted=counts, known=counts, conflicts=counts, dead=counts)


def test_a_split_batch_is_reported_as_one() -> None:
    """A document the tables refuse splits its batch; the metrics that page somebody must not lose
    or mix a part.
    """
    halves = [Written(inserted=190, known=7), Written(known=1, conflicts=3), Written(dead=1)]
    assert sum(halves, Written()) == Written(inserted=190, known=8, conflicts=3, dead=1)


@given(parts, parts, parts)
def test_no_document_is_counted_twice_whichever_part_is_booked_first(
    one: Written, other: Written, last: Written
) -> None:
    """Every document is in exactly one count, and halves may come in any order."""
    whole = one + other + last
    assert sum(astuple(whole)) == sum(astuple(one)) + sum(astuple(other)) + sum(astuple(last))
    assert whole == last + (other + one)
