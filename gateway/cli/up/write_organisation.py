"""Writes a demo organisation into the ledger: registers it, copies its events, and sums up the
hours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date

from gateway.domain.ledger.usage_event import UsageEvent
from gateway.services.demo.hours import Hour, slices_of
from gateway.services.demo.metered import Key, Metered, add_up, metered
from gateway.services.demo.organisation import Calendar, OrganisationSize, calendar_of
from gateway.services.demo.prices import PriceSince, prices_of
from gateway.services.demo.traffic import Traffic
from gateway.services.ports import BuiltinPrices
from gateway.storage.ledger import rollups
from gateway.storage.ledger.bulk import BulkLedger
from gateway.storage.ledger.demo_organisations import DemoOrganisationTable
from gateway.storage.policy.prices import PriceStore
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.partitions import ensure_months

# Events whose days are summed up while the next ones are made: each sum has some fixed costs, and
# those of the last events have a core to themselves.
SUM_EVERY = 50_000
SUMMING = 2  # one sums up hours, and the other the days of those that are done


@dataclass(slots=True)
class WrittenOrganisation:
    """An organisation in the ledger: the number of its new events, and for a demo ledger its usage
    by day and deployment.
    """

    calendar: Calendar
    prices: Mapping[str, Sequence[PriceSince]]
    new_events: int = 0
    usage: dict[Key, Metered] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SliceMaker:
    """Makes the events of a slice, and their usage if invoices will be made of it."""

    traffic: Traffic
    is_ledger: bool

    def __call__(self, hours: Sequence[Hour]) -> tuple[list[UsageEvent], dict[Key, Metered]]:
        """Return the events of some hours, and their usage."""
        events = self.traffic.events(hours)
        return events, metered(events) if self.is_ledger else {}


def write_organisation(
    database: Database,
    size: OrganisationSize,
    *,
    last_day: date,
    builtin: BuiltinPrices,
    is_ledger: bool,
    on_progress: Callable[[int], None],
) -> WrittenOrganisation:
    """Write the events of an organisation, each once; `on_progress` gets the number of events that
    are in the ledger.

    Raises `OperatorError` if a demo ledger would mix with real events, or `DatabaseUnavailable`;
    then repeat the call, and it continues.
    """
    size.check()
    prices_of(calendar_of(size, last=last_day), builtin)  # raises before anything is recorded
    demo_organisations = DemoOrganisationTable(database)
    last = demo_organisations.begin(size.name, is_ledger=is_ledger, last_day=last_day)
    calendar = calendar_of(size, last=last)
    prices = prices_of(calendar, builtin)
    ensure_months(database, first=calendar.first, last=calendar.last)
    PriceStore(database).store_event_prices(
        dated.price for each in prices.values() for dated in each
    )
    traffic = Traffic(size, calendar, prices, is_demo=not is_ledger)
    found = WrittenOrganisation(calendar, prices)
    summing = ThreadPoolExecutor(SUMMING)
    try:
        make = SliceMaker(traffic, is_ledger)
        _copy_and_sum(database, make, found=found, summing=summing, on_progress=on_progress)
    finally:
        summing.shutdown(cancel_futures=True)
    rollups.refresh(database)
    return found


def _copy_and_sum(
    database: Database,
    make: SliceMaker,
    *,
    found: WrittenOrganisation,
    summing: ThreadPoolExecutor,
    on_progress: Callable[[int], None],
) -> None:
    """Copy all events into the ledger, and sum up the days that are whole meanwhile."""
    done = summed = 0
    sums: list[Future[int]] = []
    slices = list(slices_of(make.traffic.hours()))
    bulk = BulkLedger(database.url, role_if_member="tollgate_gateway")
    for number, one in enumerate(bulk.copy(slices, make), 1):
        done += one.events
        found.new_events += one.new
        add_up(found.usage, one.kept)
        on_progress(done)
        whole_until = _whole_until(slices, number)
        if found.new_events and whole_until is not None and done - summed >= SUM_EVERY:
            summed = done
            sums.append(summing.submit(rollups.refresh, database, before=whole_until))
    for days in sums:
        days.result()


def _whole_until(slices: Sequence[Sequence[Hour]], number: int) -> date | None:
    """Return the day before which all events are in the first `number` slices; None if its own
    events are partly there too, or if there are no more slices.
    """
    if number == len(slices):
        return None
    day = slices[number][0].begins.date()
    return day if slices[number - 1][-1].begins.date() < day else None
