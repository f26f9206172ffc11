"""Alerts of spikes in Postgres: from the sums by day alone, once for each team and day, whichever
worker looks and however late.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from threading import Barrier

import pytest
from sqlalchemy import text

from gateway.domain.alerts.delivery import Channel
from gateway.domain.alerts.spikes import days_due, message_of
from gateway.storage.alerts.deliveries import AlertDeliveries
from gateway.storage.alerts.spikes import SpikeAlertStore
from gateway.storage.postgres.database import Database
from tests.storage.budget_books import rows

TUESDAY = date(2026, 11, 10)
MORNING = datetime(2026, 11, 11, 1, 0, tzinfo=UTC)
USD = 10**9
DAYS = 57


@pytest.fixture
def store(database_url: str) -> Iterator[SpikeAlertStore]:
    """Yield the store in the gateway's role."""
    opened = Database(database_url, role="tollgate_gateway")
    yield SpikeAlertStore(opened)
    opened.close()


def sums(
    database: Database,
    team: str = "payments",
    *,
    last_usd: Mapping[tuple[str, str | None], int],
    last: date = TUESDAY,
    usual_usd: int = 121,
    is_demo: bool = False,
) -> None:
    """Store the sums of eight weeks of one model and key, and of the last day; no events."""
    usual = {("gpt-5.5", "k1a2b3c4d5"): usual_usd}
    with database.begin() as connection:
        for back in range(DAYS):
            amounts = usual if back else last_usd
            for (model, key_id), amount_usd in amounts.items():
                connection.execute(
                    text(
                        "INSERT INTO tollgate.spend_rollup_by_key (day, team, model, key_id, "
                        "is_demo, cost_nusd) VALUES (:day, :team, :model, :key, :is_demo, :nusd)"
                    ),
                    {
                        "day": last - timedelta(days=back),
                        "team": team,
                        "model": model,
                        "key": key_id,
                        "is_demo": is_demo,
                        "nusd": amount_usd * USD,
                    },
                )


def looked(store: SpikeAlertStore, *, floor_usd: int = 50, now: datetime = MORNING) -> list[bool]:
    """Look at all days that are due."""
    return [
        store.raise_spikes(day, floor_nusd=floor_usd * USD, now=now) for day in store.due(now=now)
    ]


def test_a_spike_raises_one_alert_with_its_driver(
    database: Database, store: SpikeAlertStore
) -> None:
    """The text names the team, the model and the key to pause; the sums are all that it is from."""
    sums(database, last_usd={("gpt-5.5", "k1a2b3c4d5"): 533})
    assert looked(store) == [True]
    assert looked(store) == []
    (alert,) = store.unannounced()
    message = message_of(alert)
    assert message.text.splitlines() == [
        "2026-11-10: team payments, model gpt-5.5, key k1a2b3c4d5: 340 % above its usual Tuesday, "
        "$412.00.",
        "tollgate key pause k1a2b3c4d5",
    ]
    assert message.payload["command"] == "tollgate key pause k1a2b3c4d5"
    store.note_announced([alert.alert_id], now=MORNING)
    assert store.unannounced() == ()


def test_each_channel_delivers_it(database: Database, store: SpikeAlertStore) -> None:
    """A spike goes the way of a budget's alert, by every channel that has a receiver."""
    sums(database, last_usd={("gpt-5.5", "k1a2b3c4d5"): 533})
    looked(store)
    (alert,) = store.unannounced()
    deliveries = AlertDeliveries(database)
    for channel in Channel:
        deliveries.open(channel, now=MORNING)
        due = deliveries.take(channel, now=MORNING, until=MORNING + timedelta(seconds=30))
        assert due is not None
        assert due.message == message_of(alert)
        assert deliveries.waiting(channel) == 1


def test_a_clock_that_was_wrong_holds_no_alert_back(
    database: Database, store: SpikeAlertStore
) -> None:
    """A machine that woke up in 2036 took the alert until then, and was killed."""
    sums(database, last_usd={("gpt-5.5", "k1a2b3c4d5"): 533})
    looked(store)
    deliveries, wrong = AlertDeliveries(database), MORNING + timedelta(days=3652)
    deliveries.open(Channel.EMAIL, now=MORNING)
    half_a_minute = timedelta(seconds=30)
    assert deliveries.take(Channel.EMAIL, now=wrong, until=wrong + half_a_minute) is not None
    assert deliveries.take(Channel.EMAIL, now=MORNING, until=MORNING + half_a_minute) is not None
    assert deliveries.take(Channel.EMAIL, now=MORNING, until=MORNING + half_a_minute) is None


def test_the_key_that_grew_is_named_and_not_the_largest(
    database: Database, store: SpikeAlertStore
) -> None:
    """Pausing the key that always costs most would stop the wrong program."""
    sums(database, last_usd={("gpt-5.5", "k1a2b3c4d5"): 125, ("gpt-5.5-mini", "k9"): 100})
    sums(database, "search", last_usd={("gpt-5.5", None): 900})
    looked(store)
    found = rows(
        database,
        "SELECT team, model, key_id, driver_usd FROM finance.spike_alerts ORDER BY team",
    )
    assert found == [("payments", "gpt-5.5-mini", "k9", 100), ("search", "gpt-5.5", None, 900)]
    (without_key,) = [one for one in store.unannounced() if one.team == "search"]
    assert "tollgate key pause" not in message_of(without_key).text


def test_small_and_falling_days_and_the_demo_raise_nothing(
    database: Database, store: SpikeAlertStore
) -> None:
    """A drop is no reason to pause a key, and the policy's floor keeps cents out."""
    sums(database, "small", last_usd={("m", "k"): 16}, usual_usd=4)
    sums(database, "falling", last_usd={("m", "k"): 0})
    sums(database, "demo", last_usd={("m", "k"): 900}, is_demo=True)
    sums(database, "usual", last_usd={("m", "k"): 125})
    assert looked(store, floor_usd=12) == [True]
    assert store.unannounced() == ()


def test_it_waits_for_the_sums_of_the_day(database: Database, store: SpikeAlertStore) -> None:
    """Half a day's sum would hide a spike for ever, since each day is looked at once."""
    sums(database, last_usd={("gpt-5.5", "k1a2b3c4d5"): 533})
    for mark, wipe in (
        ("INSERT INTO tollgate.dirty_days (day) VALUES (:day)", "DELETE FROM tollgate.dirty_days"),
        (
            "INSERT INTO tollgate.dirty_hours (hour) VALUES (:day + time '23:00')",
            "DELETE FROM tollgate.dirty_hours",
        ),
    ):
        with database.begin() as connection:
            connection.execute(text(mark), {"day": TUESDAY})
        assert looked(store) == [False]
        with database.begin() as connection:
            connection.execute(text(wipe))
    assert looked(store) == [True]


def test_leaders_that_race_raise_it_once(
    database: Database, database_url: str, store: SpikeAlertStore
) -> None:
    """Two workers lead for a moment when one of them lost its connection."""
    for number in range(5):
        sums(database, f"t{number}", last_usd={("gpt-5.5", "k1a2b3c4d5"): 533})
    racers = 4
    start = Barrier(racers)

    def race(_: int) -> bool:
        opened = Database(database_url, role="tollgate_gateway")
        start.wait(20)
        done = SpikeAlertStore(opened).raise_spikes(TUESDAY, floor_nusd=0, now=MORNING)
        opened.close()
        return done

    with ThreadPoolExecutor(racers) as pool:
        assert all(pool.map(race, range(racers)))
    assert len(store.unannounced()) == 5


def test_the_days_that_are_due() -> None:
    """A day counts as over an hour after its end. A late start catches up a week, and a first one
    begins with yesterday.
    """
    late = datetime(2026, 11, 11, 0, 59, 59, tzinfo=UTC)
    assert days_due((), now=late) == (date(2026, 11, 9),)
    assert days_due((), now=MORNING) == (TUESDAY,)
    assert days_due((TUESDAY,), now=MORNING) == ()
    assert days_due((date(2026, 11, 8),), now=MORNING) == (date(2026, 11, 9), TUESDAY)
    week = days_due((date(2026, 1, 1),), now=MORNING)
    assert (week[0], week[-1], len(week)) == (date(2026, 11, 4), TUESDAY, 7)
    assert days_due((date(2026, 11, 20),), now=MORNING) == ()  # the clock went back
