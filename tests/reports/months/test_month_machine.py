"""Any order of events, late events, corrections, settlements, re-allocations, GPU bills, currency
rates, closes and reopenings keeps parts = whole and closed = unchanged.

`make month-sequences` runs many; the default is for every run of the tests.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import count
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import text

from gateway.domain.allocation.currency import new_rate
from gateway.domain.calendar_months import next_month
from gateway.domain.deployments.gpu_bills import HOUR_MS, BillLine
from gateway.domain.deployments.imported_bills import BillFile
from gateway.domain.ledger.usage_event import UsageEvent
from gateway.domain.money import usd_from_nusd
from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from gateway.errors import OperatorError
from gateway.reports.json_and_csv import to_csv, to_json
from gateway.reports.question import ask
from gateway.reports.reports import Reports, open_reports
from gateway.reports.scope import WHOLE_ORGANISATION
from gateway.storage.allocation.currencies import CurrencyStore
from gateway.storage.deployments.gpu_bills import GpuBillStore
from gateway.storage.ledger import rollups
from gateway.storage.ledger.adjustments import ResolutionStore
from gateway.storage.ledger.documents import encode_event
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.ledger.months import MonthStore
from gateway.storage.postgres.database import Database
from tests.postgres import _Database
from tests.storage.factories import event

MONTHS = (date(2026, 7, 1), date(2026, 8, 1), date(2026, 9, 1))
ACCEPTED = dict.fromkeys(
    (
        *("unpartitioned-events", "unreconciled-providers", "conflicting-events"),
        *("unsettled-events", "unknown-share"),
    ),
    "a test",
)
STEPS = settings(
    max_examples=int(os.environ.get("TOLLGATE_MONTH_SEQUENCES", "3")),
    stateful_step_count=16,
    deadline=None,
)
AS_CLOSED = (
    ("spend", ["cost_centre"], None),
    ("spend", ["team"], "EUR"),
    ("gpu", None, None),
    ("events", None, None),
)
UNKNOWN = {
    "usage": TokenUsage(),
    "usage_source": UsageSource.UNKNOWN,
    "lines": (),
    "cost_nusd": None,
    "held_nusd": 5,
}
REALLOCATE = """
INSERT INTO tollgate.reallocations (month, from_cost_centre, to_cost_centre, amount_nusd, reason,
  author_login)
VALUES (:month, 'CC-1', 'CC-2', :nusd, 'x', 'ada') RETURNING reallocation_id
"""
APPROVE = """
INSERT INTO tollgate.reallocation_approvals (reallocation_id, reason) VALUES (:id, 'x')
"""


class MonthMachine(RuleBasedStateMachine):
    """Three months that are over. `closed` has the bytes of each version when it was closed,
    `billed` the amount of each month's GPU invoice, and `done` counts the steps of all sequences.
    """

    def __init__(
        self, server_url: str, template: str, numbers: Iterator[int], done: Counter[str]
    ) -> None:
        super().__init__()
        self.stack, self.numbers, self.done = ExitStack(), numbers, done
        self.done["sequences"] += 1
        name = f"tollgate_months_{os.getpid()}_{next(numbers)}"
        url = self.stack.enter_context(_Database(server_url, name, template=template))
        self.database = Database(url)
        self.stack.callback(self.database.close)
        self.ledger, self.months = Ledger(self.database), MonthStore(self.database)
        opened = open_reports(url, scope=WHOLE_ORGANISATION)
        self.reports: Reports = self.stack.enter_context(opened)
        self.written: list[UsageEvent] = []
        self.unknown: list[UsageEvent] = []
        self.billed: dict[date, int] = {}
        self.spent = Decimal(0)
        self.is_closed = dict.fromkeys(MONTHS, False)
        self.ledger.write([event(next(numbers), at=datetime(2026, 7, 1, tzinfo=UTC), cost_nusd=0)])
        self.closed: dict[tuple[date, int], list[str]] = {}

    def teardown(self) -> None:
        """Look once more, and drop the database of this sequence."""
        with self.stack:
            self.look()
        if self.done["sequences"] % 10 == 0:
            print(counted(self.done))

    @rule(month=st.sampled_from(MONTHS), team=st.sampled_from("ab"), cost=st.integers(0, 9))
    def spend(self, month: date, team: str, cost: int) -> None:
        """Write an event, which is late if its month is closed."""
        made = event(
            next(self.numbers),
            at=datetime(month.year, month.month, 5, 12, tzinfo=UTC),
            team=team,
            cost_nusd=cost,
        )
        self.done["events"] += 1
        assert self.ledger.write([made]) == 1
        self.written.append(made)
        self.spent += cost

    @rule(month=st.sampled_from(MONTHS))
    def lose_sight(self, month: date) -> None:
        """Write an event of unknown cost."""
        at = datetime(month.year, month.month, 6, 12, tzinfo=UTC)
        made = event(next(self.numbers), at=at, team="a", **UNKNOWN)
        self.done["events of unknown cost"] += 1
        assert self.ledger.write([made]) == 1
        self.unknown.append(made)

    @rule(cost=st.integers(0, 9))
    def settle(self, cost: int) -> None:
        """Enter the cost of the oldest unknown event, whose month may be closed."""
        if self.unknown:
            found = self.unknown.pop(0)
            self.done["settlements"] += 1
            ResolutionStore(self.database).resolve(
                found.request_id, attempt=None, cost=cost, reason="an invoice"
            )
            self.spent += cost

    @rule(month=st.sampled_from(MONTHS), nusd=st.integers(0, 9))
    def bill(self, month: date, nusd: int) -> None:
        """Import the month's GPU invoice, or a correction of it; it is late if the month is
        closed.
        """
        begin = datetime(month.year, month.month, 7, 12, tzinfo=UTC)
        line = BillLine(
            number=2,
            deployment="qwen-eu",
            begin=begin,
            end=begin + timedelta(hours=2),
            gpu_ms=2 * HOUR_MS,
            amount_nusd=nusd,
            invoice_id=f"INV-{month:%Y-%m}",
        )
        self.done["GPU bills"] += 1
        late = GpuBillStore(self.database).add(BillFile(name="b.csv", sha256="0" * 64), [line])
        if self.is_closed[month]:
            assert late.late_usd == usd_from_nusd(nusd - self.billed.get(month, 0))
        else:
            assert not late.is_late
        self.billed[month] = nusd

    @rule(month=st.sampled_from(MONTHS), rate=st.sampled_from(("0.7", "1.25", "3")))
    def rate(self, month: date, rate: str) -> None:
        """Add a rate of the euro from a month on; a closed month that has one keeps it."""
        self.done["currency rates"] += 1
        made = new_rate(
            currency="EUR", first_day=month, usd_per_unit=Decimal(rate), source="a test"
        )
        try:
            CurrencyStore(self.database).add(made)
        except OperatorError:
            assert any(done for one, done in self.is_closed.items() if one >= month)

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
            self.done["corrections"] += 1
            self.spent += cost - old.cost_nusd
            self.written[place] = changed

    @rule(drawn=st.none() | st.sampled_from(MONTHS))
    def close(self, drawn: date | None) -> None:
        """Close the month that is next, or any: it works for the oldest one that is not closed."""
        nexts = [one for one, done in self.is_closed.items() if not done]
        month = drawn or (nexts[0] if nexts else MONTHS[-1])
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
        self.done["closes"] += 1
        self.is_closed[month] = True
        self.closed[month, close.version] = self._shown(month, close.version)

    @rule(drawn=st.none() | st.sampled_from(MONTHS))
    def reopen(self, drawn: date | None) -> None:
        """Reopen the newest closed month, or any, for which it does not work."""
        closed = [one for one, done in self.is_closed.items() if done]
        month = drawn or (closed[-1] if closed else MONTHS[0])
        is_newest = self.is_closed[month] and not self.is_closed.get(next_month(month), False)
        try:
            self.months.reopen(month, reason="a test")
        except OperatorError:
            assert not is_newest
            return
        assert is_newest
        self.done["reopenings"] += 1
        self.is_closed[month] = False

    @rule(month=st.sampled_from(MONTHS), nusd=st.integers(1, 9))
    def reallocate(self, month: date, nusd: int) -> None:
        """Move cost between two cost centres, which sums to 0."""
        self.done["re-allocations"] += 1
        with self.database.begin() as connection:
            entry = connection.execute(text(REALLOCATE), {"month": month, "nusd": nusd})
            connection.execute(text(APPROVE), {"id": entry.scalar_one()})

    @rule()
    def sum_up(self) -> None:
        """Let the job sum up the hours."""
        rollups.refresh(self.database)

    @rule()
    def look(self) -> None:
        """Look at everything that must hold, as at the end of each sequence."""
        self.check_parts()
        self.check_bills()
        self.check_closed()

    @invariant()
    def teams_add_up(self) -> None:
        """The teams add up to all that was spent."""
        report = self.reports.run("spend", ask(by=["team"]))
        for rows in ([report.total], report.records()):
            assert nusd_of(rows) == self.spent

    def check_parts(self) -> None:
        """The months and the cost centres add up to all that was spent."""
        for by in ("month", "cost_centre"):
            assert nusd_of(self.reports.run("spend", ask(by=[by])).records()) == self.spent

    def check_bills(self) -> None:
        """The GPU cost of all months is that of the newest invoices, closed or late."""
        bills = self.reports.run("gpu", ask())
        assert (bills.total["bill_usd"] or 0) * 10**9 == sum(self.billed.values())
        for row in (*bills.records(), bills.total):
            parts = [row[name] or 0 for name in ("applied_usd", "idle_usd", "variance_usd")]
            assert sum(parts) == (row["bill_usd"] or 0)

    def check_closed(self) -> None:
        """Each version of a month still has its bytes and its hash."""
        for (month, version), shown in self.closed.items():
            assert self._shown(month, version) == shown
        for month in {month for month, _ in self.closed}:
            assert all(not one.differing for one in self.months.verify(month))

    def _shown(self, month: date, version: int) -> list[str]:
        """Return reports of a version of a month, as JSON and CSV, or why there is none."""
        found = []
        for name, by, currency in AS_CLOSED:
            question = ask(
                month=f"{month:%Y-%m}",
                as_closed=True,
                close_version=version,
                by=by,
                currency=currency,
            )
            try:
                report = self.reports.run(name, question)
            except OperatorError as no_rate:
                assert currency is not None
                found.append(str(no_rate))
            else:
                found += [to_json(report), to_csv(report)]
        return found


def nusd_of(rows: Iterable[Mapping[str, Any]]) -> Decimal:
    """Return the sum of rows in nano-dollars; a row of unknown costs alone has none."""
    return sum((row["total_usd"] or Decimal(0) for row in rows), Decimal(0)) * 10**9


def counted(done: Counter[str]) -> str:
    """Return the sequences and their steps so far as text."""
    return ", ".join(f"{number:,} {name}" for name, number in done.items())


def test_any_order_of_events_closes_and_reopenings_keeps_the_books(
    postgres_url: str, migrated_template: str
) -> None:
    """Promise P6: closed months never change, and nothing is lost or counted twice."""
    numbers, done = count(1), Counter[str]()
    run_state_machine_as_test(
        lambda: MonthMachine(postgres_url, migrated_template, numbers, done), settings=STEPS
    )
    print(counted(done))
