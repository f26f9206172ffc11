"""Syncing with the built-in list and pricing a month again, over values and a ledger that
remembers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.policy.policy import Deployment, Policy
from gateway.domain.policy.price_book import EVER, DailyWindow, Dated, ModelKey, PriceBook
from gateway.domain.pricing.price_corrections import Adjustment, PricedEvent
from gateway.domain.pricing.pricing import Price
from gateway.domain.pricing.selfhost import Calibration
from gateway.domain.pricing.tokens import TokenKind, TokenUsage
from gateway.errors import NothingFound, OperatorError
from gateway.services.policy.price_changes import Repricing, rate_changes, sync_steps
from tests.factories import NOW, REQUEST_ID, deployment, imported, policy, price

KEY = ModelKey("openai", "gpt-5.5")
DAY = timedelta(days=1)
MONTH = date(2026, 11, 1)
NIGHT = DailyWindow(time(16, 30), time(0, 30))


def dated(usd: str | None, at: datetime = EVER, daily: DailyWindow | None = None) -> Dated:
    return Dated(valid_from=at, price=None if usd is None else price(usd), daily=daily)


def book_of(entries: Iterable[Dated]) -> PriceBook:
    return imported(KEY, entries)


def synced(listed: Sequence[Dated], book: PriceBook, now: datetime = NOW) -> tuple[Dated, ...]:
    return sync_steps(KEY, listed, book, now=now)


def added(book: PriceBook, steps: Sequence[Dated]) -> PriceBook:
    return book_of([*(entry.dated for entry in book.entries), *steps])


def usd_at(book: PriceBook, at: datetime) -> str | None:
    found = book.listed(KEY, at)
    return None if found is None else str(found.rates[0].usd_per_mtok)


def test_the_first_sync_takes_the_list_as_it_is() -> None:
    """Past, present and announced prices, with their windows."""
    listed = [
        dated("4"),
        dated("3", NOW - DAY),
        dated("2", NOW + DAY),
        dated("1", NOW + DAY, NIGHT),
    ]
    assert synced(listed, book_of([])) == tuple(listed)


def test_a_second_sync_finds_nothing_to_do() -> None:
    """Even if the list's source has been renamed."""
    listed = [dated("4"), dated("3", NOW - DAY), dated("1", NOW - DAY, NIGHT)]
    renamed = [
        replace(one, price=one.price and replace(one.price, source="genai-prices 9"))
        for one in listed
    ]
    assert synced(renamed, book_of(listed)) == ()


def test_a_price_that_was_changed_in_place_holds_from_now_on() -> None:
    """Its true date is unknown: an earlier date would change correct charges."""
    assert synced([dated("3")], book_of([dated("4")])) == (dated("3", NOW),)


def test_a_price_with_a_new_beginning_is_dated_from_it() -> None:
    """The list says since when; a month that is still open can be priced again."""
    listed = [dated("4"), dated("3", NOW - 9 * DAY)]
    assert synced(listed, book_of([dated("4")])) == (dated("3", NOW - 9 * DAY),)


def test_an_announced_price_that_changes_before_its_day_is_dated_from_its_day() -> None:
    """It was never charged."""
    listed = [dated("4"), dated("2", NOW + DAY)]
    assert synced(listed, book_of([dated("4"), dated("3", NOW + DAY)])) == (dated("2", NOW + DAY),)


def test_past_and_replaced_prices_are_left_alone() -> None:
    """The list knows history only roughly; those charges were made by the knowledge of their
    time.
    """
    listed = [dated("9"), dated("3", NOW - DAY)]
    assert synced(listed, book_of([dated("4"), dated("3", NOW - DAY)])) == ()


def test_a_beginning_between_two_known_ones_does_not_reach_into_the_later() -> None:
    """Steps are compared with the book as it will be, not as it was."""
    listed = [dated("4"), dated("3", NOW - 9 * DAY), dated("4", NOW - 3 * DAY)]
    steps = synced(listed, book_of([dated("4")]))
    assert steps == (dated("3", NOW - 9 * DAY), dated("4", NOW - 3 * DAY))


def test_a_new_window_brings_the_price_of_its_day_along() -> None:
    """A price of the day that began later than its window would end the window."""
    listed = [dated("4"), dated("2", EVER, NIGHT)]
    assert synced(listed, book_of([dated("4")])) == (dated("4", NOW), dated("2", NOW, NIGHT))
    assert synced([dated("4")], book_of([dated("4"), dated("2", EVER, NIGHT)])) == (
        dated("4", NOW),
    )


def test_a_model_that_the_list_cannot_price_any_more_loses_its_price() -> None:
    """A fee per request came: tokens alone are too little.

    Its requests are refused until an admin says more.
    """
    listed = [dated("4"), dated(None, NOW - DAY)]
    assert synced(listed, book_of([dated("4")])) == (dated(None, NOW - DAY),)
    assert synced([dated(None)], book_of([])) == ()


moments = st.integers(-4, 4).map(lambda days: NOW + days * DAY)
by_day_and_night = st.tuples(st.sampled_from("123"), st.none() | st.sampled_from("123"))


@st.composite
def schedules(draw: st.DrawFn) -> list[Dated]:
    """Yield a list's possible entries for a model: a price since ever, later ones, some with
    another for the night.
    """
    later = sorted(draw(st.dictionaries(moments, by_day_and_night, max_size=4)).items())
    found: list[Dated] = []
    for at, (day, night) in [(EVER, draw(by_day_and_night)), *later]:
        found.append(dated(day, at))
        if night is not None:
            found.append(dated(night, at, NIGHT))
    return found


@given(st.lists(schedules(), min_size=1, max_size=4))
def test_after_any_syncs_the_book_agrees_with_the_last_list(
    lists: list[list[Dated]],
) -> None:
    """Today and on every day to come; syncing again adds nothing; no entry that was there is
    touched.
    """
    book, now = book_of([]), NOW - 2 * DAY
    for listed in lists:
        now += DAY / 2
        before = book.entries
        book = added(book, synced(listed, book, now))
        assert [entry.dated for entry in book.entries[: len(before)]] == [
            entry.dated for entry in before
        ]
        assert synced(listed, book, now) == ()
    last = book_of(lists[-1])
    for hours in range(0, 240, 6):
        at = now + timedelta(hours=hours)
        assert usd_at(book, at) == usd_at(last, at)


def test_an_announcement_that_is_taken_back_does_not_come() -> None:
    """The list named a day and a price, and then did not."""
    assert synced([dated("4")], book_of([dated("4"), dated("9", NOW + DAY)])) == (
        dated("4", NOW + DAY),
    )


def test_the_difference_names_every_rate_that_changes() -> None:
    """An admin approves rates, not entries."""
    old = price("4", "10", cached="0.4")
    new = price("3", "10", reasoning="12")
    book = book_of([Dated(valid_from=EVER, price=old)])
    changes = list(rate_changes(KEY, [Dated(valid_from=NOW, price=new)], book))
    assert [
        (c.rate.kind, c.was and c.was.usd_per_mtok, c.becomes and c.becomes.usd_per_mtok)
        for c in changes
    ] == [
        (TokenKind.INPUT, 4, 3),
        (TokenKind.REASONING, None, 12),
        (TokenKind.CACHED_INPUT, Decimal("0.4"), None),
    ]


def test_the_difference_of_a_window_is_with_that_window() -> None:
    """A night rate that stays is no change, however dear the day."""
    book = book_of([dated("4"), dated("2", EVER, NIGHT)])
    changes = list(rate_changes(KEY, [dated("5", NOW), dated("2", NOW, NIGHT)], book))
    assert [(c.dated.daily, c.was and c.was.usd_per_mtok) for c in changes] == [(None, 4)]
    assert len(list(rate_changes(KEY, [dated("5", NOW)], book_of([])))) == 2


def event(number: int = 1, **changes: object) -> PricedEvent:
    """1,000 tokens in and 100 out, charged at 1 and 4 USD per million: 1,400,000 nano-dollars."""
    values: dict[str, object] = {
        "request_id": UUID(int=REQUEST_ID.int + number),
        "attempt": 1,
        "occurred_at": NOW,
        "team": "payments",
        "cost_centre": "CC-1",
        "deployment": "one",
        "model": "m-1",
        "policy_version": 1,
        "service_tier": None,
        "usage": TokenUsage(input_tokens=1000, output_tokens=100),
        "price_id": price().price_id,
        "cost_nusd": 1_400_000,
        "adjusted_nusd": 0,
        "times": 0,
    }
    return PricedEvent(**values | changes)  # type: ignore[arg-type]


@dataclass
class Books:
    """A ledger that remembers adjustments, and a book with one override."""

    stored: list[PricedEvent]
    month_state: str | None = "open"
    override_price: Price | None = None
    posted: dict[UUID, Adjustment] = field(default_factory=dict)

    def state(self, month: date) -> str | None:
        return self.month_state

    def events(
        self, month: date, *, route: str | None, deployment: str | None
    ) -> Iterator[PricedEvent]:
        for one in self.stored:
            mine = [a for a in self.posted.values() if a.event.request_id == one.request_id]
            yield replace(one, adjusted_nusd=sum(a.amount_nusd for a in mine), times=len(mine))

    def post(self, month: date, adjustments: Iterable[Adjustment], *, author: str) -> int:
        new = {a.adjustment_id: a for a in adjustments if a.adjustment_id not in self.posted}
        self.posted |= new
        return len(new)

    def override(self, deployment: Deployment, *, at: datetime) -> Price | None:
        return self.override_price

    def calibrated(self, deployment: Deployment, *, at: datetime) -> Calibration | None:
        return None

    def has_listed(self, deployment: Deployment) -> bool:
        return False

    def listed(self, deployment: Deployment, *, at: datetime) -> Price | None:
        raise AssertionError("nothing was imported")


def no_list(
    *, provider: str, model: str, base_url: str, region: str = "", at: datetime
) -> Price | None:
    return None


def repricing(books: Books, **policies: Policy) -> Repricing:
    known = {
        1: policy(deployment("one")),
        **{int(name[1:]): made for name, made in policies.items()},
    }
    return Repricing(
        ledger=books, policy_of=known.get, book_of=lambda _: books, builtin=no_list, month=MONTH
    )


def test_a_difference_is_posted_once_and_a_way_back_too() -> None:
    """Running it twice adds nothing; when the price is fixed again, the sum of all adjustments is
    zero.
    """
    books = Books([event(1), event(2)], override_price=price("2", "4", source="contract"))
    asked = repricing(books)
    (found,), kept = asked.differences()
    assert (found.team, found.model, found.events, found.was_nusd, found.becomes_nusd) == (
        "payments",
        "m-1",
        2,
        2_800_000,
        4_800_000,
    )
    assert kept == {}
    first = list(asked.adjustments())
    assert (books.post(MONTH, first, author="ada"), books.post(MONTH, first, author="eve")) == (
        2,
        0,
    )
    assert [a.amount_nusd for a in books.posted.values()] == [1_000_000, 1_000_000]
    assert (
        first[0].reason
        == f"repriced from {price().price_id} to {books.override_price.price_id} (contract)"
    )
    assert repricing(books).differences() == ([], {"same cost": 2})
    books.override_price = price()
    assert books.post(MONTH, repricing(books).adjustments(), author="ada") == 2
    assert sum(a.amount_nusd for a in books.posted.values()) == 0


FLEX = replace(
    price("2", "8"),
    rates=(
        *price("2", "8").rates,
        *(replace(rate, service_tier="flex") for rate in price("1", "4").rates),
    ),
)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"cost_nusd": None}, "unknown usage"),
        ({"is_corrected": True}, "corrected otherwise"),
        ({"policy_version": 9}, "no price at their time"),
        ({"deployment": "gone"}, "no price at their time"),
        ({"service_tier": "scale"}, "not covered by the price at their time"),
        (
            {"usage": TokenUsage(input_tokens=1, output_tokens=1, web_search_calls=1)},
            "not covered by the price at their time",
        ),
        ({"service_tier": "flex"}, "same cost"),
    ],
)
def test_an_event_that_cannot_be_priced_again_keeps_its_cost(
    changes: dict[str, object], why: str
) -> None:
    """And the operator hears how many there are, and why."""
    asked = repricing(Books([event(**changes)], override_price=FLEX))
    assert asked.differences() == ([], {why: 1})
    assert list(asked.adjustments()) == []


def test_writes_at_the_provider_s_stated_rate_keep_it() -> None:
    """They were charged above plain input, so a run without a new price changes nothing."""
    usage = TokenUsage(input_tokens=1000, cache_write_tokens=800, output_tokens=0)
    one = event(usage=usage, cost_nusd=1_200_000, has_stated_writes=True)
    same = Books([one], override_price=price())
    assert repricing(same).differences() == ([], {"same cost": 1})
    listed = Books([one], override_price=price(cache_write="1"))
    ((found,), _) = repricing(listed).differences()
    assert found.becomes_nusd == 1_000_000


def test_the_price_is_that_of_the_events_own_policy_and_moment() -> None:
    """An event of version 2, whose policy declared a price, is not charged by today's contract."""
    declared = policy(deployment("one", price=price("7", "4")))
    books = Books([event(1), event(2, policy_version=2)], override_price=price("2"))
    amounts = [a.amount_nusd for a in repricing(books, v2=declared).adjustments()]
    assert amounts == [1_000_000, 6_000_000]


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        (None, NothingFound, "nothing in 2026-11"),
        ("closed", OperatorError, "is closed"),
        ("open", None, ""),
    ],
)
def test_only_an_open_month_is_priced_again(
    state: str | None, error: type[Exception] | None, message: str
) -> None:
    """A closed one never changes."""
    asked = repricing(Books([], month_state=state))
    if error is None:
        asked.require_open()
        return
    with pytest.raises(error, match=message):
        asked.require_open()


def test_an_event_is_priced_again_at_the_place_that_its_answer_stated() -> None:
    """After an upgrade an open month can be corrected: a tenth more for the United States alone."""
    there = replace(price("1.1", "4.4"), factor=Decimal("1.1"), is_estimated=False)
    whole = replace(price(), elsewhere=(("us", there),))
    books = Books([event(), event(2, stated_geo="us")], override_price=whole)
    (difference,), kept = repricing(books, v1=policy()).differences()
    assert (difference.events, difference.becomes_nusd - difference.was_nusd) == (1, 140_000)
    assert kept == {"same cost": 1}
