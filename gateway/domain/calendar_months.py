"""Computes with months of the calendar, each given by its first day; says which of them the ledger
has partitions for.
"""

from __future__ import annotations

from datetime import date, timedelta

# A replica that nobody looks after for a season must not fill the default partition.
MONTHS_AHEAD = 3


def next_month(day: date) -> date:
    """Return the first day of the month after a day's own."""
    return (day.replace(day=28) + timedelta(days=4)).replace(day=1)


def last_month(day: date) -> date:
    """Return the first day of the month before a day's own. Raises `OverflowError` in year 1."""
    return (day.replace(day=1) - timedelta(days=1)).replace(day=1)


def last_partitioned_month(today: date) -> date:
    """Return the first day of the last month whose partition is made on a day: the third after its
    own. A count of days would reach into a fourth month at the end of some months.
    """
    month = today
    for _ in range(MONTHS_AHEAD):
        month = next_month(month)
    return month


def last_required_month(today: date) -> date:
    """Return the first day of the last month whose partition must exist on a day: one less than is
    made, because at the turn of a month the next one is made some hours later.
    """
    return last_month(last_partitioned_month(today))
