"""A report's question, validated before it reaches Postgres."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from difflib import get_close_matches

from gateway.errors import BadUsage
from gateway.reports.dimensions import HAS_NO_TAG, HAS_TAG, UNALLOCATED, UNTAGGED, Dimension
from gateway.reports.report import Dataset

MAX_PAGE = 1000
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

    def condition(self) -> tuple[str, dict[str, object]]:
        """Return the WHERE clause and its parameters."""
        parts, values = ["true"], dict[str, object]()
        if self.month is not None:
            parts.append("posted_period = :month")
            values["month"] = self.month
        for position, (dimension, wanted) in enumerate(self.where):
            name = f"value_{position}"
            if dimension is Dimension.TAG:
                parts.append(
                    HAS_NO_TAG
                    if wanted in (None, UNALLOCATED, UNTAGGED)
                    else HAS_TAG.format(name=name)
                )
            else:
                parts.append(
                    f"{dimension.sql} IS NULL" if wanted is None else f"{dimension.sql} = :{name}"
                )
            values[name] = (
                date.fromisoformat(wanted) if dimension is Dimension.DAY and wanted else wanted
            )
        return " AND ".join(parts), values


def ask(
    *,
    month: str | None = None,
    by: Sequence[str] | None = None,
    where: Mapping[str, str | None] | None = None,
    demo: bool = False,
    limit: int | None = 100,
    offset: int = 0,
) -> Question:
    """Return a question from user input. `month` is `YYYY-MM` or `all`.

    Raises `BadUsage` with the accepted words.
    """
    if (limit is not None and not 1 <= limit <= MAX_PAGE) or offset < 0:
        raise BadUsage(
            f"A page has 1 to {MAX_PAGE} rows and starts at 0 or later; got {limit} from {offset}. "
            f"CSV and JSON without --limit have every row."
        )
    filters = tuple((dimension(name), value) for name, value in (where or {}).items())
    for name, value in filters:
        if name is Dimension.DAY and value is not None:
            _day(value)
    return Question(
        dataset=Dataset.DEMO if demo else Dataset.REAL,
        month=None if month in (None, "all") else month_start(month),
        by=None if by is None else tuple(dict.fromkeys(dimension(name) for name in by)),
        where=filters,
        limit=limit,
        offset=offset,
    )


def dimension(name: str) -> Dimension:
    """Return the dimension of a word. Raises `BadUsage` with all of them."""
    try:
        return Dimension(name.replace("-", "_"))
    except ValueError:
        near = get_close_matches(name, list(Dimension), n=1)
        meant = f"Did you mean '{near[0]}'? " if near else ""
        raise BadUsage(
            f"Nothing is called '{name}'. {meant}Use one of: {', '.join(Dimension)}."
        ) from None


def month_start(month: str) -> date:
    """Return the first day of `YYYY-MM`. Raises `BadUsage`."""
    match = _MONTH.fullmatch(month)
    if match is None or match[1] == "0000":
        raise BadUsage(
            f"'{month}' is not a month. Write it as YYYY-MM, for example 2026-11, or 'all'."
        )
    return date(int(match[1]), int(match[2]), 1)


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise BadUsage(
            f"'{text}' is not a day. Write it as YYYY-MM-DD, for example 2026-11-20."
        ) from None
