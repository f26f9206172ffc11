"""Windows of one budget that overlap, under any order of applies, slices, settlements, replicas,
corrections, crashes and grants.

The model keeps each attempt with its intent. Two replicas may have different zones at any time, as
they have when one learns of a policy later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from uuid import UUID, uuid4

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import text

from gateway.domain.budgets.budgets import BudgetPeriod, Hold, PeriodSpan, SliceGranted, period_at
from gateway.domain.ledger.usage_event import UsageEvent
from gateway.storage.budgets.budgets import BudgetLeaseTable, BudgetStore, budget_mistakes
from gateway.storage.ledger.documents import encode_event
from gateway.storage.ledger.journals_table import JournalTable
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests.storage.budget_books import ask, declare, rows, spending, team_rule

LIMIT = 1000
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Tokyo", "Asia/Kolkata"]
STEPS = settings(max_examples=60, stateful_step_count=30, deadline=None)


@dataclass
class Attempt:
    """An attempt under one window: its intent, and the amount at which it counts once written."""

    number: int
    starts_s: int
    intended_at: datetime
    counted_nusd: int


@dataclass
class Replica:
    """One gateway: the zone that it knows, its free money by window, and its attempts."""

    zone: str = "UTC"
    journal: UUID = field(default_factory=uuid4)
    turn: int = 0
    free: dict[int, int] = field(default_factory=dict)
    held: list[tuple[int, Hold, datetime]] = field(default_factory=list)
    settled: list[tuple[UsageEvent, Attempt]] = field(default_factory=list)


class WindowsMachine(RuleBasedStateMachine):
    """Two replicas on one daily budget, whose zone an administrator changes."""

    def __init__(self, database: Database, numbers: Iterator[int]) -> None:
        super().__init__()
        self.database, self.numbers = database, numbers
        self.account = f"zoned-{next(numbers)}"
        self.table, self.ledger = BudgetLeaseTable(database), Ledger(database)
        # Postgres reads the shorter side of a window's beginning: at first that before it, and
        # from tomorrow's windows on that behind it.
        self.now = rows(database, "SELECT now() - interval '1 day'")[0][0].astimezone(UTC)
        self.granted = 0
        self.replicas = [Replica(), Replica()]
        self.spans: dict[int, PeriodSpan] = {}
        self.outstanding: dict[tuple[UUID, int], int] = {}
        self.written: dict[int, tuple[UUID, UsageEvent, Attempt]] = {}
        self._declare("UTC")

    @rule(zone=st.sampled_from(ZONES))
    def apply(self, zone: str) -> None:
        """Declare another zone; no replica knows it yet."""
        self._declare(zone)

    @rule(replica=st.integers(0, 1), zone=st.sampled_from(ZONES))
    def learn(self, replica: int, zone: str) -> None:
        """Let a replica serve under a zone, whether it is the newest one or an old one."""
        self.replicas[replica].zone = zone

    @rule(minutes=st.sampled_from([1, 20, 200, 700]))
    def pass_time(self, minutes: int) -> None:
        self.now += timedelta(minutes=minutes)

    @rule(replica=st.integers(0, 1), least=st.integers(1, 400), more=st.integers(0, 300))
    def lease(self, replica: int, least: int, more: int) -> None:
        """Take a slice of the replica's present window."""
        one, span = self.replicas[replica], self._span(self.replicas[replica].zone)
        self.spans[span.starts_s] = span
        answer = self._exchange(one, span, least=least, most=least + more)
        assert answer.spent_nusd >= self._spent_in(span), "never below the truth"
        room = LIMIT + self.granted - self._spent_in(span) - self._leased_beside(span)
        assert answer.granted_nusd <= max(room, 0), "one limit for the overlap"
        key = (one.journal, span.starts_s)
        self.outstanding[key] = self.outstanding.get(key, 0) + answer.granted_nusd
        one.free[span.starts_s] = one.free.get(span.starts_s, 0) + answer.granted_nusd

    @rule(
        replica=st.integers(0, 1),
        zone=st.sampled_from(ZONES),
        amount=st.integers(100, 400),
        ends=st.sampled_from(["in flight", "settled", "written"]),
    )
    def serve(self, replica: int, zone: str, amount: int, ends: str) -> None:
        """Serve an attempt under a zone, up to some point: the rules below go on from there."""
        self.learn(replica, zone)
        self.lease(replica, amount, 0)
        self.begin_attempt(replica, 4)
        if ends != "in flight":
            self.settle(replica, 8, late=True)
        if ends == "written":
            self.write(replica)

    @rule(replica=st.integers(0, 1))
    def give_back(self, replica: int) -> None:
        """Return all free money of all windows."""
        one = self.replicas[replica]
        for starts_s, free in one.free.items():
            self._exchange(one, self.spans[starts_s], returned=free)
            if free:
                self.outstanding[one.journal, starts_s] -= free
        one.free.clear()

    @rule(replica=st.integers(0, 1), part=st.integers(1, 4))
    def begin_attempt(self, replica: int, part: int) -> None:
        """Hold a part of the free money of the present window."""
        one, starts_s = self.replicas[replica], self._span(self.replicas[replica].zone).starts_s
        amount = one.free.get(starts_s, 0) * part // 4
        if amount:
            one.free[starts_s] -= amount
            number = next(self.numbers)
            one.held.append((number, Hold(self.account, starts_s, amount), self.now))

    @rule(replica=st.integers(0, 1), share=st.sampled_from([None, 0, 4, 8]), late=st.booleans())
    def settle(self, replica: int, share: int | None, late: bool) -> None:
        """Replace a hold by its cost, in eighths of the hold, or leave it unknown."""
        one = self.replicas[replica]
        if one.held:
            number, hold, at = one.held.pop(-1 if late else 0)
            cost = None if share is None else hold.held_nusd * share // 8
            one.free[hold.starts_s] = one.free.get(hold.starts_s, 0) + (
                0 if cost is None else hold.held_nusd - cost
            )
            one.settled.append(self._settled(number, hold, at, cost))

    @rule(replica=st.integers(0, 1))
    def write(self, replica: int) -> None:
        """Write all settled events of a replica's journal."""
        self._write(self.replicas[replica])

    @rule(replica=st.integers(0, 1))
    def crash(self, replica: int) -> None:
        """End a process. The next one writes its journal, attempts in flight at their hold."""
        one = self.replicas[replica]
        one.settled += [self._settled(number, hold, at, None) for number, hold, at in one.held]
        self._write(one)
        JournalTable(self.database).drained(one.journal)
        self.outstanding = {k: v for k, v in self.outstanding.items() if k[0] != one.journal}
        self.replicas[replica] = Replica(zone=one.zone)

    @precondition(lambda self: self.written)
    @rule(data=st.data(), share=st.integers(0, 4))
    def correct(self, data: st.DataObject, share: int) -> None:
        """Write an event again with another cost, at most its hold."""
        number = data.draw(st.sampled_from(sorted(self.written)))
        journal, event, attempt = self.written[number]
        (hold,) = event.holds
        again = spending(
            number, hold.held_nusd * share // 4, hold, at=attempt.intended_at, route=f"{uuid4()}"
        )
        self.ledger.write_documents([encode_event(again)], journal_id=journal)
        stored = rows(
            self.database,
            "SELECT coalesce(cost_nusd, held_nusd) + coalesce((SELECT sum(amount_nusd - CASE WHEN "
            "settles THEN coalesce(held_nusd, 0) ELSE 0 END) FROM tollgate.adjustments AS booked "
            "WHERE booked.request_id = event.request_id), 0) FROM tollgate.usage_events AS event "
            f"WHERE request_id = '{event.request_id}'",
        )
        attempt.counted_nusd = int(stored[0][0])

    @rule(amount=st.integers(1, 200))
    def grant(self, amount: int) -> None:
        """Grant more in the present window of the declared zone."""
        BudgetStore(self.database).grant(
            self.account, amount, expires_at=None, reason="x", now=self.now
        )
        with self.database.begin() as connection:
            connection.execute(text("UPDATE tollgate.budget_grants SET expires_at = 'infinity'"))
        self.granted += amount

    @invariant()
    def no_instant_has_more_than_one_limit(self) -> None:
        """Check the attempts that any set of windows around one instant has in common."""
        attempts = self._attempts()
        for instant in {attempt.intended_at for attempt in attempts}:
            around = [span for span in self.spans.values() if _contains(span, instant)]
            common = sum(
                attempt.counted_nusd
                for attempt in attempts
                if _contains(self.spans[attempt.starts_s], instant)
                and all(_contains(span, attempt.intended_at) for span in around)
            )
            assert common <= LIMIT + self.granted, (instant, around)

    def teardown(self) -> None:
        """Check every sum against the events, and close the connections."""
        try:
            assert budget_mistakes(self.database) == ()
        finally:
            self.table.close()
            self.ledger.close()

    def _declare(self, zone: str) -> None:
        daily = team_rule(LIMIT, rule_id=self.account, period=BudgetPeriod.DAY, time_zone=zone)
        declare(self.database, daily, document=f"{uuid4()}")

    def _span(self, zone: str) -> PeriodSpan:
        return period_at(BudgetPeriod.DAY, zone, self.now)

    def _exchange(
        self, one: Replica, span: PeriodSpan, *, least: int = 0, most: int = 0, returned: int = 0
    ) -> SliceGranted:
        one.turn += 1
        asked = ask(
            one.turn,
            account_id=self.account,
            rule_id=self.account,
            starts_at=span.starts_at,
            ends_at=span.ends_at,
            least_nusd=least,
            needed_nusd=least,
            most_nusd=most,
            returned_nusd=returned,
            held_nusd=sum(hold.held_nusd for _, hold, _ in one.held),
        )
        (answer,) = self.table.exchange(one.journal, [asked])
        return answer

    def _settled(
        self, number: int, hold: Hold, at: datetime, cost: int | None
    ) -> tuple[UsageEvent, Attempt]:
        counted = hold.held_nusd if cost is None else cost
        return spending(number, cost, hold, at=at), Attempt(number, hold.starts_s, at, counted)

    def _write(self, one: Replica) -> None:
        self.ledger.write_documents(
            [encode_event(event) for event, _ in one.settled], journal_id=one.journal
        )
        for event, attempt in one.settled:
            self.written[attempt.number] = (one.journal, event, attempt)
            self.outstanding[one.journal, attempt.starts_s] -= attempt.counted_nusd
        one.settled.clear()

    def _attempts(self) -> list[Attempt]:
        """Return all attempts that are or will be booked; those in flight count at their hold."""
        flying = [
            Attempt(number, hold.starts_s, at, hold.held_nusd)
            for one in self.replicas
            for number, hold, at in one.held
        ]
        settled = [attempt for one in self.replicas for _, attempt in one.settled]
        return [*flying, *settled, *(attempt for _, _, attempt in self.written.values())]

    def _spent_in(self, span: PeriodSpan) -> int:
        """Return the written cost of attempts whose intent lies in a window, also of those that
        are charged to another.
        """
        written = (attempt for _, _, attempt in self.written.values())
        return sum(one.counted_nusd for one in written if _contains(span, one.intended_at))

    def _leased_beside(self, span: PeriodSpan) -> int:
        """Return the leases of a window and of those that overlap it."""
        return sum(
            amount
            for (_, starts_s), amount in self.outstanding.items()
            if _overlap(self.spans[starts_s], span)
        )


def _contains(span: PeriodSpan, moment: datetime) -> bool:
    assert span.ends_at is not None
    return span.starts_at <= moment < span.ends_at


def _overlap(one: PeriodSpan, other: PeriodSpan) -> bool:
    assert one.ends_at is not None
    assert other.ends_at is not None
    return one.starts_at < other.ends_at and other.starts_at < one.ends_at


def test_no_order_of_zones_gives_a_second_limit(database: Database) -> None:
    """A team with a used budget changed its zone three times, and spent four limits in a month."""
    numbers = count(1)
    run_state_machine_as_test(lambda: WindowsMachine(database, numbers), settings=STEPS)
