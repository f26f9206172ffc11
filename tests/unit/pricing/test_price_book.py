"""The price book: the entry in force, and the results of repricing an event."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.policy.price_book import (
    EVER,
    BookEntry,
    DailyWindow,
    Dated,
    ModelKey,
    PriceBook,
    PriceOrigin,
    latest,
    same_rates,
)
from gateway.domain.pricing.price_corrections import Adjustment, PricedEvent, refuse_unless_open
from gateway.domain.pricing.pricing import Price
from gateway.domain.pricing.tokens import TokenUsage
from gateway.errors import OperatorError
from tests.factories import NOW, REQUEST_ID, calibration, deployment, price

KEY = ModelKey("openai", "gpt-5.5")
DAY = timedelta(days=1)


def entry(
    number: int,
    usd: str | None,
    *,
    at: datetime = EVER,
    daily: DailyWindow | None = None,
    **names: str | None,
) -> BookEntry:
    """Return an override of model m-1 unless set otherwise; `usd` None withdraws."""
    values: dict[str, str | None] = {"provider": None, "model": "m-1", "deployment": None} | names
    return BookEntry(
        entry_id=number,
        origin=PriceOrigin.OVERRIDE,
        dated=Dated(valid_from=at, price=usd and price(usd), daily=daily),
        source="contract",
        author="ada",
        reason="because",
        created_at=NOW,
        **values,
    )


def listed(
    number: int, usd: str, *, at: datetime = EVER, daily: DailyWindow | None = None
) -> BookEntry:
    """An imported entry of `KEY`."""
    made = entry(number, usd, at=at, daily=daily, provider=KEY.provider, model=KEY.model)
    return replace(made, origin=PriceOrigin.LIST)


def usd(found: Price | None) -> str | None:
    return None if found is None else str(found.rates[0].usd_per_mtok)


@pytest.mark.parametrize(
    ("since", "until", "inside", "outside"),
    [
        (time(8), time(18), [time(8), time(17, 59)], [time(7, 59), time(18), time()]),
        (
            time(16, 30),
            time(0, 30),
            [time(16, 30), time(23, 59), time(), time(0, 29)],
            [time(0, 30), time(12)],
        ),
        (time(8), time(8), [time(), time(7, 59), time(8), time(23, 59)], []),
    ],
)
def test_a_daily_window_may_cross_midnight(
    since: time, until: time, inside: list[time], outside: list[time]
) -> None:
    """Off-peak hours are a night."""
    window = DailyWindow(since, until)
    assert all(window.holds(clock) for clock in inside)
    assert not any(window.holds(clock) for clock in outside)


def test_the_entry_that_began_last_is_in_force() -> None:
    """A price of the past that is added today does not replace today's."""
    book = PriceBook(entries=(listed(1, "1"), listed(2, "3", at=NOW), listed(3, "2", at=NOW - DAY)))
    days = [NOW - 2 * DAY, NOW - DAY, NOW - timedelta(seconds=1), NOW, NOW + DAY]
    assert [usd(book.listed(KEY, at)) for at in days] == ["1", "2", "2", "3", "3"]


def test_of_entries_of_one_moment_the_newest_is_in_force() -> None:
    """A mistake is fixed by another entry of the same date: nothing is edited."""
    assert usd(PriceBook(entries=(listed(1, "1"), listed(2, "2"))).listed(KEY, NOW)) == "2"


def test_a_window_wins_over_the_price_of_its_day_alone() -> None:
    """And a later price of the day ends the windows before it."""
    night = DailyWindow(time(16, 30), time(0, 30))
    book = PriceBook(
        entries=(listed(1, "2"), listed(2, "1", daily=night), listed(3, "5", at=NOW + 2 * DAY))
    )
    noon = NOW.replace(hour=12)
    found = [
        usd(book.listed(KEY, at))
        for at in (noon, noon.replace(hour=20), noon.replace(hour=20) + 3 * DAY)
    ]
    assert found == ["2", "1", "5"]
    east = noon.replace(hour=20).astimezone(timezone(timedelta(hours=9)))
    assert usd(book.listed(KEY, east)) == "1", (
        "the hour is UTC's, whatever the moment is written in"
    )


def test_an_imported_model_is_known_and_others_are_not() -> None:
    """For the others the bundled list still speaks."""
    book = PriceBook(entries=(listed(1, "1", at=NOW),))
    assert book.has_listed(KEY)
    assert not book.has_listed(ModelKey("openai", "gpt-4o"))
    assert book.listed(KEY, NOW - DAY) is None
    assert book.listed(ModelKey("openai", "gpt-4o"), NOW) is None
    assert latest([], NOW) is None


def test_the_nearest_override_wins() -> None:
    """A deployment's own, else its provider's model, else the model everywhere."""
    everywhere = entry(1, "1")
    at_provider = entry(2, "2", provider="openai_compatible")
    own = entry(3, "3", model=None, deployment="one")
    elsewhere = (
        entry(4, "4", provider="openai"),
        entry(5, "5", model=None, deployment="two"),
        listed(6, "6"),
    )
    one = deployment("one")
    assert (
        usd(PriceBook(entries=(own, at_provider, everywhere, *elsewhere)).override(one, NOW)) == "3"
    )
    assert usd(PriceBook(entries=(at_provider, everywhere, *elsewhere)).override(one, NOW)) == "2"
    assert usd(PriceBook(entries=(everywhere, *elsewhere)).override(one, NOW)) == "1"
    assert PriceBook(entries=elsewhere).override(one, NOW) is None


def test_a_withdrawn_override_lets_the_next_one_through() -> None:
    """The contract of one deployment ends; the model's own contract goes on."""
    ended = (
        entry(1, "3", model=None, deployment="one"),
        entry(2, None, model=None, deployment="one", at=NOW),
    )
    book = PriceBook(entries=(*ended, entry(3, "1")))
    assert usd(book.override(deployment("one"), NOW - DAY)) == "3"
    assert usd(book.override(deployment("one"), NOW)) == "1"
    assert PriceBook(entries=ended).override(deployment("one"), NOW) is None


def test_the_latest_calibration_of_a_deployment_is_in_force() -> None:
    """Each engine is measured for itself, and again after a change."""

    def calibrated(number: int, rate: str, *, at: datetime = EVER, name: str = "one") -> BookEntry:
        made = entry(number, "1", at=at, model=None, deployment=name)
        measured = calibration(input_tok_per_s=Decimal(rate))
        return replace(made, origin=PriceOrigin.CALIBRATED, calibration=measured)

    book = PriceBook(
        entries=(
            calibrated(1, "10"),
            calibrated(2, "20", at=NOW),
            calibrated(3, "30", at=NOW, name="two"),
            entry(4, "4", model=None, deployment="one"),
        )
    )
    one = deployment("one")
    rates = [
        found and found.input_tok_per_s
        for found in (book.calibrated(one, at) for at in (NOW - DAY, NOW))
    ]
    assert rates == [10, 20]
    assert book.calibrated(deployment("three"), NOW) is None
    assert usd(book.override(one, NOW)) == "4"
    assert [e.entry_id for e in book.history(one, None)] == [1, 4, 2]


def test_the_history_has_all_that_ever_spoke_of_a_deployment() -> None:
    """In the order of their beginnings, withdrawn ones included."""
    spoke = (
        entry(4, "4", at=NOW),
        entry(3, "3", provider="openai_compatible"),
        entry(2, None, model=None, deployment="one"),
        listed(1, "1"),
    )
    silent = (
        entry(5, "5", provider="openai"),
        entry(6, "6", model="m-2"),
        entry(7, "7", model=None, deployment="two"),
    )
    book = PriceBook(entries=(*spoke, *silent))
    assert [e.entry_id for e in book.history(deployment("one"), KEY)] == [1, 2, 3, 4]
    assert [e.entry_id for e in book.history(deployment("one"), None)] == [2, 3, 4]


def test_the_history_lists_each_entry_once() -> None:
    """A deployment named as the list names its model is spoken of by name and by key: still one
    line of its history.
    """
    named = deployment("one", provider=KEY.provider, model=KEY.model)
    book = PriceBook(entries=(listed(1, "1"), entry(2, "2", model=KEY.model)))
    assert [e.entry_id for e in book.history(named, KEY)] == [1, 2]
    assert [e.entry_id for e in book.history(named, None)] == [2], (
        "without a key the list says nothing"
    )


def test_prices_are_compared_by_their_rates() -> None:
    """A new version of the list is no new price."""
    assert same_rates(
        price("1", source="genai-prices 1"),
        replace(price("1.0", source="genai-prices 2"), model="x"),
    )
    assert not same_rates(price("1"), price("2"))
    assert not same_rates(price("1"), None)
    assert same_rates(None, None)


@given(
    st.lists(st.tuples(st.integers(-3, 3), st.booleans()), max_size=8),
    st.integers(-4, 4),
    st.integers(0, 23),
)
def test_adding_an_entry_never_changes_the_time_before_it(
    moments: list[tuple[int, bool]], at: int, hour: int
) -> None:
    """A day's price stays true of it, except by an entry for that very day."""
    night = DailyWindow(time(20), time(6))
    entries = tuple(
        listed(n, str(n), at=NOW + days * DAY, daily=night if is_night else None)
        for n, (days, is_night) in enumerate(moments)
    )
    asked = (NOW + at * DAY).replace(hour=hour)
    before = PriceBook(entries=entries).listed(KEY, asked)
    later = listed(99, "99", at=asked + timedelta(seconds=1))
    assert PriceBook(entries=(*entries, later)).listed(KEY, asked) == before


def event(times: int = 0, attempt: int = 1) -> PricedEvent:
    return PricedEvent(
        request_id=REQUEST_ID,
        attempt=attempt,
        occurred_at=NOW,
        team="payments",
        cost_centre="CC-1",
        deployment="one",
        model="m-1",
        policy_version=1,
        service_tier=None,
        usage=TokenUsage(input_tokens=1, output_tokens=1),
        price_id="price_0",
        cost_nusd=5,
        adjusted_nusd=0,
        times=times,
    )


def test_the_same_correction_has_the_same_id() -> None:
    """Two people who reprice a month at once post each difference once; the next change is another
    one.
    """
    ids = [
        Adjustment(event=e, amount_nusd=1, reason="").adjustment_id
        for e in (event(), event(), event(1), event(0, 2))
    ]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3


def test_only_an_open_month_may_change() -> None:
    """A month that finance has reported stays as it was reported."""
    refuse_unless_open(date(2026, 11, 1), "open")
    for state in ("provisional", "closed"):
        with pytest.raises(
            OperatorError, match=f"2026-10 is {state}: its figures can no longer change"
        ):
            refuse_unless_open(date(2026, 10, 1), state)
