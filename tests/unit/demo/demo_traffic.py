"""A small demo organisation, made once for the tests beside it."""

from __future__ import annotations

from datetime import date
from functools import cache

from gateway.domain.ledger.usage_event import UsageEvent
from gateway.services.demo.organisation import OrganisationSize, calendar_of
from gateway.services.demo.prices import prices_of
from gateway.services.demo.traffic import Traffic
from gateway.storage.policy.price_list import builtin_price

SIZE = OrganisationSize(months=3, events=12_000, teams=24, seed=7)
LAST = date(2026, 11, 25)


def traffic(size: OrganisationSize = SIZE, *, is_demo: bool = True) -> Traffic:
    """Return the traffic of an organisation that ends on the same day in every test."""
    calendar = calendar_of(size, last=LAST)
    return Traffic(size, calendar, prices_of(calendar, builtin_price), is_demo=is_demo)


@cache
def all_events() -> tuple[UsageEvent, ...]:
    """Return the events of the whole organisation, in order."""
    made = traffic()
    return tuple(made.events(made.hours()))
