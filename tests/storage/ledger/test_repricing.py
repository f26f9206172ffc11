"""Repricing on a real ledger: events are only read, differences are posted once, and a closed
month is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal

import pytest
from sqlalchemy import text

from gateway.domain.pricing.price_corrections import Adjustment, PricedEvent
from gateway.domain.pricing.pricing import Line
from gateway.domain.pricing.tokens import TokenKind, TokenUsage, UsageSource
from gateway.errors import NothingFound, OperatorError
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.ledger.repricing import RepriceStore
from gateway.storage.postgres.database import Database
from tests.storage.factories import NOON, event

MONTH = date(2026, 11, 1)
EVERYTHING = TokenUsage(
    input_tokens=1000,
    cached_input_tokens=600,
    cache_write_tokens=100,
    cache_write_30m_tokens=10,
    cache_write_1h_tokens=20,
    cache_write_12h_tokens=0,
    audio_input_tokens=50,
    image_input_tokens=60,
    output_tokens=500,
    reasoning_tokens=20,
    audio_output_tokens=30,
    image_output_tokens=40,
    web_search_calls=3,
    file_search_calls=1,
    code_interpreter_calls=0,
    image_generation_calls=2,
    x_search_calls=4,
)


def _close(database: Database, state: str = "closed") -> None:
    with database.begin() as connection:
        connection.execute(text("UPDATE tollgate.periods SET state = :state"), {"state": state})


def _adjustments(database: Database) -> list[tuple[object, ...]]:
    with database.begin() as connection:
        rows = connection.execute(
            text(
                "SELECT attempt, team, posted_period, amount_nusd, kind, reason, author FROM "
                "tollgate.adjustments ORDER BY request_id, created_at"
            )
        )
        return [tuple(row) for row in rows]


def _all(store: RepriceStore, **filters: str | None) -> list[PricedEvent]:
    return list(store.events(MONTH, **{"route": None, "deployment": None} | filters))


def test_an_event_is_read_with_all_its_counts(database: Database) -> None:
    """Searches and audio have no column of their own but are charged."""
    Ledger(database).write([event(1, usage=EVERYTHING, service_tier="flex")])
    (found,) = _all(RepriceStore(database))
    assert found == PricedEvent(
        request_id=event(1).request_id,
        attempt=1,
        occurred_at=NOON,
        team="payments",
        cost_centre="CC-1207",
        deployment="gpt-eu",
        model="gpt-5.5",
        policy_version=3,
        service_tier="flex",
        usage=EVERYTHING,
        price_id="price_0123456789abcdef",
        cost_nusd=600_000,
        adjusted_nusd=0,
        times=0,
    )


def test_writes_at_the_provider_s_stated_rate_are_told_by_their_line(database: Database) -> None:
    """The price does not list it, so the event alone shows it."""
    usage = TokenUsage(input_tokens=9, cache_write_tokens=8, output_tokens=0)
    line = Line(
        kind=TokenKind.CACHE_WRITE, tokens=8, usd_per_mtok=Decimal("1.25"), cost_nusd=600_000
    )
    sources = (UsageSource.ESTIMATED, UsageSource.PROVIDER)
    Ledger(database).write(
        [
            event(number, usage=usage, usage_source=source, lines=(line,))
            for number, source in enumerate(sources, 1)
        ]
    )
    found = {one.request_id: one.has_stated_writes for one in _all(RepriceStore(database))}
    assert found == {event(1).request_id: True, event(2).request_id: False}


def test_only_the_months_own_real_events_are_read(database: Database) -> None:
    """Demo data costs no money; other routes and deployments were not selected."""
    Ledger(database).write(
        [
            event(1),
            event(2, route="other"),
            event(3, deployment="gpt-us"),
            event(4, is_demo=True),
            event(5, at=NOON - timedelta(days=31)),
            event(6, at=NOON + timedelta(days=31)),
        ]
    )
    store = RepriceStore(database)
    ids = [event(number).request_id for number in range(4)]
    assert sorted(found.request_id for found in _all(store)) == sorted(ids[1:4])
    assert [found.request_id for found in _all(store, route="other")] == [ids[2]]
    assert [found.request_id for found in _all(store, deployment="gpt-us")] == [ids[3]]
    assert (store.state(MONTH), store.state(date(2020, 1, 1))) == ("open", None)


def test_a_difference_is_posted_once_and_seen_the_next_time(database: Database) -> None:
    """A second run must add nothing, and the event itself must stay as recorded."""
    Ledger(database).write([event(1)])
    store = RepriceStore(database)
    (found,) = _all(store)
    adjustment = Adjustment(event=found, amount_nusd=-100, reason="why")
    assert [store.post(MONTH, [adjustment], author="ada") for _ in range(2)] == [1, 0]
    assert _adjustments(database) == [(1, "payments", MONTH, -100, "reprice", "why", "ada")]
    assert _all(store) == [replace(found, adjusted_nusd=-100, times=1)]


def test_two_runs_at_once_post_each_difference_once(database: Database, database_url: str) -> None:
    """Two people may reprice the same month."""
    Ledger(database).write([event(number) for number in range(50)])
    seen = [
        Adjustment(event=found, amount_nusd=7, reason="why")
        for found in _all(RepriceStore(database))
    ]

    def post(_: int) -> int:
        mine = Database(database_url)
        try:
            return RepriceStore(mine).post(MONTH, seen, author="ada")
        finally:
            mine.close()

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(post, range(4))) == 50
    assert len(_adjustments(database)) == 50


@pytest.mark.parametrize("state", ["closed", "provisional"])
def test_a_month_that_is_not_open_takes_no_difference(database: Database, state: str) -> None:
    """Its figures never change, even if it was closed between the preview and the posting."""
    Ledger(database).write([event(1)])
    store = RepriceStore(database)
    adjustment = Adjustment(event=_all(store)[0], amount_nusd=1, reason="why")
    _close(database, state)
    with pytest.raises(OperatorError, match=f"2026-11 is {state}"):
        store.post(MONTH, [adjustment], author="ada")
    with pytest.raises(NothingFound, match="nothing in 2020-01"):
        store.post(date(2020, 1, 1), [adjustment], author="ada")
    assert _adjustments(database) == []


def test_a_run_that_breaks_posts_nothing(database: Database) -> None:
    """A run posts all of a month or nothing: half a correction would be a new error."""
    Ledger(database).write([event(number) for number in range(3)])
    store = RepriceStore(database)
    found = _all(store)

    def breaking() -> Iterator[Adjustment]:
        for one in found[:2]:
            yield Adjustment(event=one, amount_nusd=1, reason="why")
        raise RuntimeError("the terminal was closed")

    with pytest.raises(RuntimeError):
        store.post(MONTH, breaking(), author="ada")
    assert _adjustments(database) == []


def test_an_event_that_was_corrected_otherwise_says_so(database: Database) -> None:
    """A redelivery had another cost; pricing the first delivery again would reverse that."""
    ledger = Ledger(database)
    ledger.write([event(1)])
    ledger.write([event(1, cost_nusd=900_000)])
    (found,) = _all(RepriceStore(database))
    assert (found.is_corrected, found.adjusted_nusd, found.times) == (True, 0, 0)
