"""What a budget will have spent when its period ends, at the present rate: arithmetic that anybody
can do again.

The present rate is what was spent since a midnight (UTC) at most seven days ago, so that weekends
are in it; in a period that has no full day yet it is the rate of the whole period so far. Nothing
is learned from earlier periods.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from gateway.domain.budgets.budgets import PeriodSpan

MOST = timedelta(days=7)  # a whole week, so that a Sunday does not stand for all days
A_DAY = timedelta(days=1)
A_TICK = timedelta(
    microseconds=1
)  # as whole numbers: a large amount times a long time is no timedelta any more
LEAST = timedelta(hours=1)
LEAST_PART = 20  # of the period, where that is less than an hour


def rate_since(span: PeriodSpan, now: datetime) -> datetime | None:
    """From when on spending counts for the present rate of a running period; None: nothing can be
    said.

    That is so for a budget without an end, outside of the period, and too early in it: the first
    request of a month is no rate.
    """
    if span.ends_at is None or not span.starts_at <= now < span.ends_at:
        return None
    if now - span.starts_at < min(LEAST, (span.ends_at - span.starts_at) / LEAST_PART):
        return None
    midnight = _midnight_from(max(span.starts_at, now - MOST))
    return midnight if now - midnight >= A_DAY else span.starts_at


def forecast_nusd(
    span: PeriodSpan, now: datetime, *, spent_nusd: int, since: datetime, recent_nusd: int
) -> int:
    """What will be spent by the end of the period: what is spent, and the rest of the time at the
    present rate.

    `recent_nusd` is what was spent since `rate_since`, which must have said a moment. Rounded down,
    and never less than what is spent: corrections may make a rate negative, but nobody plans with
    those.
    """
    assert span.ends_at is not None, "a budget without an end has no forecast"
    return spent_nusd + max(recent_nusd, 0) * ((span.ends_at - now) // A_TICK) // (
        (now - since) // A_TICK
    )


def _midnight_from(moment: datetime) -> datetime:
    """The first midnight (UTC) that is not before a moment."""
    midnight = moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight if midnight == moment else midnight + A_DAY
