"""Budget alerts in Postgres: each threshold is raised once a period, whichever worker checks,
and alerts are delivered in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from threading import Barrier
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text

from gateway.domain.alerts.delivery import GIVE_UP_AFTER, Channel, Delivery
from gateway.domain.budgets.budgets import (
    EACH,
    BudgetKind,
    BudgetPeriod,
    BudgetRule,
    BudgetScope,
    Hold,
)
from gateway.errors import DatabaseUnavailable
from gateway.storage.alerts.deliveries import AlertDeliveries
from gateway.storage.budgets.alerts import BudgetAlertStore
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests.storage.budget_books import (
    ACCOUNT,
    DECEMBER,
    NOVEMBER,
    declare,
    hold,
    rows,
    spending,
    team_rule,
)
from tests.storage.dropping_proxy import DroppingProxy
from tests.storage.factories import NOON

SHARES = (Decimal("0.5"), Decimal("0.8"), Decimal(1))
SOON = timedelta(seconds=30)


@pytest.fixture
def store(database_url: str) -> Iterator[BudgetAlertStore]:
    """Yield the store in the gateway's role."""
    opened = Database(database_url, role="tollgate_gateway")
    yield BudgetAlertStore(opened)
    opened.close()


def alerting(limit_nusd: int = 1000, **changes: Any) -> BudgetRule:
    return team_rule(limit_nusd, **{"alert_at": SHARES} | changes)


def spend(
    database: Database,
    spent_nusd: int,
    *,
    account_id: str = ACCOUNT,
    starts_at: datetime = NOVEMBER,
    ends_at: datetime | None = DECEMBER,
    rule_id: str | None = None,
) -> None:
    """Store a period with this total spent, as workers leave it."""
    with database.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO tollgate.budget_periods (account_id, starts_at, ends_at, rule_id, "
                "spent_nusd) VALUES (:account_id, :starts_at, :ends_at, :rule_id, :spent_nusd) ON "
                "CONFLICT (account_id, starts_at) DO UPDATE SET spent_nusd = excluded.spent_nusd"
            ),
            {
                "account_id": account_id,
                "starts_at": starts_at,
                "ends_at": ends_at,
                "rule_id": rule_id or account_id,
                "spent_nusd": spent_nusd,
            },
        )


def grant(database: Database, amount_nusd: int, *, expires_at: datetime | None = None) -> None:
    with database.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO tollgate.budget_grants (account_id, starts_at, amount_nusd, "
                "expires_at, reason) VALUES (:account_id, :starts_at, :amount_nusd, :expires_at, "
                "'a test')"
            ),
            {
                "account_id": ACCOUNT,
                "starts_at": NOVEMBER,
                "amount_nusd": amount_nusd,
                "expires_at": expires_at,
            },
        )


def raised(store: BudgetAlertStore, *, now: datetime = NOON) -> list[str]:
    """Return the thresholds that a check raises and that are not announced yet."""
    store.raise_crossed(now=now)
    found = store.unannounced()
    store.note_announced([alert.alert_id for alert in found], now=now)
    return [str(alert.threshold) for alert in found]


def test_a_threshold_is_raised_once_a_period(database: Database, store: BudgetAlertStore) -> None:
    """People ignore an alert that repeats every two seconds."""
    declare(database, alerting())
    spend(database, 799)
    assert raised(store) == ["0.5"]
    assert raised(store) == []
    spend(database, 800)
    assert raised(store) == ["0.8"]
    spend(database, 1200)
    assert raised(store) == ["1"]
    assert raised(store) == []


def test_it_is_raised_once_by_leaders_that_race(database: Database, database_url: str) -> None:
    """Two workers lead for a moment when one of them lost its connection. The primary key
    decides, and neither waits forever.
    """
    owners = [f"p{number}" for number in range(20)]
    rule = alerting(rule_id="payments/project:*/month", scope=BudgetScope.PROJECT, owner=EACH)
    declare(database, rule)
    for owner in owners:
        spend(database, 1000, account_id=f"payments/project:{owner}/month", rule_id=rule.rule_id)
    racers, rounds = 4, 10
    start = Barrier(racers)

    def race(number: int) -> None:
        opened = Database(database_url, role="tollgate_gateway")
        for _ in range(rounds):
            if start.wait(20) == 0:
                with database.begin() as connection:
                    connection.execute(text("DELETE FROM tollgate.budget_alerts"))
            start.wait(20)
            BudgetAlertStore(opened).raise_crossed(now=NOON + timedelta(seconds=number))
        opened.close()

    with ThreadPoolExecutor(racers) as pool:
        list(pool.map(race, range(racers)))
    counted = rows(
        database, "SELECT owner, count(*) FROM finance.budget_alerts GROUP BY owner ORDER BY owner"
    )
    assert counted == [(owner, 3) for owner in sorted(owners)]


def test_written_spending_counts_and_leased_money_does_not(
    database: Database, store: BudgetAlertStore
) -> None:
    """A lease is money that workers have reserved and may return in a second. An alert that
    counts it would be wrong.
    """
    declare(
        database,
        alerting(),
        alerting(rule_id="payments/day", period=BudgetPeriod.DAY, kind=BudgetKind.SOFT),
    )
    midnight_s = int(NOON.replace(hour=0).timestamp())
    Ledger(database).write([spending(1, 850, hold(850), Hold("payments/day", midnight_s, 0))])
    with database.begin() as connection:
        connection.execute(text("UPDATE tollgate.budget_periods SET leased_nusd = 500"))
    assert raised(store) == ["0.5", "0.8", "0.5", "0.8"]
    assert rows(
        database,
        "SELECT DISTINCT account, kind, spent_usd FROM finance.budget_alerts ORDER BY account",
    ) == [
        ("payments/day", "soft", Decimal("0.000000850")),
        ("payments/month", "hard", Decimal("0.000000850")),
    ]


def test_grants_move_the_mark_for_as_long_as_they_last(
    database: Database, store: BudgetAlertStore
) -> None:
    """The threshold is 80 % of the money that may be spent now, including grants that have not
    expired.
    """
    declare(database, alerting())
    grant(database, 600, expires_at=NOON + SOON)
    grant(database, 400, expires_at=NOON)
    grant(database, 200)
    spend(database, 899)
    assert raised(store) == []
    spend(database, 900)
    assert raised(store) == ["0.5"]
    (found,) = rows(database, "SELECT limit_usd, granted_usd, spent_usd FROM finance.budget_alerts")
    assert found == (Decimal("0.000001"), Decimal("0.0000008"), Decimal("0.0000009"))
    assert raised(store, now=NOON + SOON) == []  # 80 % of 1,200 are 960
    spend(database, 960)
    assert raised(store, now=NOON + SOON) == ["0.8"]


def test_a_raised_limit_neither_takes_back_nor_repeats(
    database: Database, store: BudgetAlertStore
) -> None:
    """80 % of 1,000 was reached and announced. Of the new limit of 2,000, only thresholds above
    that are new.
    """
    declare(database, alerting())
    spend(database, 850)
    assert raised(store) == ["0.5", "0.8"]
    declare(database, alerting(2000))
    assert raised(store) == []
    spend(database, 1700)
    assert raised(store) == []
    spend(database, 2000)
    assert raised(store) == ["1"]
    declare(database, alerting(3000, alert_at=(*SHARES, Decimal("0.60"))))
    assert raised(store) == ["0.60"]


def test_a_new_period_raises_its_own_alerts(database: Database, store: BudgetAlertStore) -> None:
    """December's money is not November's. Spending that is written late still raises November's
    alerts for an hour.
    """
    declare(database, alerting())
    spend(database, 500)
    assert raised(store) == ["0.5"]
    turn = DECEMBER
    spend(database, 800)
    spend(database, 500, starts_at=DECEMBER, ends_at=datetime(2027, 1, 1, tzinfo=UTC))
    assert raised(store, now=turn) == ["0.8", "0.5"]
    spend(database, 1000)
    assert raised(store, now=turn + timedelta(hours=1)) == []
    found = rows(
        database,
        "SELECT starts_at, ends_at, threshold FROM finance.budget_alerts ORDER BY starts_at, "
        "threshold",
    )
    assert found == [
        (NOVEMBER, DECEMBER, Decimal("0.5")),
        (NOVEMBER, DECEMBER, Decimal("0.8")),
        (DECEMBER, datetime(2027, 1, 1, tzinfo=UTC), Decimal("0.5")),
    ]


def test_a_budget_for_once_alerts_once(database: Database, store: BudgetAlertStore) -> None:
    """Such a budget has no end; it is checked for as long as it is declared."""
    declare(database, alerting(rule_id="pilot", period=BudgetPeriod.ONCE))
    spend(
        database, 900, account_id="pilot", starts_at=datetime(1970, 1, 1, tzinfo=UTC), ends_at=None
    )
    assert raised(store) == ["0.5", "0.8"]
    (found,) = set(rows(database, "SELECT starts_at, ends_at FROM finance.budget_alerts"))
    assert found == (datetime(1970, 1, 1, tzinfo=UTC), None)


def test_an_alert_names_the_accounts_owner(database: Database, store: BudgetAlertStore) -> None:
    """With one rule for each key, the alert names the key's id. A key with its own rule is
    checked by that rule.
    """
    each = alerting(rule_id="payments/key:*/month", scope=BudgetScope.KEY, owner=EACH)
    own = alerting(5000, rule_id="payments/key:k2/month", scope=BudgetScope.KEY, owner="k2")
    declare(database, each, own)
    for key in ("k1", "k2"):
        spend(database, 500, account_id=f"payments/key:{key}/month", rule_id=each.rule_id)
    assert raised(store) == ["0.5"]
    (found,) = rows(database, "SELECT account, owner, scope FROM finance.budget_alerts")
    assert found == ("payments/key:k1/month", "k1", "key")


def test_a_budget_that_is_not_declared_any_more_is_silent(
    database: Database, store: BudgetAlertStore
) -> None:
    """A budget that is no longer declared limits no request, so its alert is not needed. The
    other budgets are checked as before.
    """
    named = alerting(rule_id="pilot", scope=BudgetScope.PROJECT, owner=EACH)
    declare(
        database, alerting(), alerting(rule_id="payments/week", period=BudgetPeriod.WEEK), named
    )
    spend(database, 500)
    spend(database, 500, account_id="payments/week", starts_at=NOVEMBER + timedelta(days=15))
    spend(database, 500, account_id="pilot:a", rule_id="pilot")
    # The same name now belongs to one project, so project a's old account has no rule.
    declare(database, alerting(), alerting(rule_id="pilot", scope=BudgetScope.PROJECT, owner="b"))
    assert raised(store) == ["0.5"]
    assert taken_all(database) == [f"budget {ACCOUNT} at 50%"]


def test_a_budget_with_a_new_period_ignores_its_old_spending(
    database: Database, store: BudgetAlertStore
) -> None:
    """5,000 a month became 100 a day. The month's sum is far above 100, but it must not raise
    the day's alerts.
    """
    declare(database, alerting(5000, rule_id="pilot"))
    spend(database, 400, account_id="pilot")
    assert raised(store) == []
    declare(database, alerting(100, rule_id="pilot", period=BudgetPeriod.DAY))
    assert raised(store) == []


def taken_all(
    database: Database, *, channel: Channel = Channel.WEBHOOK, now: datetime = NOON
) -> list[str]:
    """Take all alerts that a channel is to deliver, and deliver each at once."""
    deliveries = AlertDeliveries(database)
    deliveries.open(channel, now=now)
    found = []
    while (due := deliveries.take(channel, now=now, until=now + SOON)) is not None:
        found.append(due.message.about)
        deliveries.record_delivery(
            Delivery(
                alert_id=due.message.alert_id,
                channel=channel,
                tries=due.tries + 1,
                delivered_at=now,
            )
        )
    return found


def test_alerts_are_delivered_lowest_first_and_higher_ones_wait(
    database: Database, store: BudgetAlertStore
) -> None:
    """If 100 % came before 80 %, spending would seem to fall. Another account does not wait for
    this one.
    """
    declare(database, alerting(), alerting(rule_id="zoo", alert_at=(Decimal("0.5"),)))
    spend(database, 1000)
    spend(database, 1000, account_id="zoo")
    store.raise_crossed(now=NOON)
    deliveries = AlertDeliveries(database)
    deliveries.open(Channel.WEBHOOK, now=NOON)
    first = deliveries.take(Channel.WEBHOOK, now=NOON, until=NOON + SOON)
    second = deliveries.take(Channel.WEBHOOK, now=NOON, until=NOON + SOON)
    assert first is not None
    assert second is not None
    assert (first.message.about, second.message.about) == (
        f"budget {ACCOUNT} at 50%",
        "budget zoo at 50%",
    )
    assert deliveries.take(Channel.WEBHOOK, now=NOON, until=NOON + SOON) is None
    later = NOON + timedelta(hours=1)
    deliveries.record_delivery(
        Delivery(
            alert_id=first.message.alert_id,
            channel=Channel.WEBHOOK,
            tries=1,
            error="no",
            next_try_at=later,
        )
    )
    assert taken_all(database, now=NOON + SOON) == ["budget zoo at 50%"]
    in_order = [f"budget {ACCOUNT} at {share}%" for share in (50, 80, 100)]
    mailed = taken_all(database, channel=Channel.EMAIL)
    assert mailed == [*in_order, "budget zoo at 50%"]
    assert taken_all(database, now=later) == in_order
    assert [deliveries.waiting(channel) for channel in Channel] == [0, 0]


def test_a_receiver_gets_the_alerts_of_the_day_before_it_was_declared(
    database: Database, store: BudgetAlertStore
) -> None:
    """A replica may raise an alert a moment before it hears of the policy that names the
    receiver. Yesterday's alerts stay with the channel that had them.
    """
    declare(database, alerting())
    spend(database, 500)
    assert raised(store) == ["0.5"]
    assert taken_all(database, now=NOON + GIVE_UP_AFTER - SOON) == [f"budget {ACCOUNT} at 50%"]
    assert taken_all(database, channel=Channel.EMAIL, now=NOON + GIVE_UP_AFTER) == []
    (found,) = rows(database, "SELECT channel, tries FROM finance.alert_deliveries")
    assert found == ("webhook", 1)


def test_an_alert_that_the_release_before_delivered_is_not_posted_again(
    database: Database, store: BudgetAlertStore
) -> None:
    """While replicas are upgraded one by one, an old one may lead and keep its own state."""
    declare(database, alerting(alert_at=(Decimal("0.5"),)))
    spend(database, 500)
    store.raise_crossed(now=NOON)
    with database.begin() as connection:
        connection.execute(
            text("UPDATE tollgate.budget_alerts SET delivered_at = :now, tries = 1"), {"now": NOON}
        )
    assert taken_all(database) == []
    assert taken_all(database, channel=Channel.EMAIL) == [f"budget {ACCOUNT} at 50%"]


def test_an_alert_is_taken_by_one(database: Database, database_url: str) -> None:
    """Two workers may lead for a moment. Each alert is sent by one of them until its lease
    expires.
    """
    names = [f"b{number:02}" for number in range(30)]
    declare(database, *(alerting(rule_id=name, alert_at=(Decimal(1),)) for name in names))
    for name in names:
        spend(database, 1000, account_id=name)
    BudgetAlertStore(database).raise_crossed(now=NOON)
    AlertDeliveries(database).open(Channel.WEBHOOK, now=NOON)
    takers = 4
    start = Barrier(takers)

    def take(_: int) -> list[UUID]:
        opened = Database(database_url, role="tollgate_gateway")
        start.wait(20)
        found = []
        # While other workers hold the due alerts, there is nothing to take for a moment; the loop
        # must go on.
        for _ in range(len(names)):
            due = AlertDeliveries(opened).take(Channel.WEBHOOK, now=NOON, until=NOON + SOON)
            found += [due.message.alert_id] if due is not None else []
        opened.close()
        return found

    with ThreadPoolExecutor(takers) as pool:
        found = [alert_id for part in pool.map(take, range(takers)) for alert_id in part]
    assert len(found) == len(set(found)) == len(names)


def test_how_a_try_ended_is_written_once(database: Database, store: BudgetAlertStore) -> None:
    """A result that arrives twice, or too late from a replaced leader, changes nothing."""
    declare(database, alerting(alert_at=(Decimal("0.5"),)))
    spend(database, 500)
    store.raise_crossed(now=NOON)
    (alert,) = store.unannounced()
    deliveries = AlertDeliveries(database)
    deliveries.open(Channel.WEBHOOK, now=NOON)
    failed = Delivery(
        alert_id=alert.alert_id,
        channel=Channel.WEBHOOK,
        tries=1,
        error="The webhook answered 500.",
        next_try_at=NOON + SOON,
    )
    delivered = replace(failed, tries=2, error=None, next_try_at=None, delivered_at=NOON + SOON)
    for delivery in (failed, failed, delivered, delivered, failed):
        deliveries.record_delivery(delivery)
    (found,) = rows(
        database,
        "SELECT tries, next_try_at, last_error, delivered_at, given_up_at FROM "
        "finance.budget_alerts",
    )
    assert found == (2, None, "The webhook answered 500.", NOON + SOON, None)
    late = NOON + timedelta(days=2)
    assert deliveries.take(Channel.WEBHOOK, now=late, until=late) is None


def test_an_answer_that_is_lost_loses_no_alert(database: Database, database_url: str) -> None:
    """Postgres committed the raised alert, but the leader lost the reply. The leader finds the
    alert as not announced.
    """
    declare(database, alerting())
    spend(database, 800)
    proxy = DroppingProxy(database_url)
    try:
        opened = Database(proxy.url, role="tollgate_gateway")
        store = BudgetAlertStore(opened)
        store.raise_crossed(now=NOON - timedelta(days=90))  # opens the connection
        proxy.lose_commit()
        with pytest.raises(DatabaseUnavailable):
            store.raise_crossed(now=NOON)
        assert proxy.lost == 1
        assert raised(store, now=NOON + SOON) == ["0.5", "0.8"]
        opened.close()
    finally:
        proxy.close()


def test_the_view_shows_each_alert_and_its_delivery(
    database: Database, store: BudgetAlertStore
) -> None:
    """Finance sees in one row the alert's text and whether it was delivered."""
    declare(database, alerting(alert_at=(Decimal("0.50"),), time_zone="UTC"))
    spend(database, 500)
    store.raise_crossed(now=NOON)
    AlertDeliveries(database).open(Channel.WEBHOOK, now=NOON)
    with database.begin() as connection:
        connection.execute(text("SET LOCAL ROLE tollgate_reader"))
        (row,) = connection.execute(text("SELECT * FROM finance.budget_alerts")).mappings()
    (alert,) = store.unannounced()
    assert dict(row) == {
        "alert_id": alert.alert_id,
        "account": ACCOUNT,
        "rule": ACCOUNT,
        "scope": "team",
        "team": "payments",
        "owner": "payments",
        "kind": "hard",
        "period": "month",
        "starts_at": NOVEMBER,
        "ends_at": DECEMBER,
        "threshold": Decimal("0.50"),
        "limit_usd": Decimal("0.000001"),
        "granted_usd": Decimal(0),
        "spent_usd": Decimal("0.0000005"),
        "raised_at": NOON,
        "tries": 0,
        "next_try_at": NOON,
        "last_error": None,
        "delivered_at": None,
        "given_up_at": None,
    }
