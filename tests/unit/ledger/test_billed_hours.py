"""The hours that a policy declares as paid for, whether the engine served or not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from gateway.domain.ledger.billed_hours import spans_between

BEGIN = datetime(2026, 11, 1, tzinfo=UTC)
END = datetime(2026, 12, 1, tzinfo=UTC)


def spans(
    *applied: tuple[datetime, tuple[str, ...]], now: datetime = END
) -> list[tuple[str, datetime, datetime]]:
    """Return the spans of a month as plain values."""
    found = spans_between(applied, begin=BEGIN, end=END, now=now)
    return [(one.deployment, one.begin, one.end) for one in found]


def test_a_deployment_is_paid_for_until_a_later_policy_leaves_it_out() -> None:
    """An hour in which the policy changes is of both."""
    change = BEGIN + timedelta(days=9, hours=3, minutes=40)
    assert spans((BEGIN - timedelta(days=50), ("a", "b")), (change, ("b",))) == [
        ("a", BEGIN, BEGIN + timedelta(days=9, hours=3)),
        ("b", BEGIN, BEGIN + timedelta(days=9, hours=3)),
        ("b", BEGIN + timedelta(days=9, hours=3), END),
    ]


def test_only_whole_hours_until_now_are_due() -> None:
    """The running hour has no bill yet, and a policy of next month counts there."""
    now = BEGIN + timedelta(days=1, minutes=59)
    applied = (BEGIN, ("a",)), (END + timedelta(days=1), ("b",))
    assert spans(*applied, now=now) == [("a", BEGIN, BEGIN + timedelta(days=1))]
    assert spans(now=now) == []
