"""Compares a new policy version with the one in force, and returns the changes, the harmful ones
and a one-sentence summary; it applies nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from gateway.domain.budgets.budgets import BudgetPeriod, BudgetRule
from gateway.domain.money import format_usd, usd_from_nusd
from gateway.domain.policy.policy import Policy, PolicyVersion, Route, Team
from gateway.domain.pricing.pricing import Price
from gateway.domain.routing.replay import Alike, Place, fate_of
from gateway.services.policy.apply import unpriced
from gateway.services.policy.place_changes import place_changes
from gateway.services.policy.plan_messages import sentence
from gateway.services.policy.policy_diff import Change, changes
from gateway.services.policy.replay import Replay


@dataclass(frozen=True, slots=True, kw_only=True)
class HarmfulChange:
    """A change that harms a user. `is_note`: it may be fine on the machines of the gateways."""

    kind: str  # team, route, eligible, secret, price or budget
    name: str
    message: str
    is_note: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanContext:
    """The state that a plan compares with: live keys, traffic, prices and the gateway's place.

    `live_keys` counts keys by team, `traffic` attempts of the last week by team and route.
    `unresolved` gives, by deployment, the problem with its secret on this machine. `prices` are the
    new document's, now; `charged` are those of the deployments' last requests. `used_nusd` is spent
    and leased in the running period, by budget rule.
    """

    live_keys: Mapping[str, int]
    traffic: Mapping[tuple[str, str], int]
    unresolved: Mapping[str, str]
    prices: Mapping[str, Price]
    place: Place
    used_nusd: Mapping[str, int] = field(default_factory=dict)
    charged: Mapping[str, Price] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The effects of an apply. `version` is the one in force, None before the first."""

    version: int | None
    hurts: tuple[HarmfulChange, ...]
    changes: tuple[Change, ...]
    replay: Replay | None
    sentence: str


def plan(
    before: PolicyVersion | None,
    after: PolicyVersion,
    *,
    around: PlanContext,
    replay: Replay | None,
    now: datetime,
) -> Plan:
    """Compare a new policy version with the one in force, and return the differences, the harm and
    a summary.
    """
    differences = changes(None if before is None else before.policy, after.policy)
    old = None if before is None else before.policy
    hurts = (
        *_harmful_changes(old, after, around),
        *_moved_budgets(old, after.policy, around, now),
        *_lost_bounds(old, after.policy),
    )
    return Plan(
        version=None if before is None else before.version,
        hurts=hurts,
        changes=differences,
        replay=replay,
        sentence=_without_replay(differences, hurts)
        if replay is None
        else sentence(replay, after.policy, now=now),
    )


def _harmful_changes(
    before: Policy | None, after: PolicyVersion, around: PlanContext
) -> Iterator[HarmfulChange]:
    """Yield the findings that make requests fail under the new policy: lost teams and routes, dead
    ends, missing prices and secrets.
    """
    yield from _removed_teams(before, after.policy, around)
    yield from _removed_routes(before, after.policy, around)
    yield from _dead_ends(after, around)
    for name in unpriced(after.policy, around.prices):
        yield HarmfulChange(
            kind="price",
            name=name,
            message=f"deployment {name} has no price: its requests are refused (unpriced_model)",
        )
    for name, change in place_changes(around.charged, around.prices):
        message = f"the list price of deployment {name} changes with its place: {change}"
        yield HarmfulChange(kind="price", name=name, message=message, is_note=True)
    for name, problem in around.unresolved.items():
        message = (
            f"the secret of deployment {name} cannot be used on this machine: {problem}. The "
            "gateways need it"
        )
        yield HarmfulChange(kind="secret", name=name, message=message, is_note=True)


def _moved_budgets(
    before: Policy | None, after: Policy, around: PlanContext, now: datetime
) -> Iterator[HarmfulChange]:
    """Yield the budgets whose running period begins at another moment under the new policy, with
    the amount that it takes over; only notes if nothing was used.
    """
    old = {} if before is None else {rule.rule_id: rule for rule in before.budgets}
    for rule in after.budgets:
        if rule.rule_id not in old:
            continue
        was, starts_at = old[rule.rule_id].period_at(now).starts_at, rule.period_at(now).starts_at
        if was == starts_at:
            continue
        used_nusd = around.used_nusd.get(rule.rule_id, 0)
        yield HarmfulChange(
            kind="budget",
            name=rule.rule_id,
            message=(
                f"{rule.rule_id} starts at another moment: takes over "
                f"{format_usd(usd_from_nusd(used_nusd)).replace('$', 'USD ')} (from "
                f"{starts_at:%Y-%m-%d %H:%M} UTC, before from {was:%Y-%m-%d %H:%M} UTC)"
            ),
            is_note=not used_nusd,
        )


def _lost_bounds(before: Policy | None, after: Policy) -> Iterator[HarmfulChange]:
    """Yield the hard budgets of which no hard one is left for the same owner and period: nothing
    stops their spending any more. Those of a removed team or cost centre are no harm.
    """
    left = {_bounded(rule) for rule in after.budgets if rule.is_hard}
    softened = {_bounded(rule) for rule in after.budgets}
    for rule in () if before is None else before.budgets:
        owners = after.cost_centres if rule.team is None else after.teams
        if not rule.is_hard or _bounded(rule) in left or (rule.team or rule.owner) not in owners:
            continue
        change = "becomes soft" if _bounded(rule) in softened else "is removed"
        limit = format_usd(usd_from_nusd(rule.limit_nusd)).replace("$", "USD ")
        span = "" if rule.period is BudgetPeriod.ONCE else f" a {rule.period}"
        message = f"{change}: nothing stops the spending at {limit}{span}"
        yield HarmfulChange(
            kind="budget", name=rule.rule_id, message=f"hard budget {rule.rule_id} {message}"
        )


def _bounded(rule: BudgetRule) -> tuple[object, ...]:
    """Return the owner and the period that a budget is for, whichever name it has."""
    return rule.scope, rule.team, rule.owner, rule.period


def _removed_teams(
    before: Policy | None, after: Policy, around: PlanContext
) -> Iterator[HarmfulChange]:
    """Yield removed teams that still have live keys, as harmful changes."""
    known = around.live_keys if before is None else before.teams
    for name in known:
        keys = around.live_keys.get(name, 0)
        if keys and name not in after.teams:
            message = (
                f"team {name} is removed and has {_number(keys, 'live key')}: they are "
                "turned away (401)"
            )
            yield HarmfulChange(kind="team", name=name, message=message)


def _removed_routes(
    before: Policy | None, after: Policy, around: PlanContext
) -> Iterator[HarmfulChange]:
    """Yield routes that are removed, or that a team may no longer use, if requests used them in the
    last week.
    """
    if before is None:
        return
    for name in before.routes:
        used = {
            team: attempts
            for (team, route), attempts in around.traffic.items()
            if route == name and attempts
        }
        if not used:
            continue
        if name not in after.routes:
            by = ", ".join(sorted(used))
            message = (
                f"route {name} is removed: {_number(sum(used.values()), 'request')} last "
                f"week, from {by}"
            )
            yield HarmfulChange(kind="route", name=name, message=message)
            continue
        for team, attempts in sorted(used.items()):
            if team in after.teams and name not in after.teams[team].routes:
                message = (
                    f"team {team} loses route {name}: {_number(attempts, 'request')} last week"
                )
                yield HarmfulChange(kind="route", name=f"{team}/{name}", message=message)


def _dead_ends(after: PolicyVersion, around: PlanContext) -> Iterator[HarmfulChange]:
    """Yield routes without any eligible deployment for a team's own class and tags."""
    for team in after.policy.teams.values():
        for name in team.routes:
            reason = _dead_end(after, team, after.policy.routes[name], around)
            if reason is not None:
                what = (
                    f"route {name} has no deployment for team {team.name} (class "
                    f"{team.data_class.label})"
                )
                yield HarmfulChange(
                    kind="eligible", name=f"{team.name}/{name}", message=f"{what}: {reason}"
                )


def _dead_end(after: PolicyVersion, team: Team, route: Route, around: PlanContext) -> str | None:
    """Return the reason why a team's route can serve no request at all, None if it can."""
    operations = {
        kind for name in route.deployments for kind in after.policy.deployments[name].operations
    }
    refusals = []
    for operation in sorted(operations):
        asked = Alike(
            team=team.name,
            project=None,
            key_id="",
            route=route.name,
            deployment="",
            region="",
            model="",
            data_class=team.data_class.label,
            class_source="team",
            operation=operation,
            service_tier=None,
            price_id=None,
        )
        fate = fate_of(asked, after, prices=around.prices, place=around.place)
        if fate.refusal is None:
            return None
        refusals.append(fate.refusal)
    return " and ".join(sorted(set(refusals))) or "no operation"


def _without_replay(differences: Iterable[Change], hurts: Iterable[HarmfulChange]) -> str:
    """Return a plan's summary sentence without a replay: the number of changes and of harmful
    ones.
    """
    changed, hurting = len(list(differences)), sum(not hurt.is_note for hurt in hurts)
    if not changed:
        return "Nothing changes in meaning."
    harm = f"they hurt in {_number(hurting, 'way')}" if hurting else "none of them hurts"
    return (
        f"{_number(changed, 'change')}; {harm}; --replay 30d shows the cost of the last 30 "
        "days under it."
    )


def _number(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural unless the count is 1."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
