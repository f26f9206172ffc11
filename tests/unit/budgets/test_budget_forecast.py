"""Forecasts at the present rate, and the names of a budget: the results and the cases without
one.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.budgets.budgets import EPOCH, BudgetPeriod, PeriodSpan, period_at
from gateway.domain.budgets.forecast import forecast_nusd, rate_since
from gateway.domain.budgets.names import NamedBudget, find_budget
from gateway.errors import BadUsage, NothingFound

NOVEMBER = PeriodSpan(datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC))
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
BEGIN = NOVEMBER.starts_at
TICK = timedelta(microseconds=1)


def team(name: str, team: str, period: str) -> NamedBudget:
    return NamedBudget(account_id=name, scope="team", team=team, period=period)


@pytest.mark.parametrize(
    ("now", "since"),
    [
        (BEGIN - TICK, None),  # it has not begun
        (BEGIN, None),
        (BEGIN + HOUR - TICK, None),  # the first request of a month is no rate
        (BEGIN + HOUR, BEGIN),
        (BEGIN + DAY - TICK, BEGIN),
        (BEGIN + DAY, BEGIN),
        (BEGIN + 7 * DAY, BEGIN),
        (BEGIN + 7 * DAY + TICK, BEGIN + DAY),  # a week back, from the midnight after
        (BEGIN + 20 * DAY + 12 * HOUR, BEGIN + 14 * DAY),
        (datetime(2026, 12, 1, tzinfo=UTC) - TICK, datetime(2026, 11, 24, tzinfo=UTC)),
        (datetime(2026, 12, 1, tzinfo=UTC), None),  # it is over
    ],
)
def test_the_present_rate_is_of_the_last_days(now: datetime, since: datetime | None) -> None:
    """Young periods use all their data, older ones a week; too early there is no rate."""
    assert rate_since(NOVEMBER, now) == since


def test_a_period_that_begins_between_midnights_has_the_rate_of_all_of_it_at_first() -> None:
    """In Berlin a month begins at 23:00 UTC: an hour before midnight is not one more day."""
    begin = datetime(2026, 10, 31, 23, tzinfo=UTC)
    berlin = PeriodSpan(begin, datetime(2026, 11, 30, 23, tzinfo=UTC))
    assert rate_since(berlin, begin + DAY) == begin
    assert rate_since(berlin, begin + DAY + HOUR) == begin + HOUR


def test_a_short_period_needs_a_twentieth_of_it() -> None:
    """An hour of patience would be all of a budget by the hour."""
    hour = PeriodSpan(BEGIN, BEGIN + HOUR)
    assert rate_since(hour, BEGIN + timedelta(minutes=3) - TICK) is None
    assert rate_since(hour, BEGIN + timedelta(minutes=3)) == BEGIN


def test_a_budget_for_once_has_no_forecast() -> None:
    """It has no end to look forward to."""
    assert rate_since(PeriodSpan(EPOCH, None), BEGIN) is None
    with pytest.raises(AssertionError):
        forecast_nusd(PeriodSpan(EPOCH, None), BEGIN, spent_nusd=1, since=EPOCH, recent_nusd=1)


@pytest.mark.parametrize(
    ("spent", "recent", "expected"),
    [
        (0, 0, 0),
        (700, 700, 1400),  # ten days of thirty, three and a half of them a day
        (1, 2, 3),  # rounded down
        (500, -70, 500),  # corrections are no rate
        (-500, 700, 200),
        (9 * 10**18, 9 * 10**18, 18 * 10**18),  # more than 64 bits, and more than a timedelta
    ],
)
def test_a_forecast_is_spent_and_the_rest_at_the_present_rate(
    spent: int, recent: int, expected: int
) -> None:
    """The arithmetic of the guide, in whole nano-dollars."""
    now, since = datetime(2026, 11, 24, tzinfo=UTC), datetime(2026, 11, 17, tzinfo=UTC)
    assert (
        forecast_nusd(NOVEMBER, now, spent_nusd=spent, since=since, recent_nusd=recent) == expected
    )


@given(
    st.sampled_from([BudgetPeriod.HOUR, BudgetPeriod.DAY, BudgetPeriod.WEEK, BudgetPeriod.MONTH]),
    st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kathmandu", "America/Havana"]),
    st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC)),
    st.integers(0, 10**18),
)
def test_a_forecast_never_looks_outside_of_its_period(
    period: BudgetPeriod, zone: str, now: datetime, nusd: int
) -> None:
    """The rate is of this period and of a week at most; steady spending gives the linear result."""
    span = period_at(period, zone, now)
    since = rate_since(span, now)
    assert span.ends_at is not None
    if since is None:
        assert now - span.starts_at < HOUR
        return
    assert max(span.starts_at, now - 7 * DAY) <= since < now
    assert since == span.starts_at or now - since >= DAY
    assert forecast_nusd(span, now, spent_nusd=nusd, since=since, recent_nusd=nusd) >= nusd
    elapsed, whole = (now - span.starts_at) // TICK, (span.ends_at - span.starts_at) // TICK
    recent = (now - since) // TICK
    assert forecast_nusd(span, now, spent_nusd=elapsed, since=since, recent_nusd=recent) == whole


BUDGETS = [
    team("payments/month", "payments", "month"),
    team("payments/day", "payments", "day"),
    team("pilot", "search", "once"),
    NamedBudget(
        account_id="search/month", scope=None, team=None, period=None
    ),  # not declared any more
    NamedBudget(account_id="ops/project:x/week", scope="project", team="ops", period="week"),
    team("night", "batch", "day"),
    team("day", "batch", "day"),
]


@pytest.mark.parametrize(
    ("wanted", "account"),
    [
        ("payments/month", "payments/month"),
        ("search", "pilot"),
        ("search/once", "pilot"),
        ("search/month", "search/month"),
        ("ops/project:x/week", "ops/project:x/week"),
    ],
)
def test_a_name_means_an_account_or_the_only_one_it_can_mean(wanted: str, account: str) -> None:
    """A team with one budget needs no further qualification."""
    assert find_budget(wanted, BUDGETS) == account


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("payments", "payments/day, payments/month"),
        ("batch/day", "day, night"),
        ("batch", "day, night"),
    ],
)
def test_an_ambiguous_name_matches_no_budget(wanted: str, words: str) -> None:
    """Not the first of them: that would be somebody else's money."""
    with pytest.raises(BadUsage, match=words):
        find_budget(wanted, BUDGETS)


def test_an_unknown_name_lists_similar_names() -> None:
    """A typo is fixed from the message; a project's budget is not guessed from its team."""
    with pytest.raises(NothingFound, match="Near: payments/month"):
        find_budget("payment/month", BUDGETS)
    with pytest.raises(NothingFound, match=r"No budget 'ops'\. tollgate budget list"):
        find_budget("ops", BUDGETS)
