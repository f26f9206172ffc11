"""The causes of a difference: they add up to it, whatever the bill."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.policy.policy import Billing
from gateway.domain.reconciliation.bills import (
    AccountDay,
    BilledLine,
    BilledTo,
    BillFileKind,
    bill_of,
    is_same_model,
)
from gateway.domain.reconciliation.causes import reconciled
from gateway.domain.reconciliation.metered import (
    MeteredAt,
    MeteredSum,
    MeteredUsage,
    OddAttempts,
    OverMidnight,
    Owner,
)
from gateway.domain.reconciliation.statement import Cause, ReconciledRow, totals_of

FIRST = date(2026, 10, 1)
DAYS = [FIRST + timedelta(days=n) for n in range(4)]
MINI, LARGE = MeteredAt("mini-us", "mini"), MeteredAt("large-eu", "large")
PAYMENTS, SEARCH = Owner("payments", "CC-1"), Owner("search", "CC-2")
RATE = 2500  # nano-dollars a token
BILLING = {"mini-us": Billing(account="org", key="own")}


def metered(day: date, quantity: int = 1000, **changes: Any) -> MeteredSum:
    """Return the output of one day and team."""
    fields: dict[str, Any] = {
        "day": day,
        "at": MINI,
        "token_kind": "output",
        "owner": PAYMENTS,
        "quantity": quantity,
        "cost_nusd": quantity * RATE,
        "rates": frozenset({Decimal("2.5")}),
        "lines": 3,
    }
    return MeteredSum(**fields | changes)


def billed(day: date, quantity: int | None = 1000, **changes: Any) -> BilledLine:
    """Return a line of the bill of the same."""
    fields: dict[str, Any] = {
        "number": 1,
        "kind": BillFileKind.CSV,
        "day": day,
        "billed_to": BilledTo("org", None, "own", "mini"),
        "token_kind": "output",
        "quantity": None if quantity is None else Decimal(quantity),
        "amount_nusd": None if quantity is None else quantity * RATE,
        "slack_nusd": 1,
    }
    return BilledLine(**fields | changes)


def rows_of(lines: list[BilledLine], usage: list[MeteredSum], **facts: Any) -> list[ReconciledRow]:
    """Return the rows of four days."""
    days: dict[BillFileKind, set[AccountDay]] = {}
    for line in lines:
        days.setdefault(line.kind, set()).add(line.at)
    covered = {AccountDay(line.billed_to.account, day) for line in lines for day in DAYS}
    given_facts: dict[str, Any] = {"odd": [], "over_midnight": [], "billing": BILLING}
    return reconciled(
        bill_of(lines, days, covered),
        MeteredUsage(sums=usage, **given_facts | facts),
        first=DAYS[0],
        last=DAYS[-1],
    )


def named(rows: list[ReconciledRow]) -> list[tuple[str, int]]:
    """Return the causes with their differences, without agreement."""
    return [
        (row.cause.value, row.difference_nusd)
        for row in rows
        if row.cause is not Cause.NONE or row.difference_nusd
    ]


def test_a_day_that_agrees_is_one_row() -> None:
    (row,) = rows_of([billed(FIRST)], [metered(FIRST)])
    assert (row.cause, row.difference_nusd, row.is_matched) == (Cause.NONE, 0, True)
    assert totals_of([row]).coverage_share == 1
    assert totals_of([]).coverage_share is None


def test_tokens_of_no_cause_are_a_difference_in_quantity() -> None:
    """Both ways."""
    assert named(rows_of([billed(FIRST, 1040)], [metered(FIRST)])) == [("quantity", 40 * RATE)]
    assert named(rows_of([billed(FIRST, 900)], [metered(FIRST)])) == [("quantity", -100 * RATE)]
    assert named(rows_of([billed(FIRST, 0, slack_nusd=0)], [metered(FIRST)])) == [
        ("quantity", -1000 * RATE)
    ]


def test_tokens_of_an_attempt_that_did_not_end_well_are_aborted() -> None:
    """The difference goes to the attempts' team."""
    odd = OddAttempts(day=FIRST, at=MINI, owner=SEARCH, attempts=1, request_ids=(UUID(int=7),))
    (_, row) = rows_of([billed(FIRST, 1040)], [metered(FIRST)], odd=[odd])
    assert (row.cause, row.owners) == (Cause.ABORTED, {SEARCH: 40 * RATE})
    assert str(UUID(int=7)) in row.evidence


def test_costs_alone_explain_less() -> None:
    """Without quantities a difference may be any: only the printed digits and aborted attempts
    are named.
    """
    dear = billed(FIRST, None, amount_nusd=1000 * RATE + 9)
    (row,) = rows_of([dear], [metered(FIRST)])
    assert (row.is_unexplained, row.difference_nusd) == (True, 9)
    assert "usage export" in row.evidence
    assert totals_of([row]).unexplained_nusd == 9
    odd = OddAttempts(day=FIRST, at=MINI, owner=SEARCH, attempts=1, request_ids=())
    assert named(rows_of([dear], [metered(FIRST)], odd=[odd])) == [("aborted", 9)]
    rounded = billed(FIRST, None, amount_nusd=1000 * RATE + 9, slack_nusd=9)
    assert named(rows_of([rounded], [metered(FIRST)])) == [("rounding", 9)]


def test_an_amount_within_the_digits_is_a_price_if_other_days_show_it() -> None:
    """Four days at a rate of 4 % more, the last one so small that a cent hides it."""
    usage = [metered(day) for day in DAYS[:3]] + [metered(DAYS[3], 10)]
    lines = [billed(day, amount_nusd=1000 * 2600) for day in DAYS[:3]]
    lines.append(billed(DAYS[3], 10, amount_nusd=10 * 2600, slack_nusd=5_000_000))
    assert {cause for cause, _ in named(rows_of(lines, usage))} == {"price"}
    alone = [billed(DAYS[3], 10, amount_nusd=10 * 2600, slack_nusd=5_000_000)]
    assert named(rows_of(alone, usage[3:])) == [("rounding", 1000)]


def test_the_meters_own_rounding_is_no_difference_in_price() -> None:
    """A token of 37.5 nano-dollars: each line of the ledger was rounded."""
    usage = metered(FIRST, 1000, cost_nusd=37_501, rates=frozenset({Decimal("0.0375")}), lines=3)
    assert named(rows_of([billed(FIRST, 1000, amount_nusd=37_500)], [usage])) == [("rounding", -1)]


def test_money_without_tokens_stays_unexplained() -> None:
    lines = [billed(FIRST, 0, amount_nusd=5)]
    (row,) = rows_of(lines, [metered(FIRST, 0)])
    assert row.is_unexplained
    assert "No tokens" in row.evidence


def test_lines_that_are_of_no_deployment() -> None:
    """Another key is unmetered; another model, account or kind of token is unmapped."""
    lines = [
        billed(FIRST),
        billed(FIRST, 1, billed_to=BilledTo("org", None, "laptop", "mini")),
        billed(FIRST, 2, billed_to=BilledTo("org", None, "own", "other")),
        billed(FIRST, 3, billed_to=BilledTo("elsewhere", None, "own", "mini")),
        billed(FIRST, 4, token_kind="pages"),
        billed(FIRST, 5, billed_to=BilledTo("org", None, "own", ""), token_kind="", text="Seats"),
    ]
    assert sorted(named(rows_of(lines, [metered(FIRST)]))) == [
        ("fee", 5 * RATE),
        ("unmapped", 2 * RATE),
        ("unmapped", 3 * RATE),
        ("unmapped", 4 * RATE),
        ("unmetered", 1 * RATE),
    ]


def test_a_key_that_the_usage_does_not_name() -> None:
    """The costs name keys, the usage adds them up: the money says how much passed the gateway."""
    usage_to = BilledTo("org", None, None, "mini")
    lines = [
        billed(FIRST, 1100, amount_nusd=None, kind=BillFileKind.OPENAI_USAGE, billed_to=usage_to),
        billed(FIRST, None, amount_nusd=1000 * RATE, kind=BillFileKind.OPENAI_COSTS),
        billed(
            FIRST,
            None,
            amount_nusd=100 * RATE,
            kind=BillFileKind.OPENAI_COSTS,
            billed_to=BilledTo("org", None, "laptop", "mini"),
        ),
    ]
    assert named(rows_of(lines, [metered(FIRST)])) == [("unmetered", 100 * RATE)]


def past_the_gateway(day: date, *, own: int | None = None) -> list[BilledLine]:
    """Return a day of another key: the usage names it, the costs name no key."""
    usage, costs = BillFileKind.OPENAI_USAGE, BillFileKind.OPENAI_COSTS
    laptop, no_key = BilledTo("org", None, "laptop", "mini"), BilledTo("org", None, None, "mini")
    lines = [
        billed(day, 100, amount_nusd=None, kind=usage, billed_to=laptop),
        billed(day, None, amount_nusd=(100 + (own or 0)) * RATE, kind=costs, billed_to=no_key),
    ]
    return lines if own is None else [billed(day, own, amount_nusd=None, kind=usage), *lines]


@pytest.mark.parametrize("own", [None, 0])
def test_a_day_of_another_key_alone_is_unmetered_with_its_money(own: int | None) -> None:
    """Its tokens were unmetered at 0 USD, and its money was unexplained."""
    second = past_the_gateway(DAYS[1], own=own)
    rows = rows_of([*past_the_gateway(FIRST, own=1000), *second], [metered(FIRST)])
    assert named(rows) == [("unmetered", 100 * RATE), ("unmetered", 100 * RATE)]
    (row,) = [row for row in rows if row.key.day == DAYS[1] and row.cause is Cause.UNMETERED]
    assert (row.billed_quantity, row.billed_nusd) == (100, 100 * RATE)
    assert totals_of(rows).unexplained_nusd == 0


def test_other_keys_are_unmetered_in_a_month_without_usage_of_its_own() -> None:
    """The policy states the account and the model: nothing about the line is unmapped."""
    lines = past_the_gateway(FIRST)
    assert named(rows_of(lines, [], stated=[MINI])) == [("unmetered", 100 * RATE)]
    assert {cause for cause, _ in named(rows_of(lines, []))} == {"unmapped"}


def test_reasoning_is_output_on_a_bill_that_does_not_tell() -> None:
    usage = [metered(FIRST, 900), metered(FIRST, 100, token_kind="reasoning")]
    (row,) = rows_of([billed(FIRST)], usage)
    assert (row.key.token_kind, row.difference_nusd) == ("output", 0)


def test_costs_of_unknown_usage_are_on_the_bill_as_tokens() -> None:
    """An expected cost was booked; the bill has the tokens."""
    odd = OddAttempts(day=FIRST, at=MINI, owner=PAYMENTS, attempts=1, request_ids=())
    usage = [metered(FIRST), metered(FIRST, 0, token_kind="", cost_nusd=7, rates=frozenset())]
    rows = rows_of([billed(FIRST, 1010)], usage, odd=[odd])
    assert named(rows) == [("aborted", -7), ("aborted", 10 * RATE)]


def test_several_rates_of_one_day() -> None:
    """The rate that explains the amounts is taken."""
    usage = [
        metered(FIRST),
        metered(FIRST, 500, cost_nusd=500 * 5000, rates=frozenset({Decimal(5)})),
    ]
    line = billed(FIRST, 1600, amount_nusd=1000 * RATE + 600 * 5000)
    assert named(rows_of([line], usage)) == [("quantity", 100 * 5000)]


def test_models_match_with_a_date_behind_them() -> None:
    assert is_same_model("gpt-5.5-2026-08-01", "gpt-5.5")
    assert is_same_model("claude-x", "claude-x-20260801")
    assert not is_same_model("gpt-5.5-2026-08-01", "gpt-5.5-2026-03-01")
    assert not is_same_model("gpt-5.5-mini", "gpt-5.5")


QUANTITY = st.integers(0, 5000)
LINES = st.lists(
    st.builds(
        billed,
        st.sampled_from(DAYS),
        st.one_of(st.none(), QUANTITY),
        amount_nusd=st.one_of(st.none(), st.integers(-(10**7), 10**8)),
        slack_nusd=st.sampled_from([0, 1, 5000, 5_000_000]),
        kind=st.sampled_from(
            [BillFileKind.CSV, BillFileKind.OPENAI_USAGE, BillFileKind.OPENAI_COSTS]
        ),
        token_kind=st.sampled_from(["output", "input", "pages", "web_search", ""]),
        billed_to=st.builds(
            BilledTo,
            st.sampled_from(["org", "elsewhere"]),
            st.sampled_from([None, "", "p"]),
            st.sampled_from([None, "", "own", "laptop"]),
            st.sampled_from(["mini", "mini-2026-01-01", "large", "other", ""]),
        ),
    ),
    max_size=14,
)
USAGE = st.lists(
    st.builds(
        metered,
        st.sampled_from(DAYS),
        QUANTITY,
        at=st.sampled_from([MINI, LARGE]),
        token_kind=st.sampled_from(["output", "input", "reasoning", ""]),
        owner=st.sampled_from([PAYMENTS, SEARCH]),
        cost_nusd=st.integers(0, 10**8),
        rates=st.sets(st.sampled_from([Decimal("2.5"), Decimal("0.0375")])).map(frozenset),
    ),
    max_size=10,
)
ODD = st.lists(
    st.builds(
        OddAttempts,
        day=st.sampled_from(DAYS),
        at=st.sampled_from([MINI, LARGE]),
        owner=st.sampled_from([PAYMENTS, SEARCH]),
        attempts=st.integers(1, 3),
        request_ids=st.just(()),
    ),
    max_size=3,
)
OVER = st.lists(
    st.builds(
        OverMidnight,
        day=st.sampled_from(DAYS),
        at=st.just(MINI),
        request_id=st.just(UUID(int=1)),
        lines=st.dictionaries(
            st.sampled_from(["output", "reasoning"]), st.tuples(QUANTITY, st.integers(0, 10**7))
        ),
    ),
    max_size=3,
)


@settings(max_examples=150, deadline=None)
@given(LINES, USAGE, ODD, OVER)
def test_no_cent_is_dropped_and_none_is_invented(
    lines: list[BilledLine],
    usage: list[MeteredSum],
    odd: list[OddAttempts],
    over: list[OverMidnight],
) -> None:
    """Both sides of the rows add up to the bill that counts and to the metered usage; teams' parts
    add up to at most their row; timing sums to 0.
    """
    known = {one.at for one in usage}
    over = [
        one
        for one in over
        if all(
            any(s.at == one.at and s.token_kind == kind for s in usage)
            for kind in ("output", "reasoning")
        )
    ]
    odd = [one for one in odd if one.at in known]
    rows = rows_of(lines, usage, odd=odd, over_midnight=over)
    days: dict[BillFileKind, set[AccountDay]] = {}
    for line in lines:
        days.setdefault(line.kind, set()).add(line.at)
    counted = bill_of(lines, days, ())
    assert sum(row.billed_nusd for row in rows) == sum(
        line.amount_nusd or 0 for line in counted.money
    )
    assert sum(row.metered_nusd for row in rows) == sum(one.cost_nusd for one in usage)
    assert sum(row.difference_nusd for row in rows if row.cause is Cause.TIMING) == 0
    for row in rows:
        assert sum((row.owners or {}).values()) in (0, row.difference_nusd)
    for row in rows:
        if row.cause is Cause.NONE and row.difference_nusd == 0:
            assert row.billed_quantity in (None, row.metered_quantity)


def test_a_shortage_that_the_next_day_has_over_is_timing() -> None:
    """Two rows that sum to 0; nothing of it is a difference in quantity."""
    rows = rows_of([billed(FIRST, 900), billed(DAYS[1], 1100)], [metered(FIRST), metered(DAYS[1])])
    assert named(rows) == [("timing", -100 * RATE), ("timing", 100 * RATE)]


def test_tokens_that_are_given_back_are_no_timing_without_a_rate() -> None:
    """The next day has as many more, but nothing says what they cost."""
    rows = rows_of([billed(FIRST, -100), billed(DAYS[1], 1100)], [metered(DAYS[1])])
    assert named(rows) == [("quantity", -100 * RATE), ("quantity", 100 * RATE)]


def test_a_price_for_what_was_free_hides_no_rounding() -> None:
    """No rate can be compared with one of 0."""
    free = {"cost_nusd": 0, "rates": frozenset({Decimal(0)})}
    lines = [billed(FIRST, amount_nusd=1000), billed(DAYS[1], 10, amount_nusd=10, slack_nusd=900)]
    usage = [metered(FIRST, **free), metered(DAYS[1], 10, **free)]
    assert named(rows_of(lines, usage)) == [("price", 1000), ("rounding", 10)]


@pytest.mark.parametrize(
    ("billed_nusd", "words"),
    [
        (1000 * RATE * 11 // 10, "That is the premium of 1.1 for a regional host (page); it was"),
        (1000 * RATE * 10 // 11, "The premium of 1.1 for a regional host (page) was metered and"),
        (1000 * RATE * 12 // 10, "metered at"),
    ],
)
def test_a_missing_premium_is_named_with_its_place(billed_nusd: int, words: str) -> None:
    """A bill that is a tenth higher in one region is no riddle."""
    (row,) = rows_of(
        [billed(FIRST, amount_nusd=billed_nusd)],
        [metered(FIRST)],
        premiums={Decimal("1.1"): "a regional host (page)"},
    )
    assert (row.cause, row.difference_nusd) == (Cause.PRICE, billed_nusd - 1000 * RATE)
    assert words in row.evidence
    assert ("premium" in row.evidence) is ("premium" in words)
