"""The moments at which calendars surprise programs, in order: ends of months and years, leap days,
the nights of the clock change, and a day 93 days before a month without a partition.
"""

from __future__ import annotations

from datetime import UTC, datetime


def _at(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type]


MOMENTS: dict[str, datetime] = {
    "31 January": _at(2027, 1, 31, 12),
    "28 February": _at(2027, 2, 28, 23, 30),
    "the night to summer time in Berlin": _at(2027, 3, 28, 0, 59, 58),
    "31 March": _at(2027, 3, 31, 12),
    "30 June": _at(2027, 6, 30, 22, 30),  # July in Berlin
    "31 October, the night to winter time in Berlin": _at(2027, 10, 31, 0, 59, 58),
    "31 October": _at(2027, 10, 31, 23, 30),
    "28 November": _at(2027, 11, 28, 12),
    "31 December, two minutes to midnight": _at(2027, 12, 31, 23, 58),
    "1 January, a minute past midnight": _at(2028, 1, 1, 0, 1),
    "29 February": _at(2028, 2, 29, 12),
    "1 March, a minute past midnight": _at(2028, 3, 1, 0, 1),
}
