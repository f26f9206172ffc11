"""Declares budget rules, accounts, holds and asks for leases, and computes a request's accounts and
a moment's period; moves no money.

A rule is the policy's declaration. An account is the one sum that a rule keeps for one owner; its
name is equal in every policy version. Money is whole nano-dollars.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from zoneinfo import ZoneInfo

from msgspec import Struct

EACH = "*"  # instead of a project's or key's name: each of them separately
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SLICE_SHARE = 100  # one slice is at most this part of the limit, or the hold that asks


class BudgetScope(StrEnum):
    """The owner whose spending a budget counts."""

    TEAM = "team"
    PROJECT = "project"
    KEY = "key"
    COST_CENTRE = "cost_centre"


class BudgetPeriod(StrEnum):
    """The length of a budget's period. `once` never resets."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    ONCE = "once"


class BudgetKind(StrEnum):
    """A hard budget refuses requests beyond it; a soft one only counts and alerts."""

    HARD = "hard"
    SOFT = "soft"


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetRule:
    """One budget of the policy.

    `rule_id` is its identity: `payments/month`, `payments/project:checkout/month`, or its given
    name. `owner` is the project, key id or cost centre (the team itself for a team's own), `*` for
    each of a team's projects or keys. `overdraft_nusd` is the amount that each replica may spend
    beyond its leases while Postgres is away.
    """

    rule_id: str
    scope: BudgetScope
    team: str | None  # None for a cost centre's
    owner: str
    period: BudgetPeriod
    limit_nusd: int
    kind: BudgetKind = BudgetKind.HARD
    alert_at: tuple[Decimal, ...] = ()
    time_zone: str = "UTC"
    overdraft_nusd: int = 0

    @property
    def is_hard(self) -> bool:
        """Return True if the budget refuses requests beyond its limit, False if it only counts and
        alerts.
        """
        return self.kind is BudgetKind.HARD

    def account_id(self, owner: str) -> str:
        """Return the name of the account that counts one owner's spending under this rule: the
        rule's id, with the owner if the rule is for each.
        """
        if self.owner != EACH:
            return self.rule_id
        if EACH in self.rule_id:
            return self.rule_id.replace(EACH, owner, 1)
        # A rule with its own name. Not '/': callers may choose the project, and `payments/month` is
        # another rule's account if this one is named payments and the project month.
        return f"{self.rule_id}:{owner}"

    def period_at(self, moment: datetime) -> PeriodSpan:
        """Return the budget period that a moment belongs to, in the rule's time zone."""
        return period_at(self.period, self.time_zone, moment)


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The budget of one owner under one rule."""

    account_id: str
    rule: BudgetRule


@dataclass(frozen=True, slots=True)
class PeriodSpan:
    """From `starts_at` up to, not including, `ends_at`; None never ends."""

    starts_at: datetime
    ends_at: datetime | None

    @property
    def starts_s(self) -> int:
        """Return the period's beginning in whole seconds since 1970; with its account it identifies
        the period.
        """
        return int(self.starts_at.timestamp())


class Hold(Struct, frozen=True, array_like=True, gc=False):
    """The amount that one attempt reserved on one account's period.

    A soft budget reserves nothing and is only named.

    `starts_s` is the period's beginning, in seconds since 1970. `is_overdraft`: Postgres was away
    and the lease empty.
    """

    account_id: str
    starts_s: int
    held_nusd: int
    is_overdraft: bool = False


def rule_id(scope: BudgetScope, *, team: str | None, owner: str, period: BudgetPeriod) -> str:
    """Return the identity of a budget that the policy gives no name: its scope, owner and period,
    for example `payments/month`.
    """
    match scope:
        case BudgetScope.TEAM:
            return f"{team}/{period}"
        case BudgetScope.COST_CENTRE:
            return f"cost_centre:{owner}/{period}"
        case _:
            return f"{team}/{scope}:{owner}/{period}"


def accounts_of(
    rules: tuple[BudgetRule, ...],
    *,
    cost_centre: tuple[BudgetRule, ...],
    project: str | None,
    key_id: str,
) -> tuple[Account, ...]:
    """Return the accounts that a request is charged to, in the order of their names, which is the
    order of every lock.

    `rules` are all of the team's. A rule for one project or key replaces the rule for each of them.
    A request without a project counts under `*`; otherwise it would avoid all project budgets.
    """
    owners = {BudgetScope.PROJECT: EACH if project is None else project, BudgetScope.KEY: key_id}
    with_own = {(rule.scope, rule.owner) for rule in rules}
    found = [Account(account_id=rule.account_id(rule.owner), rule=rule) for rule in cost_centre]
    for rule in rules:
        if rule.scope is BudgetScope.TEAM:
            found.append(Account(account_id=rule.rule_id, rule=rule))
            continue
        owner = owners[rule.scope]
        if rule.owner == owner or (rule.owner == EACH and (rule.scope, owner) not in with_own):
            found.append(Account(account_id=rule.account_id(owner), rule=rule))
    return tuple(sorted(found, key=lambda account: account.account_id))


def period_at(period: BudgetPeriod, time_zone: str, moment: datetime) -> PeriodSpan:
    """Return the period that a moment belongs to, in a time zone (IANA name). Weeks begin on
    Monday.

    Every moment belongs to exactly one period, even during a DST change: that day has 23 or 25
    hours.
    """
    if period is BudgetPeriod.ONCE:
        return PeriodSpan(EPOCH, None)
    zone = _zone(time_zone)
    if period is BudgetPeriod.HOUR:
        return _hour_at(moment.astimezone(UTC), zone)
    return _days_at(period, moment.astimezone(UTC), zone)


def slice_nusd(limit_nusd: int, hold_nusd: int) -> int:
    """Return the most that one worker leases from a budget at once: a fixed share of the limit, or
    one request's hold if that is larger.
    """
    return max(limit_nusd // SLICE_SHARE, hold_nusd)


_FIRST_DAYS: Mapping[BudgetPeriod, Callable[[datetime], datetime]] = {
    BudgetPeriod.DAY: lambda day: day,
    BudgetPeriod.WEEK: lambda day: day - timedelta(days=day.weekday()),
    BudgetPeriod.MONTH: lambda day: day.replace(day=1),
}
_LONGER_THAN = {
    BudgetPeriod.DAY: timedelta(days=1),
    BudgetPeriod.WEEK: timedelta(days=7),
    BudgetPeriod.MONTH: timedelta(days=31),
}


def _hour_at(moment: datetime, zone: ZoneInfo) -> PeriodSpan:
    """Return the local clock hour that contains a moment, cut at a clock change inside it (Lord
    Howe changes by half an hour).
    """
    second = moment.replace(microsecond=0)
    offset = _offset(second, zone)
    starts_at = (second + offset).replace(minute=0, second=0) - offset
    return PeriodSpan(
        _first_second(starts_at, second, lambda at: _offset(at, zone) == offset),
        _first_second(
            second, starts_at + timedelta(hours=1), lambda at: _offset(at, zone) != offset
        ),
    )


def _days_at(period: BudgetPeriod, moment: datetime, zone: ZoneInfo) -> PeriodSpan:
    """Return the period of whole local days, for example a week or a month, that contains a
    moment.
    """
    first = _FIRST_DAYS[period](
        _local(moment, zone).replace(hour=0, minute=0, second=0, microsecond=0)
    )
    while True:
        following = _FIRST_DAYS[period](first + _LONGER_THAN[period])
        ends_at = _midnight(following, zone)
        if moment < ends_at:
            return PeriodSpan(_midnight(first, zone), ends_at)
        # The clock went back over midnight, so the day that had begun continues.
        first = following


def _midnight(day: datetime, zone: ZoneInfo) -> datetime:
    """Return the first moment of a local day: the first of two midnights, or the change itself
    if it skips midnight.
    """
    early, late = (day.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    if early <= late:
        return early
    # Skipped: with the offset after the change it lies before it, and the other way round.
    return _first_second(late, early, lambda at: _local(at, zone) >= day)


def _first_second(low: datetime, high: datetime, is_true: Callable[[datetime], bool]) -> datetime:
    """Return the first second in a range, by binary search, at which a condition holds that then
    stays true; `high` if it never does.
    """
    if is_true(low):
        return low
    if not is_true(high - timedelta(seconds=1)):
        return high
    seconds = range(int(low.timestamp()), int(high.timestamp()))
    return _moment(seconds[bisect_left(seconds, True, key=lambda second: is_true(_moment(second)))])


def _moment(second: int) -> datetime:
    """Return the moment of a whole second since 1970, in UTC."""
    return EPOCH + timedelta(seconds=second)


def _local(moment: datetime, zone: ZoneInfo) -> datetime:
    """Return a moment as local clock time in a time zone."""
    return moment.astimezone(zone).replace(tzinfo=None)


def _offset(moment: datetime, zone: ZoneInfo) -> timedelta:
    """Return a time zone's offset from UTC at a moment."""
    return moment.astimezone(zone).utcoffset() or timedelta()


@lru_cache(maxsize=64)
def _zone(time_zone: str) -> ZoneInfo:
    """Return the time zone of an IANA name, from a cache."""
    return ZoneInfo(time_zone)


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceAsk:
    """A worker's ask for one account's period: first give back, then take.

    `least_nusd` is the smallest waiting hold: without room for it nothing is granted; 0 asks for
    nothing. `needed_nusd` is the sum of waiting holds, `most_nusd` the amount to take if there is
    plenty. `held_nusd` informs readers. A worker numbers its asks. A repeated `turn` means that the
    answer was lost: Postgres then grants the same and moves nothing again.
    """

    account_id: str
    rule_id: str
    starts_at: datetime
    ends_at: datetime | None
    turn: int
    returned_nusd: int
    least_nusd: int
    needed_nusd: int
    most_nusd: int
    held_nusd: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceGranted:
    """Postgres's answer: the grant, and the account's state after it with all workers' leases.

    `limit_nusd` includes grants; it is None if Postgres does not know the rule. `outstanding_nusd`
    is this worker's.
    """

    account_id: str
    starts_s: int
    granted_nusd: int
    limit_nusd: int | None
    spent_nusd: int
    leased_nusd: int
    outstanding_nusd: int


class AsksRefused(Exception):
    """Postgres refuses the asks, and would always refuse them. Nothing was moved."""


class LeasesLost(Exception):
    """An operator gave up the worker's journal, and with it all of its leases."""
