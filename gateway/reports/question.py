"""Declares a report's question (month, split, filters, page), validates it from user input, and
builds its SQL conditions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from difflib import get_close_matches

from sqlalchemy import ColumnElement

from gateway.errors import BadUsage
from gateway.reports.dimensions import Columns, Dimension, has_tag
from gateway.reports.report import Dataset

MAX_PAGE = 1000
MAX_OFFSET = 2**63 - 1  # of Postgres
_MONTH = re.compile(r"(\d{4})-(0[1-9]|1[0-2])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The selection and split of events.

    `month` None means all months; `by` None means the report's own default.

    `where` pairs a dimension with its required value; None asks for events without one. `limit` and
    `offset` page through the rows of an export and of reports that list events. Without a `limit`
    an export has every row.
    """

    dataset: Dataset = Dataset.REAL
    month: date | None = None
    by: tuple[Dimension, ...] | None = None
    where: tuple[tuple[Dimension, str | None], ...] = ()
    limit: int | None = 100
    offset: int = 0

    def conditions(self, row: Columns) -> list[ColumnElement[bool]]:
        """Return the SQL conditions of the question's month and filters on a row, with bound
        values.
        """
        found = [] if self.month is None else [row.posted_period == self.month]
        return found + [_condition(row, dimension, wanted) for dimension, wanted in self.where]


def ask(
    *,
    month: str | None = None,
    by: Sequence[str] | None = None,
    where: Mapping[str, str | None] | None = None,
    demo: bool = False,
    limit: int | None = 100,
    offset: int = 0,
) -> Question:
    """Return a valid question from user input. `month` is `YYYY-MM` or `all`.

    Raises `BadUsage` with the accepted words.
    """
    if limit is not None and not 1 <= limit <= MAX_PAGE:
        raise BadUsage(
            f"A page has 1 to {MAX_PAGE} rows; got {limit}. CSV and JSON without --limit have "
            "every row."
        )
    if not 0 <= offset <= MAX_OFFSET:
        raise BadUsage(f"A page starts at row 0 or later; got {offset}.")
    filters = tuple((dimension(name), value) for name, value in (where or {}).items())
    for name, value in filters:
        if name is Dimension.DAY and value is not None:
            _day(value)
    return Question(
        dataset=Dataset.DEMO if demo else Dataset.REAL,
        month=None if month in (None, "all") else month_start(month, or_all=True),
        by=None if by is None else tuple(dict.fromkeys(dimension(name) for name in by)),
        where=filters,
        limit=limit,
        offset=offset,
    )


def dimension(name: str) -> Dimension:
    """Return the dimension that a user's word names. Raises `BadUsage` with all of them."""
    try:
        return Dimension(name.replace("-", "_"))
    except ValueError:
        near = get_close_matches(name, list(Dimension), n=1)
        meant = f"Did you mean '{near[0]}'? " if near else ""
        raise BadUsage(
            f"Nothing is called '{name}'. {meant}Use one of: {', '.join(Dimension)}."
        ) from None


def month_start(month: str, *, or_all: bool = False) -> date:
    """Return the first day of `YYYY-MM`. Raises `BadUsage`, which names `all` if the caller takes
    it.
    """
    match = _MONTH.fullmatch(month)
    if match is None or match[1] == "0000":
        raise BadUsage(
            f"'{month}' is not a month. Write it as YYYY-MM, for example 2026-11"
            + (", or 'all'." if or_all else ".")
        )
    return date(int(match[1]), int(match[2]), 1)


def _condition(row: Columns, by: Dimension, wanted: str | None) -> ColumnElement[bool]:
    """Return the SQL condition that a row has the wanted value of a dimension."""
    if by is Dimension.TAG:
        return has_tag(row, wanted)
    if by is Dimension.DAY and wanted is not None:
        return by.of(row) == date.fromisoformat(wanted)
    return by.of(row) == wanted


def _day(text: str) -> date:
    """Return the day that a text `YYYY-MM-DD` names. Raises `BadUsage`."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise BadUsage(
            f"'{text}' is not a day. Write it as YYYY-MM-DD, for example 2026-11-20."
        ) from None
