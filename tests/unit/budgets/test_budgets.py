"""Budgets and limits: every moment belongs to one period, and every request to the right
accounts.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.domain.budgets.budgets import (
    EACH,
    EPOCH,
    Account,
    BudgetKind,
    BudgetPeriod,
    BudgetRule,
    BudgetScope,
    PeriodSpan,
    accounts_of,
    period_at,
    rule_id,
    slice_nusd,
)
from gateway.domain.budgets.limits import NO_LIMITS, Limits
from gateway.domain.policy.policy import CostCentre, DataClass, Policy, Team

TICK = timedelta(microseconds=1)
MINUTE = timedelta(minutes=1)
RETURNING = [BudgetPeriod.HOUR, BudgetPeriod.DAY, BudgetPeriod.WEEK, BudgetPeriod.MONTH]

# Zones with unusual clocks: midnight skipped (Havana, Cairo, Beirut, Asuncion), twice there
# (Havana, Azores), set back over (St John's at 00:01, Casey by three hours), a day left out (Apia,
# Kwajalein) or lived twice (Juneau), half and quarter hours (Lord Howe, Kathmandu, Chatham),
# midnight inside a skip (Toronto in 1919), an hour offset in seconds (Monrovia).
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Havana",
    "Africa/Cairo",
    "Asia/Beirut",
    "America/Asuncion",
    "Atlantic/Azores",
    "America/St_Johns",
    "Antarctica/Casey",
    "Pacific/Apia",
    "Pacific/Kwajalein",
    "America/Juneau",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "Pacific/Chatham",
    "America/Toronto",
    "Africa/Monrovia",
    "America/Nuuk",
    "Asia/Pyongyang",
    "Asia/Kolkata",
    "Africa/Casablanca",
    "Pacific/Kiritimati",
    "America/Sao_Paulo",
]

# Days around a change of the clock, with the zone. Their midnights are checked against a clock read
# minute by minute.
TURNS = [
    ("UTC", date(2024, 2, 28)),
    ("Europe/Berlin", date(2026, 3, 28)),
    ("Europe/Berlin", date(2026, 10, 24)),
    ("America/Havana", date(2026, 3, 7)),
    ("America/Havana", date(2026, 10, 31)),
    ("Africa/Cairo", date(2026, 4, 23)),
    ("Africa/Cairo", date(2026, 10, 29)),
    ("Asia/Beirut", date(2026, 3, 28)),
    ("Atlantic/Azores", date(2026, 10, 24)),
    ("America/St_Johns", date(2005, 10, 29)),
    ("America/St_Johns", date(2005, 4, 2)),
    ("Antarctica/Casey", date(2010, 3, 4)),
    ("Pacific/Apia", date(2011, 12, 29)),
    ("Pacific/Kwajalein", date(1993, 8, 20)),
    ("Australia/Lord_Howe", date(2026, 4, 4)),
    ("Australia/Lord_Howe", date(2026, 10, 3)),
    ("Asia/Kathmandu", date(1985, 12, 31)),
    ("America/Toronto", date(1919, 3, 30)),
    ("America/Nuuk", date(2026, 10, 24)),
    ("Asia/Pyongyang", date(2015, 8, 14)),
    ("America/Sao_Paulo", date(2018, 11, 3)),
]

KEYS_OF_PERIODS: dict[BudgetPeriod, Callable[[date], tuple[int, ...]]] = {
    BudgetPeriod.DAY: lambda day: (day.toordinal(),),
    BudgetPeriod.WEEK: lambda day: tuple(day.isocalendar())[:2],
    BudgetPeriod.MONTH: lambda day: (day.year, day.month),
}

moments = st.datetimes(datetime(1905, 1, 1), datetime(2037, 12, 1), timezones=st.just(UTC))
zones = st.sampled_from(ZONES)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def midnights(time_zone: str, day: date) -> dict[date, datetime]:
    """When each day around `day` begins: the first minute in which a clock on the wall shows it, or
    a later one.
    """
    zone = ZoneInfo(time_zone)
    now = datetime(day.year, day.month, day.day, tzinfo=UTC) - timedelta(days=3)
    shown = now.astimezone(zone).date()
    found: dict[date, datetime] = {}
    for _ in range(7 * 24 * 60):
        now += MINUTE
        today = now.astimezone(zone).date()
        while shown < today:
            shown += timedelta(days=1)
            found[shown] = now
    return found


def rule(
    scope: BudgetScope = BudgetScope.TEAM, owner: str = "payments", **others: object
) -> BudgetRule:
    period = BudgetPeriod.MONTH
    of_team = None if scope is BudgetScope.COST_CENTRE else "payments"
    fields: dict[str, object] = {
        "rule_id": rule_id(scope, team=of_team, owner=owner, period=period),
        "scope": scope,
        "team": of_team,
        "owner": owner,
        "period": period,
        "limit_nusd": 100,
        **others,
    }
    return BudgetRule(**fields)  # type: ignore[arg-type]  # the test decides about missing and overridden fields


def names(
    *rules: BudgetRule, project: str | None = "checkout", cost_centre: tuple[BudgetRule, ...] = ()
) -> list[str]:
    found = accounts_of(rules, cost_centre=cost_centre, project=project, key_id="0A1b2C3d4E")
    return [account.account_id for account in found]


@given(st.sampled_from(RETURNING), zones, moments)
@example(BudgetPeriod.DAY, "America/St_Johns", at("2005-10-30T02:45:00"))
@example(BudgetPeriod.DAY, "America/Toronto", at("1919-03-31T04:45:00"))
@example(BudgetPeriod.DAY, "Pacific/Apia", at("2011-12-30T10:00:00"))
@example(BudgetPeriod.DAY, "Pacific/Apia", at("2011-12-30T09:59:59.999999"))
@example(BudgetPeriod.MONTH, "Antarctica/Casey", at("2010-02-28T19:30:00"))
@example(BudgetPeriod.HOUR, "Australia/Lord_Howe", at("2026-04-04T14:45:00"))
@example(BudgetPeriod.HOUR, "Australia/Lord_Howe", at("2026-04-04T15:15:00"))
@example(BudgetPeriod.HOUR, "Australia/Lord_Howe", at("2026-10-03T15:30:00.5"))
@example(BudgetPeriod.HOUR, "America/St_Johns", at("2005-10-30T02:31:00"))
def test_every_moment_belongs_to_exactly_one_period(
    period: BudgetPeriod, time_zone: str, moment: datetime
) -> None:
    """In two it would be counted twice, in none it would be free: periods follow each other without
    gap or overlap.
    """
    span = period_at(period, time_zone, moment)
    assert span.ends_at is not None
    assert span.starts_at <= moment < span.ends_at
    for inside in (span.starts_at, span.ends_at - TICK):
        assert period_at(period, time_zone, inside) == span
    assert period_at(period, time_zone, span.ends_at).starts_at == span.ends_at
    assert period_at(period, time_zone, span.starts_at - TICK).ends_at == span.starts_at
    assert span.starts_at.utcoffset() == span.ends_at.utcoffset() == timedelta()


@given(st.sampled_from(RETURNING), zones, moments, st.floats(0, 1, exclude_max=True))
def test_all_moments_of_a_period_agree_on_it(
    period: BudgetPeriod, time_zone: str, moment: datetime, share: float
) -> None:
    """Each replica works it out for itself, from another moment."""
    span = period_at(period, time_zone, moment)
    assert span.ends_at is not None
    inside = span.starts_at + timedelta(
        seconds=int((span.ends_at - span.starts_at).total_seconds() * share)
    )
    assert period_at(period, time_zone, inside) == span


@pytest.mark.parametrize(("time_zone", "day"), TURNS)
@pytest.mark.parametrize("period", list(KEYS_OF_PERIODS))
def test_periods_begin_when_the_clock_on_the_wall_says_so(
    period: BudgetPeriod, time_zone: str, day: date
) -> None:
    """People read a budget by their own clock, on the night when it is changed too."""
    key_of = KEYS_OF_PERIODS[period]
    opens, closes = (
        datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=n) for n in (-2, 2)
    )
    begun = {
        at
        for found, at in midnights(time_zone, day).items()
        if key_of(found) != key_of(_before(found))
    }
    moments = (opens + 10 * MINUTE * n for n in range(4 * 24 * 6))
    starts = {period_at(period, time_zone, moment).starts_at for moment in moments}
    assert {start for start in starts if start > opens} == {
        start for start in begun if opens < start < closes
    }


def _before(day: date) -> date:
    return day - timedelta(days=1)


@pytest.mark.parametrize(
    ("period", "time_zone", "moment", "starts", "ends"),
    [
        (BudgetPeriod.HOUR, "UTC", "2026-11-22T05:30:01", "2026-11-22T05:00", "2026-11-22T06:00"),
        (
            BudgetPeriod.HOUR,
            "Asia/Kathmandu",
            "2026-11-22T05:30",
            "2026-11-22T05:15",
            "2026-11-22T06:15",
        ),
        # The hour from 2 to 3 is there twice in Berlin that night; each is an hour of its own.
        (
            BudgetPeriod.HOUR,
            "Europe/Berlin",
            "2026-10-25T00:30",
            "2026-10-25T00:00",
            "2026-10-25T01:00",
        ),
        (
            BudgetPeriod.HOUR,
            "Europe/Berlin",
            "2026-10-25T01:30",
            "2026-10-25T01:00",
            "2026-10-25T02:00",
        ),
        # Lord Howe sets its clocks from 2:00 back to 1:30: half an hour that ends as usual.
        (
            BudgetPeriod.HOUR,
            "Australia/Lord_Howe",
            "2026-04-04T15:10",
            "2026-04-04T15:00",
            "2026-04-04T15:30",
        ),
        (
            BudgetPeriod.DAY,
            "Europe/Berlin",
            "2026-03-29T12:00",
            "2026-03-28T23:00",
            "2026-03-29T22:00",
        ),
        (
            BudgetPeriod.DAY,
            "Europe/Berlin",
            "2026-10-25T12:00",
            "2026-10-24T22:00",
            "2026-10-25T23:00",
        ),
        (
            BudgetPeriod.DAY,
            "America/Havana",
            "2026-03-08T12:00",
            "2026-03-08T05:00",
            "2026-03-09T04:00",
        ),
        (
            BudgetPeriod.DAY,
            "America/Havana",
            "2026-11-01T05:30",
            "2026-11-01T04:00",
            "2026-11-02T05:00",
        ),
        (
            BudgetPeriod.DAY,
            "Africa/Cairo",
            "2026-04-24T12:00",
            "2026-04-23T22:00",
            "2026-04-24T21:00",
        ),
        # Apia had no 30 December 2011.
        (
            BudgetPeriod.DAY,
            "Pacific/Apia",
            "2011-12-30T09:59",
            "2011-12-29T10:00",
            "2011-12-30T10:00",
        ),
        (
            BudgetPeriod.DAY,
            "Pacific/Apia",
            "2011-12-30T10:00",
            "2011-12-30T10:00",
            "2011-12-31T10:00",
        ),
        (BudgetPeriod.WEEK, "UTC", "2026-11-22T23:59", "2026-11-16T00:00", "2026-11-23T00:00"),
        (
            BudgetPeriod.WEEK,
            "Asia/Kathmandu",
            "2026-11-22T18:15",
            "2026-11-22T18:15",
            "2026-11-29T18:15",
        ),
        (BudgetPeriod.MONTH, "UTC", "2024-02-29T12:00", "2024-02-01T00:00", "2024-03-01T00:00"),
        (
            BudgetPeriod.MONTH,
            "America/New_York",
            "2026-12-01T04:59",
            "2026-11-01T04:00",
            "2026-12-01T05:00",
        ),
        (
            BudgetPeriod.MONTH,
            "Pacific/Apia",
            "2011-12-31T00:00",
            "2011-12-01T10:00",
            "2011-12-31T10:00",
        ),
    ],
)
def test_a_period_lasts_from_here_to_there(
    period: BudgetPeriod, time_zone: str, moment: str, starts: str, ends: str
) -> None:
    """Worked out by hand, with a calendar."""
    assert rule(period=period, time_zone=time_zone).period_at(at(moment)) == PeriodSpan(
        at(starts), at(ends)
    )


def test_a_budget_for_once_never_ends() -> None:
    """A pilot's money is not there again next month."""
    assert period_at(BudgetPeriod.ONCE, "Asia/Kathmandu", at("2026-11-22T05:30")) == PeriodSpan(
        EPOCH, None
    )
    assert PeriodSpan(EPOCH, None).starts_s == 0


def test_a_period_is_named_by_the_second_it_begins() -> None:
    """Postgres, the journal and each replica must mean the same one."""
    span = period_at(BudgetPeriod.DAY, "Asia/Kathmandu", at("2026-11-22T05:30"))
    assert (span.starts_s, span.starts_at) == (1795284900, at("2026-11-21T18:15"))


@pytest.mark.parametrize(
    ("scope", "owner", "identity"),
    [
        (BudgetScope.TEAM, "payments", "payments/day"),
        (BudgetScope.PROJECT, "checkout", "payments/project:checkout/day"),
        (BudgetScope.KEY, "*", "payments/key:*/day"),
        (BudgetScope.COST_CENTRE, "CC-1207", "cost_centre:CC-1207/day"),
    ],
)
def test_a_budget_is_known_by_its_owner_and_period(
    scope: BudgetScope, owner: str, identity: str
) -> None:
    """It is equal in every version of the policy, so spending stays counted when a limit
    changes.
    """
    assert rule_id(scope, team="payments", owner=owner, period=BudgetPeriod.DAY) == identity


def test_a_request_is_charged_to_its_team_project_key_and_cost_centre() -> None:
    """In the order of their names, which is the order of locks: two requests never wait for each
    other.
    """
    rules = (rule(), rule(BudgetScope.PROJECT, "checkout"), rule(BudgetScope.KEY, EACH))
    centre = (rule(BudgetScope.COST_CENTRE, "CC-1"),)
    assert names(*rules, cost_centre=centre) == [
        "cost_centre:CC-1/month",
        "payments/key:0A1b2C3d4E/month",
        "payments/month",
        "payments/project:checkout/month",
    ]
    assert accounts_of((rules[0],), cost_centre=(), project=None, key_id="k") == (
        Account(account_id="payments/month", rule=rules[0]),
    )


def test_a_rule_for_one_project_stands_in_for_the_one_for_each() -> None:
    """The exception is meant: both together would let the stricter one win."""
    each, own = rule(BudgetScope.PROJECT, EACH), rule(BudgetScope.PROJECT, "checkout")
    assert names(each, own) == ["payments/project:checkout/month"]
    assert names(each, own, project="search") == ["payments/project:search/month"]
    assert accounts_of((each, own), cost_centre=(), project="checkout", key_id="k")[0].rule is own
    assert names(own, project="search") == []
    assert names(each, own, project=None) == ["payments/project:*/month"]


def test_a_rule_for_a_key_is_no_exception_for_a_project_of_that_name() -> None:
    """A project may have ten letters too."""
    rules = (rule(BudgetScope.PROJECT, EACH), rule(BudgetScope.KEY, "0A1b2C3d4E"))
    assert names(*rules, project="0A1b2C3d4E") == [
        "payments/key:0A1b2C3d4E/month",
        "payments/project:0A1b2C3d4E/month",
    ]


PROJECTS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:/@+ -]{0,20}", fullmatch=True) | st.sampled_from(
    [
        "month",
        "project:checkout/month",
        "key:0A1b2C3d4E/month",
        "checkout/month",
        "CC-1/month",
        "a:month",
    ]
)
BUDGET_NAMES = st.sampled_from(["payments", "search", "pilot", "project", "key", "month", "CC-1"])


@given(PROJECTS, PROJECTS, BUDGET_NAMES)
def test_no_project_that_a_caller_may_name_reaches_another_budgets_account(
    one: str, other: str, budget_name: str
) -> None:
    """A caller chooses the project: if its account were another's, that one's money would be
    spent.
    """
    each = rule(BudgetScope.PROJECT, EACH)
    named = rule(BudgetScope.PROJECT, EACH, rule_id=budget_name)
    owned = [
        rule(BudgetScope.PROJECT, one),
        rule(BudgetScope.COST_CENTRE, "CC-1"),
        rule(BudgetScope.KEY, "0A1b2C3d4E"),
    ]
    others = {known.rule_id for known in (rule(), *owned, rule(rule_id="own-name"))}
    found = [each.account_id(other), named.account_id(other), named.account_id(one)]
    assert others.isdisjoint(found[1:])
    assert (found[0] in others) == (one == other)
    assert len(set(found)) == (2 if one == other else 3)


def test_a_named_rule_for_each_keeps_an_account_for_each() -> None:
    """Else all projects would share the money that each was promised."""
    named = rule(BudgetScope.PROJECT, EACH, rule_id="trial")
    assert named.account_id("checkout") == "trial:checkout"
    assert rule(BudgetScope.PROJECT, "checkout", rule_id="trial").account_id("checkout") == "trial"


def test_a_policy_knows_the_accounts_of_a_request() -> None:
    """A cost centre that the policy does not declare has no budget."""
    own, shared = rule(), rule(BudgetScope.COST_CENTRE, "CC-1")
    inside, outside = (
        Team(name=name, cost_centre=centre, data_class=DataClass.PUBLIC, routes=(), budgets=budgets)
        for name, centre, budgets in (("payments", "CC-1", (own,)), ("search", "CC-2", ()))
    )
    policy = Policy(
        regions={},
        classes={},
        deployments={},
        routes={},
        teams={"payments": inside, "search": outside},
        cost_centres={"CC-1": CostCentre(name="CC-1", budgets=(shared,))},
    )
    assert policy.budgets == (own, shared)
    assert [a.rule for a in policy.accounts(inside, project=None, key_id="k", day=None)] == [
        shared,
        own,
    ]
    assert policy.accounts(outside, project=None, key_id="k", day=None) == ()


def test_only_a_hard_budget_refuses() -> None:
    """A soft one is there to be seen."""
    assert rule().is_hard
    assert not rule(kind=BudgetKind.SOFT, alert_at=(Decimal(1),)).is_hard


def test_a_slice_is_a_hundredth_or_the_hold_that_asks() -> None:
    """Large slices starve other replicas; one below the hold would admit nothing."""
    assert (slice_nusd(1000, 3), slice_nusd(1000, 30)) == (10, 30)


def test_nothing_is_limited_without_a_limit() -> None:
    """An empty block is as good as none."""
    assert not NO_LIMITS.is_limited
    assert not Limits().is_limited
    assert Limits(concurrent=1).is_limited
