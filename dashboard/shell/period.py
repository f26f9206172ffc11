"""Declares the time that a page shows, a month or a range of days in UTC, reads it from the address
and offers the usual ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from gateway.errors import BadUsage
from gateway.reports.question import ask

MONTH, FIRST, LAST = "month", "from", "to"  # of the address
NAMES = (MONTH, FIRST, LAST)
ALL = "all"
MONTHS_OFFERED = 18
LAST_DAYS = (7, 30, 90)


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """A time: a `month` as `YYYY-MM` or `all`; or its first and last day, both inclusive."""

    month: str | None = None
    days: tuple[date, date] | None = None

    @property
    def address(self) -> dict[str, str]:
        """Return the query parameters that name this time."""
        if self.days is None:
            return {MONTH: str(self.month)}
        return {FIRST: self.days[0].isoformat(), LAST: self.days[1].isoformat()}

    @property
    def label(self) -> str:
        """Return the time for people: `November 2026`, `14 Nov 2026` or `1 Nov to 14 Nov 2026`."""
        if self.days is not None:
            return _label_of_days(*self.days)
        return "All months" if self.month == ALL else f"{self.first_of_month:%B %Y}"

    @property
    def first_of_month(self) -> date:
        """Return the first day of the month; the period must be one."""
        return date.fromisoformat(f"{self.month}-01")

    @property
    def is_running(self) -> bool:
        """Return True if this is the month of the present day."""
        return self.month == f"{today():%Y-%m}"

    @property
    def span(self) -> tuple[date, date] | None:
        """Return the first and the last day, at most today; None for all months."""
        if self.days is not None:
            return self.days
        if self.month == ALL:
            return None
        first = self.first_of_month
        last = (first + timedelta(days=31)).replace(day=1) - timedelta(days=1)
        return first, max(first, min(last, today()))


def today() -> date:
    """Return the present day in UTC."""
    return datetime.now(UTC).date()


def period_of(address: Mapping[str, str]) -> Period | None:
    """Return the period that an address names, None without one. Raises `BadUsage` for a wrong
    one.
    """
    first, last = address.get(FIRST), address.get(LAST)
    if first is not None or last is not None:
        return Period(days=ask(first=first or last, last=last or first).days)
    month = address.get(MONTH)
    if month is None:
        return None
    ask(month=month)
    return Period(month=month)


def period_of_key(key: str) -> Period:
    """Return the period that an option of the picker stands for: the reverse of `key_of`."""
    first, _, last = key.partition("..")
    if not last:
        return Period(month=key)
    return Period(days=(date.fromisoformat(first), date.fromisoformat(last)))


def key_of(period: Period) -> str:
    """Return the text by which the picker knows a period: `2026-11`, `all`, `FIRST..LAST`."""
    return "..".join(period.address.values())


def offered(newest: date) -> dict[str, str]:
    """Return the periods of the picker with their labels: months from the newest one back, then
    the last days and the year so far.
    """
    months, month = {}, newest.replace(day=1)
    for _ in range(MONTHS_OFFERED):
        months[f"{month:%Y-%m}"] = f"{month:%B %Y}"
        month = (month - timedelta(days=1)).replace(day=1)
    now = today()
    recent = {
        key_of(Period(days=(now - timedelta(days=count - 1), now))): f"Last {count} days"
        for count in LAST_DAYS
    }
    year = {key_of(Period(days=(now.replace(month=1, day=1), now))): f"{now.year} so far"}
    newest_months = dict(list(months.items())[:2])
    return {**newest_months, **recent, **year, **months, ALL: "All months"}


def first_period(newest: datetime | None) -> Period:
    """Return the period of a page without one in its address: the newest month with events."""
    return Period(month=f"{newest.astimezone(UTC).date() if newest else today():%Y-%m}")


def require_period(first: date, last: date) -> Period:
    """Return the period of two days. Raises `BadUsage` if it ends before it begins."""
    if first > last:
        raise BadUsage(f"The range ends on {last}, before it begins on {first}.")
    return Period(days=(first, last))


def _label_of_days(first: date, last: date) -> str:
    """Return a range of days for people, with each part that differs."""
    end = f"{last.day} {last:%b %Y}"
    if first == last:
        return end
    begin = f"{first.day} {first:%b}" + (f" {first.year}" if first.year != last.year else "")
    return f"{begin} to {end}"
