"""Declares a report's question (month, split, filters, page), validates it from user input, and
builds its SQL conditions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from difflib import get_close_matches
from typing import Any

from sqlalchemy import ColumnElement, or_

from gateway.domain.allocation.currency import currency_code
from gateway.domain.calendar_months import last_month
from gateway.domain.reports.comparison import (
    Compared,
    ComparedPeriod,
    Comparison,
    Moments,
    comparison,
)
from gateway.errors import BadUsage
from gateway.reports.dimensions import (
    UNALLOCATED,
    Columns,
    Dimension,
    Split,
    TagKey,
    has_tag,
    in_moments,
    in_utc_days,
    in_utc_month,
)
from gateway.reports.report import Dataset

MAX_PAGE = 1000
MAX_OFFSET = 2**63 - 1  # of Postgres
_MONTH = re.compile(r"([0-9]{4})-(0[1-9]|1[0-2])")
_TIME_SHAPES: Mapping[Split, tuple[re.Pattern[str], str]] = {
    Dimension.HOUR: (re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:00Z"), "2026-11-20T10:00Z"),
    Dimension.WEEK: (re.compile(r"[0-9]{4}-W[0-9]{2}"), "2026-W47"),
    Dimension.MONTH: (_MONTH, "2026-11"),
    Dimension.QUARTER: (re.compile(r"[0-9]{4}-Q[1-4]"), "2026-Q4"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The selection and split of events.

    `month` None means all months; `by` None means the report's own default. `days` are the first
    and the last day of a range, in place of a month: then a fact belongs to the moment at which it
    happened, and not to the month that it is posted to. `within` leaves those of its facts whose
    moment lies from the first moment up to the second one. `asks_why`: explain the change.

    `is_as_closed`: as the month was when it was closed, in its newest version or in
    `close_version`; `closed_at` is that moment, once it is known.

    `where` pairs a dimension with its required value; None asks for events without one. `limit` and
    `offset` page through the rows of an export and of reports that list events. Without a `limit`
    an export has every row. `currency` is the code in which money is shown; None is USD.
    """

    dataset: Dataset = Dataset.REAL
    month: date | None = None
    days: tuple[date, date] | None = None
    within: Moments | None = None
    compared: Compared | None = None
    asks_why: bool = False
    is_as_closed: bool = False
    close_version: int | None = None
    closed_at: datetime | None = None
    by: tuple[Split, ...] | None = None
    where: tuple[tuple[Split, str | None], ...] = ()
    limit: int | None = 100
    offset: int = 0
    currency: str | None = None

    def conditions(self, row: Columns) -> list[ColumnElement[bool]]:
        """Return the SQL conditions of the question's month and filters on a row, with bound
        values.
        """
        found = [] if self.month is None else [row.posted_period == self.month]
        if self.days is not None:
            found += in_utc_days(row.occurred_at, *self.days)
        if self.within is not None:
            found += in_moments(row.occurred_at, *self.within)
        return found + [
            _condition(row, dimension, wanted, as_posted=self.is_as_posted)
            for dimension, wanted in self.where
        ]

    def happened(self, moment: ColumnElement[Any]) -> list[ColumnElement[bool]]:
        """Return the SQL conditions that a moment lies in the question's month or days."""
        if self.within is not None:
            return list(in_moments(moment, *self.within))
        if self.days is not None:
            return list(in_utc_days(moment, *self.days))
        return [] if self.month is None else list(in_utc_month(moment, self.month))

    @property
    def is_as_posted(self) -> bool:
        """Return True if facts belong to the month that they are posted to."""
        return self.days is None

    @property
    def moments(self) -> tuple[datetime, ...]:
        """Return the first moment of the asked time and the first one after it; none of a month,
        to which facts of any moment may be posted.
        """
        if self.within is not None:
            return self.within
        if self.days is None:
            return ()
        first, last = (datetime.combine(day, time(), UTC) for day in self.days)
        return (first, last) if self.days[1] == date.max else (first, last + timedelta(days=1))

    def comparison(self, now: datetime) -> Comparison:
        """Return the times that this question compares at a moment. Raises `BadUsage` if no time
        is earlier.
        """
        assert self.compared is not None
        if self.month is None and self.days is None:
            raise BadUsage(
                "All months have no time before them. Add --month YYYY-MM, or --from and --to."
            )
        return comparison(ComparedPeriod(month=self.month, days=self.days), self.compared, now)

    def about(self, period: ComparedPeriod) -> Question:
        """Return the question about another time, not compared itself."""
        return replace(
            self,
            month=period.month,
            days=period.days,
            within=period.within,
            compared=None,
            asks_why=False,
        )


def ask(
    *,
    month: str | None = None,
    first: str | None = None,
    last: str | None = None,
    compare: str | None = None,
    why: bool = False,
    as_closed: bool = False,
    close_version: int | None = None,
    by: Sequence[str] | None = None,
    where: Mapping[str, str | None] | None = None,
    demo: bool = False,
    limit: int | None = 100,
    offset: int = 0,
    currency: str | None = None,
) -> Question:
    """Return a valid question from user input. `month` is `YYYY-MM` or `all`; `first` and `last`
    are days.

    Raises `BadUsage` with the accepted words.
    """
    if limit is not None and not 1 <= limit <= MAX_PAGE:
        raise BadUsage(
            f"A page has 1 to {MAX_PAGE} rows; got {limit}. CSV and JSON without --limit have "
            "every row."
        )
    if not 0 <= offset <= MAX_OFFSET:
        raise BadUsage(f"A page starts at row 0 or later; got {offset}.")
    _require_closable(month, demo=demo, as_closed=as_closed, version=close_version)
    filters = tuple((dimension(name), value) for name, value in (where or {}).items())
    for name, value in filters:
        if value is not None:
            _require_time(name, value)
    if "\0" in "".join((*(by or ()), *(f"{name}{value}" for name, value in filters))):
        raise BadUsage("No name has a NUL character. Leave it out of the split or the filter.")
    return Question(
        dataset=Dataset.DEMO if demo else Dataset.REAL,
        month=None if month in (None, "all") else month_start(month, or_all=True),
        days=_range(first, last, month=month),
        compared=_compared(compare or (Compared.PREVIOUS if why else None)),
        asks_why=why,
        is_as_closed=as_closed,
        close_version=close_version,
        by=None if by is None else tuple(dict.fromkeys(dimension(name) for name in by)),
        where=filters,
        limit=limit,
        offset=offset,
        currency=None if currency in (None, "USD") else currency_code(str(currency)),
    )


def dimension(name: str) -> Split:
    """Return the dimension that a user's word names. Raises `BadUsage` with all of them."""
    if name.startswith(TagKey.PREFIX) and name != TagKey.PREFIX:
        return TagKey(name)
    try:
        return Dimension(name.replace("-", "_"))
    except ValueError:
        near = get_close_matches(name, list(Dimension), n=1)
        meant = f"Did you mean '{near[0]}'? " if near else ""
        raise BadUsage(
            f"Nothing is called '{name}'. {meant}Use one of: {', '.join(Dimension)}, tag:KEY."
        ) from None


def month_of(word: str | None, *, now: datetime) -> str | None:
    """Return the word of a month with `last` as the month before this one, in UTC."""
    return f"{last_month(now.astimezone(UTC).date()):%Y-%m}" if word == "last" else word


def month_start(month: str, *, or_all: bool = False) -> date:
    """Return the first day of `YYYY-MM`. Raises `BadUsage`, which names `all` if the caller takes
    it. No event is outside of the years 1970 to 2999.
    """
    match = _MONTH.fullmatch(month)
    if match is not None and not 1970 <= int(match[1]) < 3000:
        raise BadUsage(f"No month of a ledger is {month}: they are from 1970-01 to 2999-12.")
    if match is None:
        raise BadUsage(
            f"'{month}' is not a month. Write it as YYYY-MM, for example 2026-11"
            + (", or 'all'." if or_all else ".")
        )
    return date(int(match[1]), int(match[2]), 1)


def _condition(
    row: Columns, by: Split, wanted: str | None, *, as_posted: bool
) -> ColumnElement[bool]:
    """Return the SQL condition that a row has the wanted value of a dimension."""
    if by is Dimension.TAG:
        return has_tag(row, wanted)
    if by is Dimension.DAY and wanted is not None:
        return by.of(row) == date.fromisoformat(wanted)
    value = by.of(row, as_posted=as_posted)
    if wanted == UNALLOCATED:
        return or_(value.is_(None), value == wanted)
    return value == wanted


def _range(first: str | None, last: str | None, *, month: str | None) -> tuple[date, date] | None:
    """Return a range of days, None if none is given. Raises `BadUsage`."""
    if first is None and last is None:
        return None
    if month is not None:
        raise BadUsage("Give either --month, or --from and --to.")
    if first is None or last is None:
        raise BadUsage("--from and --to go together; both days are in the range.")
    days = day_of(first), day_of(last)
    if days[0] > days[1]:
        raise BadUsage(f"The range ends on {last}, before it begins on {first}.")
    return days


def _require_closable(
    month: str | None, *, demo: bool, as_closed: bool, version: int | None
) -> None:
    """Raise `BadUsage` if a question asks for a closed version without the month that has one."""
    if version is not None and (not as_closed or not 1 <= version < 2**31):
        raise BadUsage("--close-version is 1 or more, and goes with --as-closed.")
    if as_closed and (month in (None, "all") or demo):
        raise BadUsage("--as-closed shows one closed month of real events. Add --month YYYY-MM.")


def _compared(word: str | None) -> Compared | None:
    """Return the comparison that a user's word names, None without one. Raises `BadUsage`."""
    if word is None:
        return None
    try:
        return Compared(word)
    except ValueError:
        raise BadUsage(
            f"Nothing is compared with '{word}'. Use one of: {', '.join(Compared)}."
        ) from None


def _require_time(name: Split, text: str) -> None:
    """Raise `BadUsage` unless a text is a value of a dimension of time."""
    if name is Dimension.DAY:
        day_of(text)
    elif name in _TIME_SHAPES:
        shape, example = _TIME_SHAPES[name]
        if not shape.fullmatch(text) or not _exists(name, text):
            article = "an" if name is Dimension.HOUR else "a"
            raise BadUsage(f"'{text}' is not {article} {name}. Write it as {example}.")


def _exists(name: Split, text: str) -> bool:
    """Return True if a calendar has the week or hour of this shape: 2025 has no week 53."""
    try:
        if name is Dimension.WEEK:
            date.fromisocalendar(int(text[:4]), int(text[6:]), 1)
        elif name is Dimension.HOUR:
            datetime.fromisoformat(text)
    except ValueError:
        return False
    return not text.startswith("0000")


def day_of(text: str) -> date:
    """Return the day that a text `YYYY-MM-DD` names. Raises `BadUsage`."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise BadUsage(
            f"'{text}' is not a day. Write it as YYYY-MM-DD, for example 2026-11-20."
        ) from None
