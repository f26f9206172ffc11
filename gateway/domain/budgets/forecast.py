"""Computes a budget's forecast spending at the end of its period from its present rate, for the
report on budgets.

The present rate is the spending since a midnight (UTC) at most seven days ago, so that it includes
weekends. In a period without a full day yet it is the rate of the whole period so far. Earlier
periods do not count.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from gateway.domain.budgets.budgets import PeriodSpan

MOST = timedelta(days=7)  # a whole week, so that a Sunday does not represent all days
A_DAY = timedelta(days=1)
# As whole numbers: a large amount times a long time overflows a timedelta.
A_TICK = timedelta(microseconds=1)
LEAST = timedelta(hours=1)
LEAST_PART = 20  # of the period, if that is less than an hour


def rate_since(span: PeriodSpan, now: datetime) -> datetime | None:
    """Return the moment from which a running period's spending is counted for its present rate;
    None if a rate cannot be computed yet.

    None for a budget without an end, outside of the period, and too early in it: the first request
    of a month is no rate.
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
    """Return a budget's forecast spending at the period's end: its spending so far, plus its
    present rate for the rest of the period.

    `recent_nusd` is the spending since `rate_since`, which must not be None. Rounded down, and
    never below the current spending: corrections may make a rate negative, but a negative forecast
    is useless.
    """
    assert span.ends_at is not None, "a budget without an end has no forecast"
    return spent_nusd + max(recent_nusd, 0) * ((span.ends_at - now) // A_TICK) // (
        (now - since) // A_TICK
    )


def _midnight_from(moment: datetime) -> datetime:
    """Return the first midnight (UTC) at or after a moment."""
    midnight = moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight if midnight == moment else midnight + A_DAY
