"""Computes with months of the calendar, each given by its first day."""

from __future__ import annotations

from datetime import date, timedelta


def next_month(day: date) -> date:
    """Return the first day of the month after a day's own."""
    return (day.replace(day=28) + timedelta(days=4)).replace(day=1)


def last_month(day: date) -> date:
    """Return the first day of the month before a day's own. Raises `OverflowError` in year 1."""
    return (day.replace(day=1) - timedelta(days=1)).replace(day=1)
