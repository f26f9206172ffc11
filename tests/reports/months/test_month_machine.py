"""Any order of events, late events, corrections, re-allocations, closes and reopenings keeps parts
= whole and closed = unchanged.

`TOLLGATE_MONTH_EXAMPLES` sets the number of examples; the default is for every run of the tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import text

from gateway.domain.calendar_months import next_month
from gateway.domain.ledger.usage_event import UsageEvent
from gateway.errors import OperatorError
from gateway.reports import WHOLE_ORGANISATION, Reports, ask, open_reports, to_csv, to_json
from gateway.storage.ledger import rollups
from gateway.storage.ledger.documents import encode_event
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.ledger.months import MonthStore
from gateway.storage.postgres.database import Database
from tests.postgres import _Database
from tests.storage.factories import event

MONTHS = (date(2026, 7, 1), date(2026, 8, 1), date(2026, 9, 1))
ACCEPTED = {
    "unpartitioned-events": "a test",
    "unreconciled-providers": "a test",
    "conflicting-events": "a test",
}
STEPS = settings(
    max_examples=int(os.environ.get("TOLLGATE_MONTH_EXAMPLES", "4")),
    stateful_step_count=14,
    deadline=None,
)
AS_CLOSED = (("spend", ["team"]), ("spend", ["cost_centre"]), ("events", None))
REALLOCATE = """
INSERT INTO tollgate.reallocations (month, from_cost_centre, to_cost_centre, amount_nusd, reason,
  author_login)
VALUES (:month, 'CC-1', 'CC-2', :nusd, 'x', 'ada') RETURNING reallocation_id
"""
APPROVE = """
INSERT INTO tollgate.reallocation_approvals (reallocation_id, reason) VALUES (:id, 'x')
"""


class MonthMachine(RuleBasedStateMachine):
    """Three months that are over. `closed` has the bytes of each version when it was closed."""

    def __init__(self, server_url: str, template: str, numbers: Iterator[int]) -> None:
        super().__init__()
        self.stack, self.numbers = ExitStack(), numbers
        name = f"tollgate_months_{os.getpid()}_{next(numbers)}"
        url = self.stack.enter_context(_Database(server_url, name, template=template))
        self.database = Database(url)
        self.stack.callback(self.database.close)
        self.ledger, self.months = Ledger(self.database), MonthStore(self.database)
        opened = open_reports(url, scope=WHOLE_ORGANISATION)
        self.reports: Reports = self.stack.enter_context(opened)
        self.written: list[UsageEvent] = []
        self.spent = Decimal(0)
        self.is_closed = dict.fromkeys(MONTHS, False)
        self.ledger.write([event(next(numbers), at=datetime(2026, 7, 1, tzinfo=UTC), cost_nusd=0)])
        self.closed: dict[tuple[date, int], list[str]] = {}

    def teardown(self) -> None:
        """Drop the database of this example."""
        self.stack.close()

    @rule(month=st.sampled_from(MONTHS), team=st.sampled_from("ab"), cost=st.integers(0, 9))
    def spend(self, month: date, team: str, cost: int) -> None:
        """Write an event, which is late if its month is closed."""
        made = event(
            next(self.numbers),
            at=datetime(month.year, month.month, 5, 12, tzinfo=UTC),
            team=team,
            cost_nusd=cost,
        )
        assert self.ledger.write([made]) == 1
        self.written.append(made)
        self.spent += cost

    @rule(which=st.integers(0, 99), cost=st.integers(0, 9))
    def correct(self, which: int, cost: int) -> None:
        """Let an event come again with another cost."""
        if self.written:
            place = which % len(self.written)
            old = self.written[place]
            changed = event(
                0,
                at=datetime(2026, 7, 5, 12, tzinfo=UTC),
                request_id=old.request_id,
                started_at=old.started_at,
                team=old.team,
                cost_nusd=cost,
                client_request_id=f"again-{next(self.numbers)}",
            )
            assert self.ledger.write_documents([encode_event(changed)]).inserted == 0
            assert old.cost_nusd is not None
            self.spent += cost - old.cost_nusd
            self.written[place] = changed

    @rule(month=st.sampled_from(MONTHS))
    def close(self, month: date) -> None:
        """Close a month; it works for the oldest one that is not closed."""
        if not any(self.is_closed.values()) and month != MONTHS[0]:
            return  # a ledger may begin with any month: here it begins with the first
        is_next = not self.is_closed[month] and all(
            done for one, done in self.is_closed.items() if one < month
        )
        try:
            close = self.months.close(month, billed=(), accepted=ACCEPTED)
        except OperatorError:
            assert not is_next
            return
        assert is_next
        self.is_closed[month] = True
        self.closed[month, close.version] = self._shown(month, close.version)

    @rule(month=st.sampled_from(MONTHS))
    def reopen(self, month: date) -> None:
        """Reopen a month; it works for the newest closed one."""
        is_newest = self.is_closed[month] and not self.is_closed.get(next_month(month), False)
        try:
            self.months.reopen(month, reason="a test")
        except OperatorError:
            assert not is_newest
            return
        assert is_newest
        self.is_closed[month] = False

    @rule(month=st.sampled_from(MONTHS), nusd=st.integers(1, 9))
    def reallocate(self, month: date, nusd: int) -> None:
        """Move cost between two cost centres, which sums to 0."""
        with self.database.begin() as connection:
            entry = connection.execute(text(REALLOCATE), {"month": month, "nusd": nusd})
            connection.execute(text(APPROVE), {"id": entry.scalar_one()})

    @rule()
    def sum_up(self) -> None:
        """Let the job sum up the hours."""
        rollups.refresh(self.database)

    @invariant()
    def parts_are_the_whole(self) -> None:
        """The months add up to all that was spent, by months and by teams."""
        total = self.reports.run("spend", ask()).total["total_usd"]
        by_month = self.reports.run("spend", ask(by=["month"]))
        by_team = self.reports.run("spend", ask(by=["team"]))
        assert (total or 0) * 10**9 == self.spent
        for split in (by_month, by_team):
            assert sum(row["total_usd"] for row in split.records()) == (total or 0)

    @invariant()
    def closed_is_unchanged(self) -> None:
        """Each version of a month still has its bytes and its hash."""
        for (month, version), shown in self.closed.items():
            assert self._shown(month, version) == shown
        for month in {month for month, _ in self.closed}:
            assert all(not one.differing for one in self.months.verify(month))

    def _shown(self, month: date, version: int) -> list[str]:
        """Return reports of a version of a month, as JSON and CSV."""
        found = []
        for name, by in AS_CLOSED:
            question = ask(month=f"{month:%Y-%m}", as_closed=True, close_version=version, by=by)
            report = self.reports.run(name, question)
            found += [to_json(report), to_csv(report)]
        return found


def test_any_order_of_events_closes_and_reopenings_keeps_the_books(
    postgres_url: str, migrated_template: str
) -> None:
    """Promise P6: closed months never change, and nothing is lost or counted twice."""
    numbers = count(1)
    run_state_machine_as_test(
        lambda: MonthMachine(postgres_url, migrated_template, numbers), settings=STEPS
    )
