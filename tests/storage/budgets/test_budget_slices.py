"""Slices of budgets on a real Postgres: never more than the remaining budget, each turn once,
and always returned.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from threading import Event, Thread
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import text

from gateway.domain.budgets.budgets import (
    EPOCH,
    BudgetKind,
    BudgetPeriod,
    BudgetScope,
    LeasesLost,
    SliceAsk,
    SliceGranted,
)
from gateway.errors import BadUsage, DatabaseUnavailable, NothingFound
from gateway.storage.budgets.budgets import BudgetLeaseTable, BudgetStore, budget_mistakes
from gateway.storage.ledger.documents import encode_event
from gateway.storage.ledger.journals_table import JournalTable
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.policy.policies import PolicyStore
from gateway.storage.postgres.database import Database
from tests.storage.budget_books import (
    ACCOUNT,
    DECEMBER,
    NOVEMBER,
    ask,
    balance,
    declare,
    hold,
    leases,
    rows,
    spending,
    team_rule,
)
from tests.waiting import eventually

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
WORKER, OTHER = uuid4(), uuid4()


@pytest.fixture
def counter(database: Database) -> Iterator[BudgetLeaseTable]:
    """Yield the table from which workers request slices, with one budget of 1000 declared."""
    declare(database, team_rule(1000))
    counter = BudgetLeaseTable(database)
    yield counter
    counter.close()


def one(granted: tuple[SliceGranted, ...]) -> SliceGranted:
    (only,) = granted
    return only


# ---- how much


def test_an_answer_says_how_the_account_stands(
    database: Database, counter: BudgetLeaseTable
) -> None:
    """A 402 quotes these figures, so they must belong to the same moment."""
    counter.exchange(OTHER, [ask(1, 300)])
    Ledger(database).write_documents([], journal_id=OTHER)
    assert counter.exchange(WORKER, [ask(1, 200, held_nusd=7)]) == (
        SliceGranted(
            account_id=ACCOUNT,
            starts_s=int(NOVEMBER.timestamp()),
            granted_nusd=200,
            limit_nusd=1000,
            spent_nusd=0,
            leased_nusd=500,
            outstanding_nusd=200,
        ),
    )
    assert sorted(leases(database)) == sorted([(WORKER, ACCOUNT, 200, 7), (OTHER, ACCOUNT, 300, 0)])
    assert rows(database, "SELECT ends_at, rule_id FROM tollgate.budget_periods") == [
        (DECEMBER, ACCOUNT)
    ]


@pytest.mark.parametrize(
    ("least", "needed", "most", "granted"),
    [
        (0, 0, 0, 0),  # a read only
        (0, 500, 500, 0),  # nothing is wanted: the other fields do not matter
        (1, 0, 1000, 125),  # an eighth of the remainder
        (1, 0, 50, 50),  # no more than a slice
        (100, 400, 400, 400),  # all waiting requests
        (100, 4000, 4000, 1000),  # as many waiting requests as there is room for
        (1000, 1000, 1000, 1000),  # the last nano-dollar
        (1001, 1001, 1001, 0),  # not for a part of a hold
    ],
)
def test_a_slice_is_the_need_or_an_eighth_of_the_rest(
    counter: BudgetLeaseTable, least: int, needed: int, most: int, granted: int
) -> None:
    """Too large a slice starves the other workers near the limit; too small a one needs a query
    for every request.
    """
    asked = ask(1, least_nusd=least, needed_nusd=needed, most_nusd=most)
    assert one(counter.exchange(WORKER, [asked])).granted_nusd == granted


def test_returned_money_can_be_leased_at_once(
    database: Database, counter: BudgetLeaseTable
) -> None:
    """Money that one worker does not use must be available to another."""
    counter.exchange(WORKER, [ask(1, 900)])
    assert one(counter.exchange(OTHER, [ask(1, 200)])).granted_nusd == 0
    counter.exchange(WORKER, [ask(2, returned_nusd=400)])
    assert one(counter.exchange(OTHER, [ask(2, 200)])).granted_nusd == 200
    assert balance(database) == (0, 700)
    answer = one(counter.exchange(WORKER, [ask(3, 800, returned_nusd=500)]))
    assert (answer.granted_nusd, answer.outstanding_nusd) == (800, 800), (
        "what it gives back is room for itself"
    )
    assert balance(database) == (0, 1000)


def test_a_worker_cannot_return_more_than_it_leased(
    database: Database, counter: BudgetLeaseTable
) -> None:
    """A worker that counts wrongly must not free other workers' leases."""
    counter.exchange(OTHER, [ask(1, 600)])
    counter.exchange(WORKER, [ask(1, 100)])
    answer = one(counter.exchange(WORKER, [ask(2, returned_nusd=500)]))
    assert (answer.outstanding_nusd, answer.leased_nusd) == (0, 600)
    assert leases(database) == [(OTHER, ACCOUNT, 600, 0)], "and an empty lease is none"


def test_a_lease_stays_while_something_is_held(
    database: Database, counter: BudgetLeaseTable
) -> None:
    """An overdraft is held beside the lease, and reports of the budget must show it."""
    counter.exchange(WORKER, [ask(1, held_nusd=5)])
    assert leases(database) == [(WORKER, ACCOUNT, 0, 5)]
    counter.exchange(WORKER, [ask(2)])
    assert leases(database) == []


def test_a_turn_is_answered_once(database: Database, counter: BudgetLeaseTable) -> None:
    """The answer to a commit may be lost. A repeated request must not take or return money
    twice.
    """
    counter.exchange(WORKER, [ask(1, 500)])
    asked = ask(2, 50, returned_nusd=200)
    answers = [one(counter.exchange(WORKER, [asked])) for _ in range(3)]
    assert [(a.granted_nusd, a.outstanding_nusd, a.leased_nusd) for a in answers] == [
        (50, 350, 350)
    ] * 3
    assert one(counter.exchange(WORKER, [ask(1, 500)])).granted_nusd == 0, (
        "nor an older one that was on its way"
    )
    assert balance(database) == (0, 350)


def test_an_unknown_rule_grants_nothing(database: Database, counter: BudgetLeaseTable) -> None:
    """The limit is unknown, so none is assumed. Money can still be returned."""
    answer = one(counter.exchange(WORKER, [ask(1, 5, account_id="new/month", rule_id="new/month")]))
    assert (answer.limit_nusd, answer.granted_nusd) == (None, 0)
    assert budget_mistakes(database) == ()


def test_accounts_are_answered_together(database: Database) -> None:
    """A request holds on several budgets; one query for all of them costs one round trip."""
    declare(database, team_rule(100), team_rule(50, rule_id="b"), team_rule(10, rule_id="c"))
    counter = BudgetLeaseTable(database)
    asks = [ask(1, 20, account_id=name, rule_id=name) for name in ("c", ACCOUNT, "b")]
    granted = {a.account_id: a.granted_nusd for a in counter.exchange(WORKER, asks)}
    assert granted == {"b": 20, "c": 0, ACCOUNT: 20}
    counter.close()


# ---- limits


def test_a_lowered_limit_binds_the_next_slice(
    database: Database, counter: BudgetLeaseTable
) -> None:
    """A worker with yesterday's policy must not spend by yesterday's limit."""
    counter.exchange(WORKER, [ask(1, 400)])
    declare(database, team_rule(500))
    answer = one(counter.exchange(WORKER, [ask(2, 200)]))
    assert (answer.granted_nusd, answer.limit_nusd) == (0, 500)
    assert one(counter.exchange(WORKER, [ask(3, 100)])).granted_nusd == 100
    declare(database, team_rule(100))
    assert one(counter.exchange(WORKER, [ask(4, 1)])).granted_nusd == 0


def test_a_rule_that_is_gone_keeps_its_last_limit(
    database: Database, counter: BudgetLeaseTable
) -> None:
    """A worker that has not loaded the new policy still requests slices under the removed rule."""
    declare(database)
    assert rows(database, "SELECT is_current, limit_nusd FROM tollgate.budgets") == [(False, 1000)]
    assert one(counter.exchange(WORKER, [ask(1, 1001)])).granted_nusd == 0
    assert one(counter.exchange(WORKER, [ask(2, 10)])).granted_nusd == 10


def test_a_rule_for_one_project_binds_whoever_asks_under_the_one_for_each(
    database: Database,
) -> None:
    """Both rules use the same account, so its limit must not depend on the policy version that a
    worker has.
    """
    each = team_rule(1000, rule_id="payments/project:*/month", scope=BudgetScope.PROJECT, owner="*")
    own = replace(each, rule_id="payments/project:shop/month", owner="shop", limit_nusd=50)
    declare(database, each)
    counter = BudgetLeaseTable(database)

    def asked(turn: int, amount: int) -> SliceAsk:
        return ask(turn, amount, account_id=own.rule_id, rule_id=each.rule_id)

    assert one(counter.exchange(WORKER, [asked(1, 10)])).limit_nusd == 1000
    declare(database, each, own)
    answer = one(counter.exchange(WORKER, [asked(2, 60)]))
    assert (answer.limit_nusd, answer.granted_nusd) == (50, 0)
    declare(database, each)
    assert one(counter.exchange(WORKER, [asked(3, 60)])).limit_nusd == 1000
    counter.close()


def test_the_same_document_applied_again_declares_its_budgets(database: Database) -> None:
    """After an upgrade that adds budgets, it must be enough to apply the unchanged document."""
    declare(database, document="same")
    declare(database, team_rule(5), document="same")
    assert rows(
        database, "SELECT rule_id, limit_nusd, is_current, policy_version FROM tollgate.budgets"
    ) == [(ACCOUNT, 5, True, 1)]
    assert len(PolicyStore(database).history()) == 1


# ---- grants


def test_a_grant_makes_room_until_it_expires(database: Database, counter: BudgetLeaseTable) -> None:
    """Money that was granted for a launch day must be gone after it."""
    store, soon = BudgetStore(database), datetime.now(UTC) + timedelta(days=1)
    granted = store.grant(ACCOUNT, 500, expires_at=None, reason="launch", now=NOW)
    assert (granted.starts_at, granted.ends_at, granted.expires_at) == (
        NOVEMBER,
        DECEMBER,
        DECEMBER,
    )
    assert granted.author == rows(database, "SELECT session_user")[0][0]
    with database.begin() as connection:  # by the server's clock, which is not this test's
        connection.execute(
            text("UPDATE tollgate.budget_grants SET expires_at = :soon"), {"soon": soon}
        )
    assert one(counter.exchange(WORKER, [ask(1, 1400)])).granted_nusd == 1400
    with database.begin() as connection:
        connection.execute(text("UPDATE tollgate.budget_grants SET expires_at = now()"))
    answer = one(counter.exchange(WORKER, [ask(2, 1)]))
    assert (answer.granted_nusd, answer.limit_nusd) == (0, 1000)
    assert one(counter.exchange(WORKER, [ask(3, 1, returned_nusd=401)])).granted_nusd == 1


def test_a_grant_belongs_to_one_period_of_one_account(database: Database) -> None:
    """The next month begins with its own limit."""
    declare(database, team_rule(10), team_rule(10, rule_id="b"))
    BudgetStore(database).grant(ACCOUNT, 90, expires_at=None, reason="x", now=NOW)
    with database.begin() as connection:
        connection.execute(text("UPDATE tollgate.budget_grants SET expires_at = NULL"))
    counter = BudgetLeaseTable(database)
    asks = [ask(1, 50), ask(1, 50, starts_at=DECEMBER), ask(1, 50, account_id="b", rule_id="b")]
    granted = {(a.account_id, a.starts_s): a.granted_nusd for a in counter.exchange(WORKER, asks)}
    assert [amount for amount in granted.values() if amount] == [50]
    assert granted[ACCOUNT, int(NOVEMBER.timestamp())] == 50
    counter.close()


@pytest.mark.parametrize(
    ("period", "zone", "starts_at", "ends_at"),
    [
        (
            BudgetPeriod.MONTH,
            "Europe/Berlin",
            NOVEMBER - timedelta(hours=1),
            DECEMBER - timedelta(hours=1),
        ),
        (BudgetPeriod.DAY, "UTC", NOW.replace(hour=0), NOW.replace(hour=0) + timedelta(days=1)),
        (BudgetPeriod.ONCE, "UTC", EPOCH, None),
    ],
)
def test_a_budget_that_was_never_used_can_be_granted_to(
    database: Database,
    period: BudgetPeriod,
    zone: str,
    starts_at: datetime,
    ends_at: datetime | None,
) -> None:
    """An admin prepares a budget before its first request."""
    declare(database, team_rule(10, period=period, time_zone=zone))
    granted = BudgetStore(database).grant(ACCOUNT, 5, expires_at=None, reason="x", now=NOW)
    assert (granted.starts_at, granted.ends_at, granted.expires_at) == (starts_at, ends_at, ends_at)
    assert rows(database, "SELECT starts_at, ends_at, rule_id FROM tollgate.budget_periods") == [
        (starts_at, ends_at, ACCOUNT)
    ]


@pytest.mark.parametrize(
    ("account", "amount", "expires_at", "error", "words"),
    [
        (
            "payment/month",
            5,
            None,
            NothingFound,
            r"No budget account 'payment/month'\. Near: payments/month\.",
        ),
        ("payments/project:shop/month", 5, None, NothingFound, "from its first request on"),
        ("gone", 5, None, BadUsage, "not declared in the current policy any more"),
        (ACCOUNT, 0, None, BadUsage, "more than nothing"),
        (ACCOUNT, 5, NOW, BadUsage, "have expired already"),
        (
            ACCOUNT,
            5,
            DECEMBER + timedelta(seconds=1),
            BadUsage,
            "ends 2026-12-01 00:00 UTC.*raise limit_usd",
        ),
    ],
)
def test_a_grant_of_no_use_is_refused_in_words(
    database: Database,
    account: str,
    amount: int,
    expires_at: datetime | None,
    error: type[Exception],
    words: str,
) -> None:
    """A grant without effect would look like help, so it is refused."""
    each = team_rule(1000, rule_id="payments/project:*/month", scope=BudgetScope.PROJECT, owner="*")
    declare(database, team_rule(10, rule_id="gone"))
    declare(database, team_rule(10), each)
    with pytest.raises(error, match=words):
        BudgetStore(database).grant(account, amount, expires_at=expires_at, reason="x", now=NOW)
    assert rows(database, "SELECT count(*) FROM tollgate.budget_grants") == [(0,)]


def test_an_account_of_a_rule_for_each_is_granted_to_after_its_first_request(
    database: Database,
) -> None:
    """Before the first request, a misspelt project name would look like a valid one."""
    each = team_rule(10, rule_id="own name", scope=BudgetScope.PROJECT, owner="*")
    declare(database, each)
    Ledger(database).write([spending(1, 5, hold(0, account_id="own name:shop"))])
    granted = BudgetStore(database).grant("own name:shop", 5, expires_at=None, reason="x", now=NOW)
    assert granted.ends_at == DECEMBER
    assert rows(database, "SELECT account, owner FROM finance.budgets") == [
        ("own name:shop", "shop")
    ]
    assert rows(database, "SELECT account, amount_usd * 1e9 FROM finance.budget_grants") == [
        ("own name:shop", 5)
    ]


# ---- journals


@pytest.mark.parametrize("state", ["lost", "drained"])
def test_a_journal_that_has_ended_takes_no_slice(
    database: Database, counter: BudgetLeaseTable, state: str
) -> None:
    """No process would ever return such a slice."""
    journals = JournalTable(database)
    counter.exchange(WORKER, [ask(1, 100)])
    if state == "lost":
        journals.declare_lost(WORKER, reason="disk")
    else:
        journals.drained(WORKER)
    with pytest.raises(LeasesLost, match=f"it was {state}"):
        counter.exchange(WORKER, [ask(2, 100)])
    assert leases(database) == []


def test_a_surviving_worker_learns_once_of_its_lost_leases(
    database: Database, counter: BudgetLeaseTable
) -> None:
    """A worker's heartbeat comes every few seconds. It alone must not let the worker spend
    leases that were booked as lost.
    """
    journals = JournalTable(database)
    counter.exchange(WORKER, [ask(1, 100)])
    journals.declare_lost(WORKER, reason="thought dead")
    journals.register(WORKER, replica="gateway-1")
    with pytest.raises(LeasesLost):
        counter.exchange(WORKER, [ask(2, 100)])
    answer = one(counter.exchange(WORKER, [ask(3, 50)]))
    assert (answer.granted_nusd, answer.outstanding_nusd, answer.spent_nusd) == (50, 50, 100)


def test_a_journal_cannot_be_lost_between_the_question_and_the_answer(
    database: Database, database_url: str
) -> None:
    """Otherwise its lease would be booked as lost without the amount that is just being granted."""
    JournalTable(database).register(WORKER, replica="gateway-1")
    with psycopg.connect(database_url) as asking:
        asking.execute("SELECT * FROM tollgate.exchange_slices(%s, '[]')", (WORKER,))
        with ThreadPoolExecutor(1) as pool:
            losing = pool.submit(JournalTable(database).declare_lost, WORKER, reason="x")
            eventually(lambda: _waiting(database), "a loss that waits for the answer")
            asking.commit()
            losing.result()


def _waiting(database: Database) -> bool:
    waiting = "wait_event_type = 'Lock' AND datname = current_database()"
    return bool(rows(database, f"SELECT count(*) FROM pg_stat_activity WHERE {waiting}")[0][0])


# ---- who may


def test_the_gateways_role_takes_slices_and_makes_no_room(
    database: Database, database_url: str
) -> None:
    """An attacker who takes over a gateway must not be able to raise a budget."""
    declare(database, team_rule(1000))
    gateway = Database(database_url, role="tollgate_gateway")
    counter = BudgetLeaseTable(gateway)
    counter.exchange(WORKER, [ask(1, 100)])
    Ledger(gateway).write([spending(1, 40, hold(100))])
    journals = JournalTable(gateway)
    journals.declare_lost(WORKER, reason="x")
    journals.drained(WORKER)
    assert budget_mistakes(gateway) == ()
    assert balance(gateway) == (40, 0)
    for statement in (
        "UPDATE tollgate.budgets SET limit_nusd = 9",
        "INSERT INTO tollgate.budget_grants (account_id, starts_at, amount_nusd, reason) "
        "VALUES ('a', now(), 1, '')",
        "UPDATE tollgate.budget_periods SET spent_nusd = 0",
        "DELETE FROM tollgate.leases",
        "DELETE FROM tollgate.budget_losses",
        "INSERT INTO tollgate.budget_corrections (account_id, starts_at, amount_nusd) VALUES "
        "('a', now(), -1)",
    ):
        with (
            pytest.raises(DatabaseUnavailable, match="may not do this"),
            gateway.begin() as connection,
        ):
            connection.execute(text(statement))
    counter.close()
    gateway.close()


def test_the_readers_role_sees_budgets_that_are_in_use(
    database: Database, database_url: str
) -> None:
    """A view may call functions that its reader may not, so the view must be tested with rows in
    it.
    """
    declare(
        database, team_rule(1_000_000_000), team_rule(7, rule_id="unused", kind=BudgetKind.SOFT)
    )
    BudgetStore(database).grant(ACCOUNT, 500_000_000, expires_at=DECEMBER, reason="x", now=NOW)
    with database.begin() as connection:
        connection.execute(text("UPDATE tollgate.budget_grants SET expires_at = NULL"))
    counter = BudgetLeaseTable(database)
    counter.exchange(WORKER, [ask(1, 400_000_000, held_nusd=100_000_000)])
    Ledger(database).write_documents([])
    Ledger(database).write([spending(1, 250_000_000, hold(0))])
    reader = Database(database_url, role="tollgate_reader")
    assert [
        tuple(map(str, row))
        for row in rows(reader, "SELECT * FROM finance.budgets ORDER BY account")
    ] == [
        (
            ACCOUNT,
            ACCOUNT,
            "team",
            "payments",
            "payments",
            "month",
            "hard",
            "UTC",
            str(NOVEMBER),
            str(DECEMBER),
            "1.000000000",
            "0.500000000",
            "0.250000000",
            "0.400000000",
            "0.100000000",
            "0.850000000",
            "True",
            "0E-9",
        ),
        (
            "unused",
            "unused",
            "team",
            "payments",
            "payments",
            "month",
            "soft",
            "UTC",
            "None",
            "None",
            "7E-9",
            "0E-9",
            "0E-9",
            "0E-9",
            "0E-9",
            "7E-9",
            "True",
            "0E-9",
        ),
    ]
    assert (
        rows(reader, "SELECT account, amount_usd, is_expired FROM finance.budget_grants")[0][0]
        == ACCOUNT
    )
    counter.close()
    reader.close()


def test_a_server_that_hangs_can_be_left(
    database: Database, database_url: str, counter: BudgetLeaseTable
) -> None:
    """One thread sends all requests for slices; a lock that another session holds must not block
    it forever.
    """
    counter.exchange(WORKER, [ask(1, 1)])
    impatient = BudgetLeaseTable(database, limit_s=0.2)
    with psycopg.connect(database_url) as keeping:
        keeping.execute("SELECT FROM tollgate.budget_periods FOR UPDATE")
        with pytest.raises(DatabaseUnavailable, match="did not answer in time"):
            impatient.exchange(WORKER, [ask(2, 10)])
        keeping.rollback()
    assert one(counter.exchange(WORKER, [ask(2, 10)])).outstanding_nusd == 11


# ---- all at once


class Watcher:
    """A watcher that reads all accounts repeatedly, each time at one moment, and records every
    violation.
    """

    def __init__(self, database: Database, limit_nusd: int) -> None:
        self._database, self._limit_nusd, self._stop = database, limit_nusd, Event()
        self.wrong: list[object] = []
        self.looks = 0
        self._thread = Thread(target=self._watch)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.is_set():
            with self._database.begin() as connection:
                connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
                over = connection.execute(
                    text(
                        "SELECT * FROM tollgate.budget_periods WHERE spent_nusd + leased_nusd "
                        "> :limit"
                    ),
                    {"limit": self._limit_nusd},
                )
                self.wrong += over.all()
                self.wrong += connection.execute(
                    text("SELECT * FROM tollgate.budget_mistakes()")
                ).all()
            self.looks += 1


def test_many_workers_never_take_more_than_there_is(database: Database) -> None:
    """This is the main guarantee: on one hot account, spent plus leased stays within the limit
    under any concurrency.
    """
    limit = 5_000
    declare(database, team_rule(limit))

    def work(number: int) -> int:
        random, worker, counter, ledger = (
            Random(number),
            uuid4(),
            BudgetLeaseTable(database),
            Ledger(database),
        )
        free = spent = 0
        for turn in range(1, 41):
            returned = free // 3 if random.random() < 0.3 else 0
            answer = one(
                counter.exchange(
                    worker, [ask(turn, random.randint(1, 200), returned_nusd=returned)]
                )
            )
            free += answer.granted_nusd - returned
            if free and random.random() < 0.8:
                held = random.randint(1, free)
                cost = random.randint(0, held)
                event = spending(number * 1000 + turn, cost, hold(held))
                ledger.write_documents(
                    [encode_event(event)] * random.randint(1, 2), journal_id=worker
                )
                free -= cost
                spent += cost
        counter.exchange(worker, [ask(99, returned_nusd=free)])
        counter.close()
        ledger.close()
        return spent

    with Watcher(database, limit) as watcher, ThreadPoolExecutor(4) as pool:
        spent = sum(pool.map(work, range(4)))
    assert watcher.looks > 10
    assert watcher.wrong == []
    assert balance(database) == (spent, 0)
    assert budget_mistakes(database) == ()


def test_many_accounts_in_any_order_do_not_wait_for_each_other(database: Database) -> None:
    """Each request names the accounts in another order. Postgres would abort two transactions
    that lock in different orders.
    """
    names = [f"budget-{number}" for number in range(12)]
    declare(database, *(team_rule(10_000, rule_id=name) for name in names))
    before = _deadlocks(database)

    def work(number: int) -> None:
        random, worker, counter, ledger = (
            Random(number),
            uuid4(),
            BudgetLeaseTable(database),
            Ledger(database),
        )
        for turn in range(1, 21):
            chosen = random.sample(names, 6)
            counter.exchange(
                worker, [ask(turn, 30, account_id=name, rule_id=name) for name in chosen]
            )
            events = [
                spending(
                    number * 10_000 + turn * 100 + n,
                    5,
                    *(hold(10, account_id=x) for x in random.sample(chosen, 3)),
                )
                for n in range(4)
            ]
            ledger.write_documents([encode_event(event) for event in events], journal_id=worker)
            # Earlier events come again with another cost, which makes adjustments in the same
            # transaction as new events.
            again = [
                encode_event(spending(number * 10_000 + turn * 100 + n, 7, *events[n].holds))
                for n in range(2)
            ]
            more = encode_event(
                spending(
                    number * 10_000 + turn * 100 + 50, 1, *(hold(1, account_id=x) for x in names)
                )
            )
            ledger.write_documents([*again, more], journal_id=worker)
        JournalTable(database).drained(worker)
        counter.close()
        ledger.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert budget_mistakes(database) == ()
    assert leases(database) == []
    assert _deadlocks(database) == before


def _deadlocks(database: Database) -> int:
    rows(database, "SELECT pg_stat_force_next_flush()")
    return int(
        rows(database, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")[
            0
        ][0]
    )


def test_journal_ids_are_not_mixed(database: Database, counter: BudgetLeaseTable) -> None:
    """Each worker counts its own turns, so equal turn numbers of two journals must not collide."""
    assert [
        one(counter.exchange(worker, [ask(1, 10)])).granted_nusd for worker in (WORKER, OTHER)
    ] == [10, 10]
