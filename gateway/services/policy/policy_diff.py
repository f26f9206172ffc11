"""Computes the differences between two policies, field by field, in the document's terms; a plan
shows them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gateway.domain.budgets.budgets import EACH, BudgetRule, BudgetScope
from gateway.domain.policy.policy import Policy
from gateway.wire.policy import effective
from gateway.wire.policy.teams import BudgetBlock

_ALLOWANCES = ("budget", "limits")  # kinds whose figures are shown when they are added or removed
_TAKEN_APART = (
    "budgets",
    "limits",
    "projects",
    "keys",
)  # fields of a team that are compared one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference between two policies.

    `details` are `field: before → after` for a change. An added or removed budget or limit has one
    detail: its description.
    """

    verb: str  # added, removed or changed
    kind: str
    name: str
    details: tuple[str, ...] = ()


def changes(before: Policy | None, after: Policy) -> tuple[Change, ...]:
    """Return the differences between two policies, in the document's order."""
    old, new = _by_name(before), _by_name(after)
    found = []
    for kind, name in [*new, *(key for key in old if key not in new)]:
        was, now = old.get((kind, name)), new.get((kind, name))
        if was == now:
            continue
        verb = "added" if was is None else "removed" if now is None else "changed"
        details = _allowance(was, now) if kind in _ALLOWANCES else _details(was, now)
        found.append(Change(verb=verb, kind=kind, name=name, details=details))
    return tuple(found)


def _by_name(policy: Policy | None) -> dict[tuple[str, str], Any]:
    """Return a policy's parts (regions, routes, teams, budgets and others) by kind and name, for
    comparison.
    """
    if policy is None:
        return {}
    document = effective(policy)
    mappings = {("region", name): children for name, children in document["regions"].items()}
    mappings |= {("class", name): rule for name, rule in document["classes"].items()}
    mappings |= {("data tag", name): rule for name, rule in document["data_tags"].items()}
    if "facts_valid_days" in document:
        mappings["facts", "facts_valid_days"] = document["facts_valid_days"]
    for kind in ("deployment", "route"):
        mappings |= {(kind, item["name"]): item for item in document[f"{kind}s"]}
    for team in document["teams"]:
        # Each budget is a line of its own: a changed number is hard to find in a list of lists.
        mappings["team", team["name"]] = {
            name: value for name, value in team.items() if name not in _TAKEN_APART
        }
        mappings |= {("limits", owner): limits for owner, limits in _limits(team)}
    for centre in document["cost_centres"]:
        mappings["cost centre", centre["name"]] = {
            name: value for name, value in centre.items() if name not in ("name", "budgets")
        }
    mappings |= {("budget", rule.rule_id): _budget(rule) for rule in policy.budgets}
    if "alerts" in document:
        mappings["alerts", "receivers"] = document["alerts"]
    if "dashboard" in document:
        mappings["dashboard", "roles"] = document["dashboard"]
    return mappings


def _limits(team: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Return the limits of a team, its projects and its keys, each with its owner's name."""
    blocks = [
        (team["name"], team),
        *((f"{team['name']}/project:{project['name']}", project) for project in team["projects"]),
        *((f"{team['name']}/key:{key['key']}", key) for key in team["keys"]),
    ]
    return ((owner, block["limits"]) for owner, block in blocks if "limits" in block)


def _budget(rule: BudgetRule) -> dict[str, Any]:
    """Return a budget's owner and fields in the policy document's terms."""
    fields = BudgetBlock.of_value(rule).model_dump(
        by_alias=True, exclude={"rule_id"}, exclude_none=True
    )
    return {"of": _owner_text(rule), **fields}


def _owner_text(rule: BudgetRule) -> str:
    """Return the owner of a budget in words, such as `each key of team a`."""
    match rule.scope:
        case BudgetScope.TEAM:
            return f"team {rule.team}"
        case BudgetScope.COST_CENTRE:
            return f"cost centre {rule.owner}"
        case scope:
            owner = f"each {scope}" if rule.owner == EACH else f"{scope} {rule.owner}"
            return f"{owner} of team {rule.team}"


def _allowance(was: Any, now: Any) -> tuple[str, ...]:
    """Return the details of a changed, added or removed budget or limit."""
    if was is not None and now is not None:
        return _details(was, now)
    fields = was if now is None else now
    return (", ".join(f"{name}: {_short(value)}" for name, value in fields.items()) or "no limit",)


def _details(was: Any, now: Any) -> tuple[str, ...]:
    """Return the changed fields as `field: before → after`; empty for an added or removed part."""
    if was is None or now is None:
        return ()
    if not isinstance(was, dict):
        return (f"{_short(was)} → {_short(now)}",)
    fields = [*now, *(field for field in was if field not in now)]
    return tuple(
        f"{field}: {_short(was.get(field))} → {_short(now.get(field))}"
        for field in fields
        if was.get(field) != now.get(field)
    )


def _short(value: Any) -> str:
    """Return a field's value as short text for a difference."""
    if value is None:
        return "—"
    if isinstance(value, list):
        return f"[{', '.join(map(_short, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_short(inner)}" for key, inner in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)
