"""Charges of events to budgets: written in the event's transaction, once, and corrected by later
adjustments.
"""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from gateway.domain.budgets.budgets import BudgetKind, BudgetPeriod, BudgetScope, Hold, period_at
from gateway.domain.ledger.records import Written
from gateway.domain.ledger.resolution import StatedCost
from gateway.domain.pricing.price_corrections import KIND as REPRICED
from gateway.storage.budgets.budgets import BudgetLeaseTable, budget_mistakes
from gateway.storage.ledger.adjustments import (
    expire_holds,
    resolve,
)
from gateway.storage.ledger.documents import encode_event
from gateway.storage.ledger.journals_table import JournalTable
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres import partitions
from gateway.storage.postgres.database import Database
from tests.storage.budget_books import (
    ACCOUNT,
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
from tests.storage.factories import event, request_id

WORKER = uuid4()
DAY = timedelta(days=1)
CENTRE = "cost_centre:CC-1207/month"


def lease(
    database: Database, amount_nusd: int, *, account_id: str = ACCOUNT, turn: int = 1
) -> None:
    """Lease this amount to the worker."""
    counter = BudgetLeaseTable(database)
    (answer,) = counter.exchange(
        WORKER, [ask(turn, amount_nusd, account_id=account_id, rule_id=account_id)]
    )
    assert answer.granted_nusd == amount_nusd
    counter.close()


@pytest.fixture
def ledger(database: Database) -> Ledger:
    """Return a ledger with 500 of a budget of 1000 leased to the worker."""
    declare(database, team_rule(1000))
    lease(database, 500)
    return Ledger(database)


# ---- written events


@pytest.mark.parametrize(
    ("cost", "held", "is_overdraft", "spent", "leased"),
    [
        (30, 100, False, 30, 470),
        (100, 100, False, 100, 400),
        (
            130,
            100,
            False,
            130,
            400,
        ),  # above the hold: spent in full, but the lease gave only the hold
        (900, 900, False, 900, 0),  # a hold that is more than the lease
        (0, 100, False, 0, 500),
        (30, 0, False, 30, 500),  # a soft budget holds nothing
        (30, 100, True, 30, 500),  # an overdraft was not leased
        (None, 100, False, 100, 400),  # unknown: counts at its hold
        (None, 100, True, 100, 500),
    ],
)
def test_a_written_event_moves_its_cost_to_spent(
    database: Database,
    ledger: Ledger,
    cost: int | None,
    held: int,
    is_overdraft: bool,
    spent: int,
    leased: int,
) -> None:
    """The amount moves from leased to spent in the event's own transaction, so no second record
    needs reconciliation.
    """
    batch = [encode_event(spending(1, cost, hold(held, is_overdraft=is_overdraft)))]
    assert ledger.write_documents(batch, journal_id=WORKER) == Written(inserted=1)
    assert balance(database) == (spent, leased)
    assert ledger.write_documents(batch, journal_id=WORKER) == Written(known=1), "and once"
    assert balance(database) == (spent, leased)
    assert budget_mistakes(database) == ()


def test_a_batch_with_an_event_twice_moves_it_once(database: Database, ledger: Ledger) -> None:
    """After a handover, two journals may hold the same attempt, and an old batch may come with
    new events.
    """
    one, two = (encode_event(spending(number, 10, hold(20))) for number in (1, 2))
    ledger.write_documents([one, one], journal_id=WORKER)
    ledger.write_documents([one, two, one], journal_id=WORKER)
    assert balance(database) == (20, 480)


def test_an_event_is_charged_to_every_budget_it_names(database: Database, ledger: Ledger) -> None:
    """Team and cost centre each count the same money in full."""
    declare(
        database,
        team_rule(1000),
        team_rule(1000, rule_id=CENTRE, scope=BudgetScope.COST_CENTRE, team=None),
    )
    lease(database, 50, account_id=CENTRE)
    ledger.write_documents(
        [encode_event(spending(n, 10, hold(20, account_id=CENTRE), hold(20))) for n in range(3)],
        journal_id=WORKER,
    )
    assert (balance(database), balance(database, CENTRE)) == ((30, 470), (30, 20))


def test_without_a_journal_only_spent_moves(database: Database, ledger: Ledger) -> None:
    """A caller that writes events by hand has no lease."""
    ledger.write([spending(1, 10, hold(20))])
    assert balance(database) == (10, 500)
    assert budget_mistakes(database) == ()


def test_an_event_that_was_refused_moves_nothing(database: Database, ledger: Ledger) -> None:
    """Spent money without an event could never be explained."""
    good = spending(1, 10, hold(20))
    broken = json.loads(encode_event(spending(2, 10, hold(20)))) | {"attempt": "x"}
    written = ledger.write_documents(
        [encode_event(good), json.dumps(broken).encode()], journal_id=WORKER
    )
    assert written == Written(inserted=1, dead=1)
    assert balance(database) == (10, 490)


@pytest.mark.parametrize(
    "holds",
    [
        {},
        "x",
        [1],
        [["a"]],
        [["a", 1, 2]],
        [["a", 1, 2, False, 0]],
        [["", 1, 2, False]],
        [[None, 1, 2, False]],
        [["a", "1", 2, False]],
        [["a", 1.5, 2, False]],
        [["a", -1, 2, False]],
        [["a", 99_999_999_999, 2, False]],
        [["a", 1, None, False]],
        [["a", 1, -2, False]],
        [["a", 1, 2**63, False]],
        [["a", 1, 1e30, False]],
        [["a", 1, 2, 0]],
        [["a", 1, 2, False], ["a", 1, 3, True]],
    ],
)
def test_holds_that_make_no_sense_are_set_aside(
    database: Database, ledger: Ledger, holds: object
) -> None:
    """One row with unreadable holds would break every later check of the spent sums."""
    document = json.dumps(json.loads(encode_event(spending(1, 10))) | {"holds": holds}).encode()
    good = encode_event(spending(2, 10, hold(20)))
    assert ledger.write_documents([document, good], journal_id=WORKER) == Written(
        inserted=1, dead=1
    )
    assert balance(database) == (10, 490)
    assert budget_mistakes(database) == ()


def test_an_event_without_budgets_is_as_before(database: Database, ledger: Ledger) -> None:
    """Most teams may have no budget; the ledger sends no budget query for their events."""
    ledger.write_documents([encode_event(event(1))], journal_id=WORKER)
    assert rows(database, "SELECT holds FROM tollgate.usage_events") == [([],)]
    assert balance(database) == (0, 500)


def test_an_event_in_a_month_without_a_partition_keeps_its_holds(
    database: Database, ledger: Ledger
) -> None:
    """When a month's partition is created, the default partition's rows move there, with their
    holds.
    """
    late = datetime(2024, 2, 3, tzinfo=UTC)
    ledger.write([spending(1, 10, hold(20), at=late)])
    partitions.ensure_months(database, first=late.date(), last=late.date())
    assert rows(database, "SELECT holds FROM tollgate.usage_events_2024_02") == [
        ([[ACCOUNT, int(NOVEMBER.timestamp()), 20, False]],)
    ]
    assert budget_mistakes(database) == ()


def test_a_period_begun_by_its_first_event_is_known_by_its_rule(database: Database) -> None:
    """A soft budget never requests a slice, so Postgres learns of the period only from its
    events.
    """
    each = team_rule(
        1000, rule_id="payments/key:*/day", scope=BudgetScope.KEY, owner="*", kind=BudgetKind.SOFT
    )
    declare(
        database,
        each,
        team_rule(5, rule_id="payments/key:k2/day", scope=BudgetScope.KEY, owner="k2"),
    )
    Ledger(database).write(
        [spending(n, 3, hold(0, account_id=f"payments/key:k{n}/day")) for n in (1, 2)]
    )
    assert rows(
        database,
        "SELECT account, rule, owner, kind, limit_usd * 1e9 FROM finance.budgets ORDER BY 1",
    ) == [
        ("payments/key:k1/day", "payments/key:*/day", "k1", "soft", 1000),
        ("payments/key:k2/day", "payments/key:k2/day", "k2", "hard", 5),
    ]


@settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)  # each try is rolled back
@given(
    moment=st.datetimes(datetime(2024, 1, 1), datetime(2029, 1, 1), timezones=st.just(UTC)),
    period=st.sampled_from(BudgetPeriod),
    zone=st.sampled_from(
        [
            "UTC",
            "Europe/Berlin",
            "America/Havana",
            "Asia/Beirut",
            "America/New_York",
            "Asia/Kolkata",
        ]
    ),
)
def test_the_database_ends_a_period_when_workers_do(
    database_url: str, moment: datetime, period: BudgetPeriod, zone: str
) -> None:
    """A report of a soft budget and a message about it must state the same end of the period."""
    span = period_at(period, zone, moment)
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "INSERT INTO tollgate.budgets VALUES ('r', 'team', 't', 't', %s, %s, 1, 'soft', "
            "'{}', 0, 1, true)",
            (str(period), zone),
        )
        found = connection.execute(
            "SELECT tollgate.budget_period_end('r', %s)", (span.starts_at,)
        ).fetchone()
        connection.rollback()
    assert found == (span.ends_at,)


# ---- adjustments


def test_a_resolution_replaces_the_hold(database: Database, ledger: Ledger) -> None:
    """An unknown attempt counts at its hold until its cost is known."""
    ledger.write_documents([encode_event(spending(1, None, hold(100)))], journal_id=WORKER)
    assert balance(database) == (100, 400)
    resolve(database, request_id(1), attempt=None, cost=30, reason="invoice")
    assert balance(database) == (30, 400)
    assert budget_mistakes(database) == ()


def test_an_expired_hold_and_its_correction_are_moved_in_turn(
    database: Database, ledger: Ledger
) -> None:
    """First the expected cost replaces the hold, then the invoice replaces the expected cost."""
    ledger.write_documents(
        [encode_event(spending(1, None, hold(100), at=NOVEMBER - 400 * DAY))], journal_id=WORKER
    )
    assert expire_holds(database, ttl=DAY) == 1
    assert balance(database) == (100, 400), "nothing to compare with: the whole hold"
    resolve(
        database,
        request_id(1, NOVEMBER - 400 * DAY),
        attempt=None,
        cost=StatedCost.ZERO,
        reason="invoice",
    )
    assert balance(database) == (0, 400)
    assert budget_mistakes(database) == ()


def test_many_holds_that_expire_are_moved_together(database: Database, ledger: Ledger) -> None:
    """After an upstream's outage there may be thousands of expired holds on few budgets."""
    ledger.write(
        [
            spending(
                n,
                None,
                hold(5),
                hold(0, account_id=f"b{n % 3}"),
                at=NOVEMBER - 400 * DAY,
                held_nusd=5,
            )
            for n in range(50)
        ]
        + [spending(90, 3, hold(5), at=datetime.now(UTC).replace(microsecond=0))]
    )
    assert balance(database) == (253, 500)
    assert expire_holds(database, ttl=DAY) == 50
    assert budget_mistakes(database) == ()


@pytest.mark.parametrize(
    ("first", "second", "spent"), [(30, 50, 50), (50, 30, 30), (None, 30, 30), (30, None, 30)]
)
def test_another_content_moves_the_difference(
    database: Database, ledger: Ledger, first: int | None, second: int | None, spent: int
) -> None:
    """The budgets pay the latest known cost of an attempt, whichever record came first."""
    documents = [encode_event(spending(1, cost, hold(100))) for cost in (first, second)]
    for document in [*documents, documents[1]]:
        ledger.write_documents([document], journal_id=WORKER)
    assert balance(database)[0] == spent
    assert budget_mistakes(database) == ()


def test_other_content_and_new_events_in_one_batch(database: Database, ledger: Ledger) -> None:
    """Both change the same budget in one transaction."""
    ledger.write_documents([encode_event(spending(1, 30, hold(100)))], journal_id=WORKER)
    batch = [spending(1, 50, hold(100)), spending(2, 5, hold(100)), spending(1, 60, hold(100))]
    written = ledger.write_documents([encode_event(one) for one in batch], journal_id=WORKER)
    assert written == Written(inserted=1, conflicts=2)
    assert balance(database) == (65, 465)
    assert rows(database, "SELECT count(*) FROM tollgate.budget_corrections") == [(0,)]
    assert budget_mistakes(database) == ()


def test_a_long_repricing_holds_up_no_slice(database: Database, ledger: Ledger) -> None:
    """A repricing runs for minutes in one transaction; workers need slices meanwhile."""
    ledger.write_documents(
        [encode_event(spending(n, 30, hold(100))) for n in (1, 2)], journal_id=WORKER
    )
    with database.begin() as repricing:
        for number in (1, 2):
            repricing.execute(
                text(
                    "INSERT INTO tollgate.adjustments (adjustment_id, request_id, attempt, team, "
                    "cost_centre, posted_period, occurred_at, amount_nusd, kind, reason, author) "
                    "SELECT gen_random_uuid(), request_id, attempt, team, cost_centre, "
                    "posted_period, occurred_at, -10, :kind, '', '' FROM tollgate.usage_events "
                    "WHERE request_id = :id"
                ),
                {"id": request_id(number), "kind": REPRICED},
            )
        lease(database, 10, turn=2)
        assert balance(database) == (60, 450)
    assert balance(database) == (40, 450)
    assert budget_mistakes(database) == ()


def test_an_adjustment_without_a_request_moves_nothing(database: Database, ledger: Ledger) -> None:
    """Such an adjustment belongs to no event, so it belongs to no budget."""
    ledger.write([spending(1, 30, hold(100))])
    with database.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO tollgate.adjustments (adjustment_id, team, cost_centre, "
                "posted_period, occurred_at, amount_nusd, kind, reason, author) VALUES "
                "(gen_random_uuid(), 'payments', '', '2026-11-01', now(), 7, 'credit', '', '')"
            )
        )
    assert balance(database)[0] == 30
    assert budget_mistakes(database) == ()


def test_adjusters_and_writers_do_not_wait_for_each_other_in_a_circle(
    database: Database, ledger: Ledger
) -> None:
    """Both lock the same budgets. To avoid a deadlock, each locks all of them at once and in
    order.
    """
    names = [f"b{number}" for number in range(6)]

    def holds(order: int) -> list[Hold]:
        turned = names if order % 2 else names[::-1]
        return [hold(10, account_id=name) for name in turned]

    ledger.write([spending(n, None, *holds(n)) for n in range(40)])

    def work(number: int) -> None:
        for n in range(number, 40, 4):
            resolve(database, request_id(n), attempt=None, cost=n, reason="x")
            ledger.write([spending(100 + n, 1, *holds(n)), spending(200 + n, 1, *holds(n + 1))])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert {balance(database, name) for name in names} == {(sum(range(40)) + 80, 0)}
    assert budget_mistakes(database) == ()


# ---- journals


def test_a_drained_journal_returns_its_leases(database: Database, ledger: Ledger) -> None:
    """After a killed worker's events are written, its leases must not keep others from spending."""
    ledger.write_documents([encode_event(spending(1, 30, hold(100)))], journal_id=WORKER)
    JournalTable(database).drained(WORKER)
    assert (balance(database), leases(database)) == ((30, 0), [])
    assert budget_mistakes(database) == ()


def test_a_lost_journal_is_booked_as_a_visible_line(database: Database, ledger: Ledger) -> None:
    """The leased money may have been spent, so it counts as spent. It is booked as one line for
    each team, not for each budget.
    """
    declare(
        database,
        team_rule(1000),
        team_rule(1000, rule_id="payments/day"),
        team_rule(1000, rule_id="search/month", team="search", owner="search"),
        team_rule(9000, rule_id=CENTRE, scope=BudgetScope.COST_CENTRE, team=None, owner="CC-1207"),
    )
    lease(database, 200, account_id="payments/day")
    lease(database, 40, account_id="search/month")
    lease(database, 700, account_id=CENTRE)
    ledger.write_documents([encode_event(spending(1, 30, hold(100)))], journal_id=WORKER)
    JournalTable(database).declare_lost(WORKER, reason="disk died")
    assert (balance(database), balance(database, "payments/day")) == ((500, 0), (200, 0))
    assert (balance(database, "search/month"), balance(database, CENTRE), leases(database)) == (
        (40, 0),
        (700, 0),
        [],
    )
    this_month = datetime.now(UTC).date().replace(day=1)
    booked = (
        "SELECT team, cost_centre, amount_nusd, kind, request_id, reason, posted_period "
        "FROM tollgate.adjustments"
    )
    assert sorted(rows(database, booked)) == [
        ("", "CC-1207", 230, "lost_journal", None, f"journal {WORKER}: disk died", this_month),
        (
            "payments",
            "CC-1207",
            470,
            "lost_journal",
            None,
            f"journal {WORKER}: disk died",
            this_month,
        ),
        ("search", "", 40, "lost_journal", None, f"journal {WORKER}: disk died", this_month),
    ]
    assert budget_mistakes(database) == ()


def test_a_lost_journal_that_turns_up_is_counted_once(database: Database, ledger: Ledger) -> None:
    """The found events state the true spending, so the amount booked for the lost journal is
    reversed.
    """
    journals = JournalTable(database)
    journals.declare_lost(WORKER, reason="disk died")
    assert balance(database) == (500, 0)
    ledger.write_documents([encode_event(spending(1, 30, hold(100)))], journal_id=WORKER)
    assert balance(database) == (530, 0), "too much rather than too little"
    for _ in range(2):
        journals.drained(WORKER)
        assert balance(database) == (30, 0)
    assert sorted(rows(database, "SELECT amount_nusd, kind FROM tollgate.adjustments")) == [
        (-500, "lost_journal"),
        (500, "lost_journal"),
    ]
    assert budget_mistakes(database) == ()


def test_a_journal_without_leases_books_nothing(database: Database) -> None:
    """A lost journal without leases is only recorded as lost."""
    journals, journal = JournalTable(database), uuid4()
    journals.register(journal, replica="gateway-1")
    journals.declare_lost(journal, reason="x")
    journals.drained(journal)
    assert rows(database, "SELECT count(*) FROM tollgate.adjustments") == [(0,)]


def test_journals_that_fell_silent_are_given_up(database: Database, ledger: Ledger) -> None:
    """A dead machine's leases must return to their budgets without an operator's help. A journal
    with a recent heartbeat is kept.
    """
    journals, silent, speaking = JournalTable(database), uuid4(), uuid4()
    for journal in (silent, speaking):
        journals.register(journal, replica="gateway-1")
    with database.begin() as connection:
        connection.execute(
            text(
                "UPDATE tollgate.journals SET heartbeat = now() - interval '25 h' WHERE id = "
                "ANY(:ids)"
            ),
            {"ids": [silent, WORKER]},
        )
    assert journals.lose_silent(timedelta(hours=24)) == 2
    assert journals.lose_silent(timedelta(hours=24)) == 0
    found = {journal.id: (journal.state, journal.note) for journal in journals.all()}
    assert found[silent] == found[WORKER] == ("lost", "not heard of for 24 h")
    assert found[speaking] == ("live", None)
    assert balance(database) == (500, 0)


# ---- the checker


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("UPDATE tollgate.budget_periods SET spent_nusd = spent_nusd + 1", "spent is 31 .* say 30"),
        (
            "UPDATE tollgate.budget_periods SET leased_nusd = leased_nusd - 1",
            "leased is 469 .* say 470",
        ),
        ("UPDATE tollgate.leases SET outstanding_nusd = 0", "leased is 470 .* say 0"),
        (
            "UPDATE tollgate.journals SET state = 'drained'",
            "470 nano-dollars are leased .* drained",
        ),
        ("UPDATE tollgate.budget_periods SET account_id = 'other'", "spent is 0 .* say 30"),
        ("DELETE FROM tollgate.budget_periods", "leased is 0 .* say 470"),
        (
            "INSERT INTO tollgate.budget_losses (journal_id, account_id, starts_at, amount_nusd) "
            "VALUES (gen_random_uuid(), 'payments/month', '2026-11-01', 5)",
            "spent is 30 .* say 35",
        ),
    ],
)
def test_a_wrong_sum_is_found(database: Database, ledger: Ledger, damage: str, words: str) -> None:
    """The events alone prove whether a budget's sum is right."""
    ledger.write_documents([encode_event(spending(1, 30, hold(100)))], journal_id=WORKER)
    assert budget_mistakes(database) == ()
    with database.begin() as connection:
        connection.execute(text(damage))
    found = budget_mistakes(database)
    assert any(re.search(words, mistake.what) for mistake in found), found


def test_the_rules_are_kept_whole(database: Database) -> None:
    """Alerts and overdraft reports read the rules from this table, because they have no policy
    document.
    """
    declare(
        database,
        team_rule(
            1000, alert_at=(Decimal("0.5"), Decimal(1)), overdraft_nusd=7, time_zone="Asia/Tokyo"
        ),
    )
    assert rows(
        database, "SELECT alert_at, overdraft_nusd, time_zone, policy_version FROM tollgate.budgets"
    ) == [([Decimal("0.5"), Decimal(1)], 7, "Asia/Tokyo", 1)]


def test_an_overdraft_is_seen_by_finance(database: Database) -> None:
    """An overdraft was spent without a check, so finance needs to know the team and the amount."""
    declare(database, team_rule())
    Ledger(database).write(
        [
            spending(1, 5, hold(10, is_overdraft=True)),
            spending(2, 7, hold(10)),
            spending(3, 1),
        ]
    )
    found = rows(database, "SELECT team, account, held_usd, cost_usd FROM finance.overdrafts")
    assert [
        (team, account, int(held * 10**9), int(cost * 10**9)) for team, account, held, cost in found
    ] == [("payments", ACCOUNT, 10, 5)]
