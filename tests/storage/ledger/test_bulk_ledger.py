"""Copying generated events: the same rows as the ledger's own writer, each slice once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal

import pytest
from sqlalchemy import Connection, text

from gateway.domain.budgets.budgets import Hold
from gateway.domain.ledger.usage_event import UsageEvent
from gateway.domain.pricing.tokens import TokenUsage
from gateway.errors import OperatorError
from gateway.storage.ledger import rollups
from gateway.storage.ledger.bulk import COLUMNS, BulkLedger
from gateway.storage.ledger.demo_organisations import DemoOrganisationTable
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests.storage.factories import NOON, event
from tests.unit.demo.demo_traffic import traffic
from tests.waiting import eventually

ROLE = "tollgate_gateway"
WAITING = """
SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'tollgate.dirty_hours'::regclass
"""
ODD = (
    event(1, end_user='a "quoted"\tname\\', tags={"k": "ü\n"}, service_tier="flex"),
    event(2, usage_detail={"note": "x"}, usage=TokenUsage(input_tokens=7, audio_input_tokens=3)),
    event(3, cost_nusd=None, held_nusd=5, lines=(), reported=TokenUsage(output_tokens=4)),
    event(4, at=NOON - timedelta(days=40), queue_s=0.5, max_gap_s=0.25, degraded="spill"),
)


@dataclass(frozen=True)
class Made:
    """Makes slices of events that are known beforehand; a slice is its number."""

    slices: Sequence[Sequence[UsageEvent]]

    def __call__(self, number: int) -> tuple[Sequence[UsageEvent], int]:
        return self.slices[number], number


def sample() -> list[UsageEvent]:
    """Return some hours of the demo organisation, with the morning on which a provider fails."""
    made = traffic()
    hours = [hour for hour in made.hours() if hour.begins.date() == made.calendar.incident]
    return made.events(hours)


def rows(database: Database) -> list[tuple[object, ...]]:
    """Return every stored event without the moment at which it was recorded."""
    with database.begin() as connection:
        found = connection.execute(
            text(
                f"SELECT {', '.join(COLUMNS)} FROM tollgate.usage_events "
                "ORDER BY request_id, attempt"
            )
        )
        return [tuple(row) for row in found]


def scalar(connection: Connection, query: str) -> object:
    """Return the single value of a query."""
    return connection.execute(text(query)).scalar_one()


def copied(database_url: str, *slices: Sequence[UsageEvent], processes: int = 1) -> list[int]:
    """Copy slices, and return the number of new events of each."""
    ledger = BulkLedger(database_url, role_if_member=ROLE)
    made = ledger.copy(range(len(slices)), Made(slices), processes=processes)
    return [one.new for one in sorted(made, key=lambda one: one.kept)]


def test_a_copied_row_equals_a_written_one(database: Database, database_url: str) -> None:
    """Column by column, the digest too: else a redelivery would book a correction."""
    events = [*sample(), *ODD]
    assert copied(database_url, events) == [len(events)]
    as_copied = rows(database)
    with database.begin() as connection:
        connection.execute(text("ALTER TABLE tollgate.usage_events DISABLE TRIGGER USER"))
        connection.execute(text("DELETE FROM tollgate.usage_events"))
    assert Ledger(database).write(events) == len(events)
    assert as_copied == rows(database)


def test_a_slice_is_there_once(database: Database, database_url: str) -> None:
    """A repeat adds nothing, and neither does the ledger's own writer."""
    events = sample()
    half = len(events) // 2
    slices = (events[:half], events[half:], [])
    assert copied(database_url, *slices) == [half, len(events) - half, 0]
    before = rows(database)
    assert copied(database_url, *slices) == [0, 0, 0]
    assert Ledger(database).write(events) == 0
    assert rows(database) == before
    with database.begin() as connection:
        assert connection.execute(text("SELECT count(*) FROM tollgate.adjustments")).scalar() == 0


def test_two_processes_copy_as_one_does(database: Database, database_url: str) -> None:
    """Each has a connection of its own; both mark the hours that must be summed again."""
    events = sample()
    half = len(events) // 2
    assert sum(copied(database_url, events[:half], events[half:], processes=2)) == len(events)
    hours = {one.occurred_at.replace(minute=0, second=0, microsecond=0) for one in events}
    assert rollups.refresh(database) == len(hours)
    assert rollups.check(database) == ()
    with database.begin() as connection:
        nusd = connection.execute(text("SELECT sum(cost_nusd) FROM tollgate.spend_rollup"))
        assert nusd.scalar_one() == sum(one.cost_nusd or 0 for one in events)


def test_a_new_month_does_not_wait_for_its_first_slice(
    database: Database, database_url: str
) -> None:
    """The other process writes the same month. It would wait for the whole slice, and on a busy
    machine a slice takes longer than Postgres lets it wait for a lock.
    """
    events = sample()
    with ThreadPoolExecutor(1) as pool, database.begin() as blocking:
        # A slice notes its hours last: there it waits, with all its locks.
        blocking.execute(text("LOCK TABLE tollgate.dirty_hours IN SHARE MODE"))
        copying = pool.submit(copied, database_url, events)
        eventually(lambda: scalar(blocking, WAITING), "the slice at its last statement")
        months = scalar(blocking, "SELECT count(*) FROM tollgate.periods")
    assert copying.result() == [len(events)]
    assert months == 1


def test_an_event_with_a_hold_is_refused(database: Database, database_url: str) -> None:
    """A copied event charges no budget, so it may not claim to."""
    hold = Hold(account_id="team/payments", starts_s=0, held_nusd=1)
    with pytest.raises(AssertionError, match="charge no budget"):
        copied(database_url, [event(1, holds=(hold,))])
    assert rows(database) == []


def test_a_demo_ledger_is_not_mixed_with_real_events(database: Database) -> None:
    """The first registration decides the last day; a ledger is of one organisation."""
    table = DemoOrganisationTable(database)
    day, later = date(2026, 11, 19), date(2026, 12, 1)
    assert table.begin("a", is_ledger=False, last_day=day) == day
    assert table.begin("a", is_ledger=True, last_day=day) == day
    assert table.begin("a", is_ledger=True, last_day=later) == day
    with pytest.raises(OperatorError, match=r"of another organisation \(a\).*TOLLGATE_HOME"):
        table.begin("b", is_ledger=True, last_day=day)
    assert table.begin("b", is_ledger=False, last_day=day) == day


@pytest.mark.parametrize("is_summed", [True, False])
def test_real_events_refuse_a_demo_ledger(database: Database, is_summed: bool) -> None:
    """Also those that no roll-up has yet; demo events do not."""
    table = DemoOrganisationTable(database)
    ledger = Ledger(database)
    ledger.write([event(1, is_demo=True)])
    if not is_summed:
        ledger.write([event(2)])
    else:
        ledger.write([event(2, cost_nusd=int(Decimal(7)))])
        rollups.refresh(database)
    with pytest.raises(OperatorError, match="has real events"):
        table.begin("a", is_ledger=True, last_day=date(2026, 11, 19))
    assert table.begin("a", is_ledger=False, last_day=date(2026, 11, 19))


def test_the_processes_leave_no_variable_behind(database: Database, database_url: str) -> None:
    """A child of this process that starts later finds its modules as before."""
    before = dict(os.environ)
    assert copied(database_url, ODD[:1], ODD[1:2], processes=2) == [1, 1]
    assert dict(os.environ) == before
