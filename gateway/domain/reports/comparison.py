"""Decides which complete days of a period are compared with which days of an earlier one, and says
so in a sentence; reads no clock and no database.

A period that still runs is compared at the same point: today is in neither side, because a day that
is not over looks like a saving. On the first day complete hours take the place of days.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum

from gateway.domain.calendar_months import next_month
from gateway.errors import BadUsage

Moments = tuple[datetime, datetime]  # the first moment, and the first one after the last

_DAY = timedelta(days=1)


class Compared(StrEnum):
    """The time that a period is compared with.

    `previous`: the period before; `month` and `year`: the same dates a month or a year before. A
    period that still runs is compared by its complete days. `whole`: the period before, whole, also
    with a period that still runs.
    """

    PREVIOUS = "previous"
    MONTH = "month"
    YEAR = "year"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPeriod:
    """A month, by its first day, or the days from a first to a last one, both inclusive, in UTC.

    A fact belongs to the month that it is posted to, and to the day of its moment. `within` leaves
    the facts of the period whose moment lies from the first moment up to the second one.
    """

    month: date | None = None
    days: tuple[date, date] | None = None
    within: Moments | None = None

    @property
    def span(self) -> tuple[date, date]:
        """Return the first and the last day."""
        if self.days is not None:
            return self.days
        assert self.month is not None
        return self.month, next_month(self.month) - _DAY

    @property
    def label(self) -> str:
        """Return the period in words: `the whole month 2026-10`, `2026-10-01 to 2026-10-27`."""
        if self.within is not None:
            return _label_of_moments(*self.within)
        if self.days is None:
            return f"the whole month {self.month:%Y-%m}"
        return _label_of_days(*self.days)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The compared part of a period, the earlier time beside it, and a sentence on both.

    `is_part`: the asked period has more than its compared part, because it still runs. `earlier` is
    the whole earlier period, of which `before` may be a part.
    """

    now: ComparedPeriod
    before: ComparedPeriod
    earlier: ComparedPeriod
    is_part: bool
    sentence: str


def comparison(asked: ComparedPeriod, kind: Compared, now: datetime) -> Comparison:
    """Return the two compared periods at a moment. Raises `BadUsage` if no time is earlier."""
    earlier = _earlier(asked, kind)
    first, last = asked.span
    today = now.astimezone(UTC).date()
    if today > last or kind is Compared.WHOLE:
        runs = ", which still runs," if first <= today <= last else ""
        shown = f"{asked.month:%Y-%m}" if asked.month is not None else asked.label
        return Comparison(
            now=asked,
            before=earlier,
            earlier=earlier,
            is_part=False,
            sentence=f"{shown}{runs} against {earlier.label}.",
        )
    if today > first:
        return _of_days(asked, kind, earlier, today)
    return _of_hours(asked, earlier, now)


def _of_days(
    asked: ComparedPeriod, kind: Compared, earlier: ComparedPeriod, today: date
) -> Comparison:
    """Return the comparison of a running period by its complete days."""
    first, _ = asked.span
    count = (today - first).days
    complete = _first_days(asked, count)
    begin, end = earlier.span
    if asked.days is not None and kind in (Compared.MONTH, Compared.YEAR):
        before = _earlier(complete, kind)  # the same dates, whatever the lengths of the months
        is_short = before.span[1].day != complete.span[1].day
    else:
        is_short = begin + (count - 1) * _DAY > end
        before = earlier if is_short else _first_days(earlier, count)
    short = ", because that month is shorter" if is_short else ""
    days = "1 complete day" if count == 1 else f"{count} complete days"
    return Comparison(
        now=complete,
        before=before,
        earlier=earlier,
        is_part=True,
        sentence=f"{days}, {complete.label}, against {before.label}{short}; "
        f"today, {today}, is in neither.",
    )


def _of_hours(asked: ComparedPeriod, earlier: ComparedPeriod, now: datetime) -> Comparison:
    """Return the comparison of a period on its first day, or before it, by its complete hours."""
    begin, before = _midnight(asked.span[0]), _midnight(earlier.span[0])
    hour = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    length = max(hour - begin, timedelta(0))
    part = replace(asked, within=(begin, begin + length))
    of_before = replace(earlier, within=(before, before + length))
    if length:
        sentence = f"{part.label} against {of_before.label}; the running hour is in neither."
    else:
        sentence = f"Nothing is compared yet: no hour since {asked.span[0]} 00:00 UTC is complete."
    return Comparison(now=part, before=of_before, earlier=earlier, is_part=True, sentence=sentence)


def _first_days(period: ComparedPeriod, count: int) -> ComparedPeriod:
    """Return the part of a period that is its first days: at least one, at most all."""
    first, _ = period.span
    if period.days is not None:
        return ComparedPeriod(days=(first, first + (count - 1) * _DAY))
    return replace(period, within=(_midnight(first), _midnight(first + count * _DAY)))


def _earlier(asked: ComparedPeriod, kind: Compared) -> ComparedPeriod:
    """Return the whole period that a period is compared with. Raises `BadUsage` before year 1.

    The days before a range are as many as its own; those of the month or the year before have the
    same dates, or the last day of a month that is too short.
    """
    try:
        if asked.month is not None:
            return ComparedPeriod(
                month=_months_before(asked.month, 12 if kind is Compared.YEAR else 1)
            )
        first, last = asked.span
        if kind is Compared.YEAR:
            return ComparedPeriod(days=(_year_before(first), _year_before(last)))
        if kind is Compared.MONTH:
            return ComparedPeriod(days=(_month_before(first), _month_before(last)))
        before = first - _DAY
        return ComparedPeriod(days=(before - (last - first), before))
    except (OverflowError, ValueError):
        raise BadUsage(f"There is no time before {asked.span[0]} to compare with.") from None


def _months_before(month: date, count: int) -> date:
    """Return the first day of an earlier month. Raises `ValueError` before year 1."""
    number = month.year * 12 + month.month - 1 - count
    return date(number // 12, number % 12 + 1, 1)


def _year_before(day: date) -> date:
    """Return the same date one year before. Raises `ValueError` before year 1."""
    is_leap_day = (day.month, day.day) == (2, 29)
    return day.replace(year=day.year - 1, day=28 if is_leap_day else day.day)


def _month_before(day: date) -> date:
    """Return the same date one month before, or the last day of a month that is too short. Raises
    `OverflowError` before year 1.
    """
    last = day.replace(day=1) - _DAY
    return last.replace(day=min(day.day, last.day))


def _midnight(day: date) -> datetime:
    """Return the first moment of a day."""
    return datetime.combine(day, time(), UTC)


def _label_of_moments(first: datetime, after: datetime) -> str:
    """Return the words for the time between two moments, both at full hours."""
    if first.time() == after.time():
        return _label_of_days(first.date(), (after - _DAY).date())
    return f"{first:%Y-%m-%d %H:%M} to {after:%H:%M} UTC"


def _label_of_days(first: date, last: date) -> str:
    """Return the words for some days."""
    return f"{first}" if first == last else f"{first} to {last}"
