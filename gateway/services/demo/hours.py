"""Divides the events of the demo organisation among the hours of its history: office hours,
weekends, holidays, growth and one spike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from itertools import groupby
from typing import NamedTuple

from gateway.services.demo.catalogue import (
    AUGUST_SHARE,
    GROWTH_PER_MONTH,
    HOLIDAY_SHARE,
    HOLIDAYS,
    HOURS,
    OFFICE,
)
from gateway.services.demo.organisation import Calendar, Project

SLICE_EVENTS = 10_000  # of one transaction; an hour is never divided
SPIKE_HOURS = range(9, 22)
SPIKE_SHARE = 0.8  # the runaway key's events, as a share of the others' in the hour
INCIDENT_HOURS = range(8, 12)
DAYS_PER_MONTH = 30.4375  # the mean month: 365.25 / 12


class Hour(NamedTuple):
    """One hour (UTC) of the history and the number of its events."""

    begins: datetime
    events: int


def hours_of(calendar: Calendar, projects: Iterable[Project], *, events: int) -> list[Hour]:
    """Return every hour that has events, in order; their events add up to exactly `events`."""
    traffic: dict[str, float] = {}
    for project in projects:
        traffic[project.work.hours] = traffic.get(project.work.hours, 0.0) + project.weight
    begins = [
        datetime.combine(calendar.first, time(), UTC) + timedelta(hours=n)
        for n in range(24 * calendar.days)
    ]
    weights = [_weight(moment, calendar, traffic) for moment in begins]
    unit = events / sum(weights)
    counts = [int(weight * unit) for weight in weights]
    # The largest remainders get the rest, so that not one event is lost to rounding.
    by_remainder = sorted(range(len(counts)), key=lambda n: counts[n] - weights[n] * unit)
    for place in by_remainder[: events - sum(counts)]:
        counts[place] += 1
    return [Hour(*pair) for pair in zip(begins, counts, strict=True) if pair[1]]


def slices_of(hours: Iterable[Hour]) -> Iterator[tuple[Hour, ...]]:
    """Yield consecutive hours, each time for one transaction: whole days of at most `SLICE_EVENTS`
    events together, or a part of one day with more.
    """
    collected: list[Hour] = []
    for _, of_day in groupby(hours, key=lambda hour: hour.begins.date()):
        day = list(of_day)
        if collected and _events(collected) + _events(day) > SLICE_EVENTS:
            yield tuple(collected)
            collected = []
        for hour in day:
            if collected and _events(collected) + hour.events > SLICE_EVENTS:
                yield tuple(collected)
                collected = []
            collected.append(hour)
    if collected:
        yield tuple(collected)


def _events(hours: Iterable[Hour]) -> int:
    """Return the number of events of some hours."""
    return sum(hour.events for hour in hours)


def share_of_day(kind: str, hour: int, *, day: date) -> float:
    """Return the part of a working day's traffic of one kind of use that falls into an hour."""
    profile = HOURS[kind]
    share = profile.weights[hour] / sum(profile.weights)
    if day.weekday() >= 5:
        return share * profile.weekend
    is_holiday = kind == OFFICE and (day.month, day.day) in HOLIDAYS
    return share * (HOLIDAY_SHARE if is_holiday else 1.0)


def is_spike(moment: datetime, calendar: Calendar) -> bool:
    """Return True if the runaway key sends requests in the hour of a moment."""
    return moment.date() == calendar.spike and moment.hour in SPIKE_HOURS


def is_incident(moment: datetime, calendar: Calendar) -> bool:
    """Return True if a provider fails in the hour of a moment."""
    return moment.date() == calendar.incident and moment.hour in INCIDENT_HOURS


def _weight(moment: datetime, calendar: Calendar, traffic: Mapping[str, float]) -> float:
    """Return the weight of an hour among all hours; `traffic` is by kind of use."""
    day = moment.date()
    weight = sum(
        amount * share_of_day(kind, moment.hour, day=day) for kind, amount in traffic.items()
    )
    months = (day - calendar.first).days / DAYS_PER_MONTH
    season = AUGUST_SHARE if day.month == 8 else 1.0
    spike = 1 + SPIKE_SHARE if is_spike(moment, calendar) else 1.0
    return float(weight * GROWTH_PER_MONTH**months * season * spike)
