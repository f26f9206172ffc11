"""Budgets: what may be spent in a period, by whom, and when each period begins and ends.

A rule is what the policy declares; an account is the one sum that a rule keeps for one team, project, key or cost
centre, and is known by the same name in every policy version. Money is whole nano-dollars.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from zoneinfo import ZoneInfo

from msgspec import Struct

EACH = "*"  # in place of a project's or key's name: each of them by itself
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SLICE_SHARE = 100  # one slice is at most this part of the limit, or the hold that asks


class BudgetScope(StrEnum):
    """Whose spending a budget counts."""

    TEAM = "team"
    PROJECT = "project"
    KEY = "key"
    COST_CENTRE = "cost_centre"


class BudgetPeriod(StrEnum):
    """How long a budget lasts. `once` never begins again."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    ONCE = "once"


class BudgetKind(StrEnum):
    """A hard budget refuses what does not fit; a soft one only counts and alerts."""

    HARD = "hard"
    SOFT = "soft"


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetRule:
    """One budget of the policy.

    `rule_id` is its identity: `payments/month`, `payments/project:checkout/month`, or the name given to it. `owner` is
    the project, key id or cost centre (the team itself for a team's own), `*` for each of a team's projects or keys.
    `overdraft_nusd` is what each replica may spend beyond its leases while Postgres is away.
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
        """Whether it refuses."""
        return self.kind is BudgetKind.HARD

    def account_id(self, owner: str) -> str:
        """The name of the account that this rule keeps for one owner."""
        if self.owner != EACH:
            return self.rule_id
        if EACH in self.rule_id:
            return self.rule_id.replace(EACH, owner, 1)
        return f"{self.rule_id}/{owner}"  # a rule with a name of its own

    def period_at(self, moment: datetime) -> Span:
        """The period that a moment belongs to."""
        return period_at(self.period, self.time_zone, moment)


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The budget of one owner under one rule."""

    account_id: str
    rule: BudgetRule


@dataclass(frozen=True, slots=True)
class Span:
    """From `starts_at` up to, not including, `ends_at`; None never ends."""

    starts_at: datetime
    ends_at: datetime | None

    @property
    def starts_s(self) -> int:
        """Its beginning in whole seconds since 1970: with its account it names a period everywhere."""
        return int(self.starts_at.timestamp())


class Hold(Struct, frozen=True, array_like=True, gc=False):
    """What one attempt reserved of one account's period. Of a soft budget nothing is: it is only named.

    `starts_s` is when the period began, in seconds since 1970. `is_overdraft`: Postgres was away and the lease empty.
    """

    account_id: str
    starts_s: int
    held_nusd: int
    is_overdraft: bool = False


def rule_id(scope: BudgetScope, *, team: str | None, owner: str, period: BudgetPeriod) -> str:
    """The identity of a budget that was given no name."""
    match scope:
        case BudgetScope.TEAM:
            return f"{team}/{period}"
        case BudgetScope.COST_CENTRE:
            return f"cost_centre:{owner}/{period}"
        case _:
            return f"{team}/{scope}:{owner}/{period}"


def accounts_of(
    rules: tuple[BudgetRule, ...], *, cost_centre: tuple[BudgetRule, ...], project: str | None, key_id: str
) -> tuple[Account, ...]:
    """The accounts that a request is charged to, in the order of their names: that is the order of every lock.

    `rules` are all of the team's. A rule for one project or key stands in for the one for each of them.
    """
    owners = {BudgetScope.PROJECT: project, BudgetScope.KEY: key_id}
    found = [Account(account_id=rule.account_id(rule.owner), rule=rule) for rule in cost_centre]
    for rule in rules:
        if rule.scope is BudgetScope.TEAM:
            found.append(Account(account_id=rule.rule_id, rule=rule))
            continue
        owner = owners[rule.scope]
        if owner is None:
            continue
        has_own = any(other.scope is rule.scope and other.owner == owner for other in rules)
        if rule.owner == owner or (rule.owner == EACH and not has_own):
            found.append(Account(account_id=rule.account_id(owner), rule=rule))
    return tuple(sorted(found, key=lambda account: account.account_id))


def period_at(period: BudgetPeriod, time_zone: str, moment: datetime) -> Span:
    """The period that a moment belongs to, in a time zone (IANA name). Weeks begin on Monday.

    Every moment belongs to one period, in DST changes too: a day then has 23 or 25 hours.
    """
    if period is BudgetPeriod.ONCE:
        return Span(EPOCH, None)
    local = moment.astimezone(_zone(time_zone))
    if period is BudgetPeriod.HOUR:
        offset = local.utcoffset() or timedelta()
        starts_at = (moment.astimezone(UTC) + offset).replace(minute=0, second=0, microsecond=0) - offset
        return Span(starts_at, starts_at + timedelta(hours=1))
    first = _FIRST_DAYS[period](local.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None))
    following = _FIRST_DAYS[period](first + _LONGER_THAN[period])
    return Span(_midnight(first, time_zone), _midnight(following, time_zone))


def slice_nusd(limit_nusd: int, hold_nusd: int) -> int:
    """The most that one worker takes at once."""
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


def _midnight(day: datetime, time_zone: str) -> datetime:
    """The first moment of a local day. Where clocks skip midnight, the moment they skip it in."""
    return day.replace(tzinfo=_zone(time_zone), fold=0).astimezone(UTC)


@lru_cache(maxsize=64)
def _zone(time_zone: str) -> ZoneInfo:
    return ZoneInfo(time_zone)
