"""Budgets against a plain model of docs/decisions/0009, under any order of steps, crashes and
repeated deliveries.

The model keeps each worker's knowledge and the place of every nano-dollar. Postgres must agree
after each step.
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

from gateway.domain.budgets.budgets import BudgetKind, Hold, SliceAsk
from gateway.domain.ledger.usage_event import UsageEvent
from gateway.errors import NothingFound
from gateway.storage.budgets.budgets import BudgetLeaseTable, BudgetStore, budget_mistakes
from gateway.storage.ledger.adjustments import resolve
from gateway.storage.ledger.documents import encode_event
from gateway.storage.ledger.journals_table import JournalTable
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests.storage.budget_books import ask, balance, declare, hold, spending, team_rule
from tests.storage.factories import request_id

HARD, SMALL, SOFT = "hard", "small", "soft"
LIMITS = {HARD: 1000, SMALL: 300, SOFT: 50}
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
STEPS = settings(max_examples=40, stateful_step_count=40, deadline=None)


@dataclass
class Worker:
    """A worker's own view of its leases. `settled` holds events of its journal that are not
    written yet.
    """

    journal: UUID = field(default_factory=uuid4)
    turn: int = 0
    free: dict[str, int] = field(default_factory=lambda: dict.fromkeys((HARD, SMALL), 0))
    held: dict[int, tuple[Hold, ...]] = field(default_factory=dict)
    settled: list[UsageEvent] = field(default_factory=list)
    last: tuple[SliceAsk, ...] = ()


class BudgetMachine(RuleBasedStateMachine):
    """A machine with two workers at a time on two hard budgets and a soft one. Each attempt is
    charged to some of them.
    """

    def __init__(self, database: Database, numbers: Iterator[int]) -> None:
        super().__init__()
        # The examples share a database, so each example uses its own accounts and attempts.
        self.database, self.numbers = database, numbers
        self.mark = next(numbers)
        self.counter, self.ledger = BudgetLeaseTable(database), Ledger(database)
        self.limits, self.grants = dict(LIMITS), dict.fromkeys(LIMITS, 0)
        self.workers = [Worker(), Worker()]
        self.outstanding: dict[tuple[UUID, str], int] = {}
        self.spent = dict.fromkeys(LIMITS, 0)
        self.counted_nusd: dict[int, int] = {}  # the amount at which each attempt counts
        self.written: list[tuple[UUID, UsageEvent]] = []
        self.seen: set[bytes] = set()
        self.settled_later: set[int] = set()
        self._declare()

    @rule(
        worker=st.integers(0, 1),
        least=st.integers(0, 200),
        more=st.integers(0, 200),
        part=st.integers(0, 3),
    )
    def exchange(self, worker: int, least: int, more: int, part: int) -> None:
        """Take a slice of both hard budgets and return a part of the free money."""
        one = self.workers[worker]
        one.turn += 1
        held = sum(hold.held_nusd for holds in one.held.values() for hold in holds)
        asks = tuple(
            ask(
                one.turn,
                account_id=self._account(name),
                rule_id=self._account(name),
                least_nusd=least,
                needed_nusd=least,
                most_nusd=least + more,
                returned_nusd=free * part // 3,
                held_nusd=held,
            )
            for name, free in one.free.items()
        )
        answers = self.counter.exchange(one.journal, asks)
        for name, asked, answer in zip(one.free, asks, answers, strict=True):
            key = (one.journal, name)
            self.outstanding[key] = self.outstanding.get(key, 0) - asked.returned_nusd
            room = self._limit(name) - self.spent[name] - self._leased(name)
            fits = least > 0 and room >= least
            granted = min(room, least + more, max(least, room // 8)) if fits else 0
            self.outstanding[key] += granted
            one.free[name] += granted - asked.returned_nusd
            assert (answer.granted_nusd, answer.outstanding_nusd) == (
                granted,
                self.outstanding[key],
            )
            assert (answer.limit_nusd, answer.spent_nusd) == (self._limit(name), self.spent[name])
            if granted:
                assert answer.spent_nusd + answer.leased_nusd <= self._limit(name), "the promise"
        one.last = asks

    @rule(worker=st.integers(0, 1))
    def ask_again(self, worker: int) -> None:
        """Repeat the last request, as after a lost answer; the repeat changes nothing.

        Accounts with nothing outstanding are left out: for them the request would count as new.
        """
        one = self.workers[worker]
        known = [
            asked
            for asked in one.last
            if self.outstanding.get((one.journal, _name(asked.account_id)))
        ]
        self.counter.exchange(one.journal, known)

    @rule(
        worker=st.integers(0, 1),
        part=st.integers(0, 8),
        overdraft=st.one_of(st.none(), st.integers(0, 100)),
    )
    def begin_attempt(self, worker: int, part: int, overdraft: int | None) -> None:
        """Hold a part of the free money on both hard budgets, or an overdraft, and name the soft
        budget.
        """
        one = self.workers[worker]
        amount = overdraft if overdraft is not None else min(one.free.values()) * part // 8
        if overdraft is None:
            one.free = {name: free - amount for name, free in one.free.items()}
        held = [
            hold(amount, account_id=self._account(n), is_overdraft=overdraft is not None)
            for n in one.free
        ]
        one.held[next(self.numbers)] = (*held, hold(0, account_id=self._account(SOFT)))

    @precondition(lambda self: any(one.held for one in self.workers))
    @rule(data=st.data(), share=st.sampled_from([None, 0, 5, 8, 12]))
    def settle(self, data: st.DataObject, share: int | None) -> None:
        """Replace the hold by the cost, which is given in eighths of the hold and may exceed it.

        If `share` is None, the cost is unknown.
        """
        one = data.draw(st.sampled_from([one for one in self.workers if one.held]))
        number = data.draw(st.sampled_from(sorted(one.held)))
        holds = one.held.pop(number)
        cost = None if share is None else holds[0].held_nusd * share // 8
        for held in holds[:2]:
            if not held.is_overdraft:
                taken = held.held_nusd if cost is None else min(cost, held.held_nusd)
                one.free[_name(held.account_id)] += held.held_nusd - taken
        one.settled.append(spending(number, cost, *holds))

    @rule(worker=st.integers(0, 1), most=st.integers(1, 5), again=st.booleans())
    def write(self, worker: int, most: int, again: bool) -> None:
        """Write some settled events, optionally together with events that were written before."""
        one = self.workers[worker]
        batch, one.settled = one.settled[:most], one.settled[most:]
        self._write(one.journal, batch, again=again)

    @rule(worker=st.integers(0, 1))
    def crash(self, worker: int) -> None:
        """End a worker's process. The next one writes its journal, with attempts in flight at
        their hold, and drains it.
        """
        one, self.workers[worker] = self.workers[worker], Worker()
        self._write(one.journal, self._left(one), again=True)
        JournalTable(self.database).drained(one.journal)
        for account in (HARD, SMALL):
            self.outstanding.pop((one.journal, account), None)

    @precondition(lambda self: self.outstanding)
    @rule(worker=st.integers(0, 1), turns_up=st.booleans())
    def lose(self, worker: int, turns_up: bool) -> None:
        """Lose a worker's disk. Its leases count as spent until the journal is found after all."""
        one = self.workers[worker]
        journals = JournalTable(self.database)
        try:
            journals.declare_lost(one.journal, reason="disk")
        except NothingFound:  # it never requested a slice
            return
        self.workers[worker] = Worker()
        lost = {
            account: self.outstanding.pop((one.journal, account), 0) for account in (HARD, SMALL)
        }
        for account, amount in lost.items():
            self.spent[account] += amount
        if turns_up:
            self.agree()
            self._write(one.journal, self._left(one), again=False)
            journals.drained(one.journal)
            for account, amount in lost.items():
                self.spent[account] -= amount

    @rule(account=st.sampled_from([HARD, SMALL]), limit=st.integers(0, 1500))
    def change_limit(self, account: str, limit: int) -> None:
        """Apply a policy with another limit; a lowered limit restricts the next slice."""
        self.limits[account] = limit
        self._declare()

    @rule(account=st.sampled_from([HARD, SMALL]), amount=st.integers(1, 300))
    def grant(self, account: str, amount: int) -> None:
        """Grant more for this period, until tomorrow by the server's clock."""
        granted = BudgetStore(self.database).grant(
            self._account(account), amount, expires_at=None, reason="x", now=NOW
        )
        with self.database.begin() as connection:
            connection.execute(
                text(
                    "UPDATE tollgate.budget_grants SET expires_at = :at WHERE grant_id = :granted"
                ),
                {"at": datetime.now(UTC) + timedelta(days=1), "granted": granted.grant_id},
            )
        self.grants[account] += amount

    @rule()
    def expire_grants(self) -> None:
        """Let every grant expire."""
        with self.database.begin() as connection:
            connection.execute(
                text("UPDATE tollgate.budget_grants SET expires_at = now() - interval '1 second'")
            )
        self.grants = dict.fromkeys(LIMITS, 0)

    @precondition(lambda self: self.written)
    @rule(data=st.data(), cost=st.integers(0, 300), by_hand=st.booleans())
    def adjust(self, data: st.DataObject, cost: int, by_hand: bool) -> None:
        """Resolve an unknown attempt by hand, or write the attempt again with another cost."""
        journal, event = data.draw(st.sampled_from(self.written))
        number = _number(event)
        if by_hand and event.cost_nusd is None and number not in self.settled_later:
            resolve(self.database, event.request_id, attempt=None, cost=cost, reason="invoice")
        else:
            again = encode_event(spending(number, cost, *event.holds))
            self.ledger.write_documents([again], journal_id=journal)
            if again in self.seen:
                return
            self.seen.add(again)
        self.settled_later.add(number)
        for held in event.holds:
            self.spent[_name(held.account_id)] += cost - self.counted_nusd[number]
        self.counted_nusd[number] = cost

    @invariant()
    def agree(self) -> None:
        """Check that Postgres agrees with the model and that its own checker finds no mistake."""
        for account in LIMITS:
            assert balance(self.database, self._account(account)) == (
                self.spent[account],
                self._leased(account),
            ), account
        assert budget_mistakes(self.database) == ()

    @invariant()
    def no_worker_has_more_than_it_leased(self) -> None:
        """Check free + held + settled ≤ outstanding; otherwise the same money would be promised
        twice.
        """
        for one in self.workers:
            for account, free in one.free.items():
                assert free + self._bound(one, account) <= self.outstanding.get(
                    (one.journal, account), 0
                )

    def teardown(self) -> None:
        self.counter.close()
        self.ledger.close()

    def _write(self, journal: UUID, batch: list[UsageEvent], *, again: bool) -> None:
        repeated = (
            [event for owner, event in self.written if owner == journal][-2:] if again else []
        )
        self.ledger.write_documents(
            [encode_event(event) for event in [*repeated, *batch, *batch]], journal_id=journal
        )
        for event in batch:
            number = _number(event)
            for held in event.holds:
                self.counted_nusd[number] = counted = _counted(event)
                self.spent[_name(held.account_id)] += counted
                key = (journal, _name(held.account_id))
                if not held.is_overdraft and self.outstanding.get(key):
                    self.outstanding[key] -= min(counted, held.held_nusd)
            self.written.append((journal, event))
            self.seen.add(encode_event(event))

    def _declare(self) -> None:
        rules = [
            team_rule(self.limits[name], rule_id=self._account(name)) for name in (HARD, SMALL)
        ]
        soft = team_rule(LIMITS[SOFT], rule_id=self._account(SOFT), kind=BudgetKind.SOFT)
        declare(self.database, *rules, soft, document=f"{uuid4()}")

    def _account(self, name: str) -> str:
        return f"{name}-{self.mark}"

    def _limit(self, account: str) -> int:
        return self.limits[account] + self.grants[account]

    def _leased(self, account: str) -> int:
        return sum(amount for (_, name), amount in self.outstanding.items() if name == account)

    def _bound(self, worker: Worker, account: str) -> int:
        """Return how much of a worker's lease its attempts in flight hold and its settled
        attempts used.
        """
        held = [
            one
            for holds in worker.held.values()
            for one in holds
            if _name(one.account_id) == account
        ]
        taken = [
            min(_counted(event), one.held_nusd)
            for event in worker.settled
            for one in event.holds
            if _name(one.account_id) == account and not one.is_overdraft
        ]
        return sum(taken) + sum(one.held_nusd for one in held if not one.is_overdraft)

    def _left(self, worker: Worker) -> list[UsageEvent]:
        """Return the events that the next process finds in a journal: the settled ones, and
        attempts in flight as unknown.
        """
        return [
            *worker.settled,
            *(spending(number, None, *holds) for number, holds in worker.held.items()),
        ]


def _name(account_id: str) -> str:
    return account_id.partition("-")[0]


def _counted(event: UsageEvent) -> int:
    return event.cost_nusd if event.cost_nusd is not None else event.holds[0].held_nusd


def _number(event: UsageEvent) -> int:
    return int.from_bytes(event.request_id.bytes, "big") - int.from_bytes(
        request_id(0).bytes, "big"
    )


def test_every_step_keeps_every_nano_dollar_in_one_place(database: Database) -> None:
    """Steps may be cut off, repeated or reordered. Money that was taken and is not accounted for
    stays leased, never free.
    """
    numbers = count(1)
    run_state_machine_as_test(lambda: BudgetMachine(database, numbers), settings=STEPS)
