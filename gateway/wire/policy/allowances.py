"""Budgets, limits and alerts of a policy document: their fields, and the conversion to values
and back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from gateway.domain.budgets.budgets import (
    BudgetKind,
    BudgetPeriod,
    BudgetRule,
    BudgetScope,
    rule_id,
)
from gateway.domain.budgets.limits import Limits
from gateway.domain.money import nusd_from_usd, plain_usd, usd_from_nusd
from gateway.domain.policy.policy import Alerts, CostCentre, Team
from gateway.wire.policy.findings import Findings, Spot, Wrong
from gateway.wire.policy.names import (
    budget_name,
    key_id,
    project,
    secret_reference,
    time_zone,
    webhook,
    words,
)
from gateway.wire.policy.readers import (
    Block,
    Entry,
    Field,
    Listed,
    Read,
    decimal,
    entries,
    integer,
    list_of,
    one_of,
)

MOST_USD = 9_000_000  # the sum of many such limits still fits into 64 bits of nano-dollars
_SHARES = list_of(decimal(above="0", most="10", unit="a share of the limit"))


def dollars(*, above: str | None = None, least: str | None = None) -> Read:
    """Return a reader of amounts that are whole nano-dollars."""
    read_number = decimal(above=above, least=least, most=str(MOST_USD), unit="USD")

    def read_dollars(spot: Spot, findings: Findings) -> Decimal:
        amount: Decimal = read_number(spot, findings)
        if usd_from_nusd(nusd_from_usd(amount)) != amount:
            raise Wrong(spot, "has more than nine decimals; money is counted in nano-dollars")
        return amount

    return read_dollars


def shares(spot: Spot, findings: Findings) -> Listed:
    """Read the shares of a limit at which to alert, each once."""
    read: Listed = _SHARES(spot, findings)
    seen: set[Decimal] = set()
    for at, share in read:
        if share in seen:
            findings.error(at, f"{share} is there twice; remove one")
        seen.add(share)
    return read


BUDGET = Block(
    name="budget",
    fields=(
        Field(
            name="period",
            read=one_of(tuple(BudgetPeriod)),
            is_required=True,
            example="month",
            meaning=f"How long it lasts, of {', '.join(f'`{p}`' for p in BudgetPeriod)}. A week "
            "begins on Monday, `once` never begins again.",
        ),
        Field(
            name="limit_usd",
            read=dollars(above="0"),
            is_required=True,
            example="5000",
            meaning=f"Most USD in one period, to the nano-dollar, up to {MOST_USD}.",
        ),
        Field(
            name="kind",
            read=one_of(tuple(BudgetKind)),
            example="soft",
            default="hard",
            default_text="`hard`",
            meaning="`hard` refuses requests beyond it; `soft` only counts and alerts.",
        ),
        Field(
            name="alert_at",
            read=shares,
            example="[0.5, 0.8, 1.0]",
            default_text="`[]`",
            meaning="Shares of the limit, up to 10, at which an alert is sent, once a period each.",
        ),
        Field(
            name="name",
            read=budget_name,
            example="pilot-2026",
            default_text="its owner and period, as in `payments/month`",
            meaning="Unique name; needed for a second budget of the same owner and period.",
        ),
        Field(
            name="overdraft_usd",
            read=dollars(least="0"),
            example="1",
            default=Decimal(0),
            default_text="`0`",
            meaning="The amount that each replica may spend beyond its lease while the database "
            "is away; only for `hard`.",
        ),
    ),
)

LIMITS = Block(
    name="limits block",
    fields=(
        Field(
            name="requests_per_minute",
            read=integer(least=1, most=1_000_000_000),
            example="600",
            default_text="no limit",
            meaning="Requests in any 60 seconds.",
        ),
        Field(
            name="tokens_per_minute",
            read=integer(least=1, most=1_000_000_000),
            example="200000",
            default_text="no limit",
            meaning="Tokens of prompts and answers in any 60 seconds.",
        ),
        Field(
            name="concurrent",
            read=integer(least=1, most=1_000_000),
            example="50",
            default_text="no limit",
            meaning="Requests at the same time.",
        ),
        Field(
            name="mode",
            read=one_of(("enforced", "shadow")),
            example="shadow",
            default="enforced",
            default_text="`enforced`",
            meaning="`shadow` refuses nothing: its refusals are only counted and shown.",
        ),
    ),
)

_BUDGETS = Field(
    name="budgets",
    read=list_of(BUDGET),
    example="[{period: day, limit_usd: 20}]",
    default_text="`[]`",
    meaning="The budgets of each.",
)
_LIMITS = Field(
    name="limits",
    read=LIMITS,
    example="{requests_per_minute: 60}",
    default_text="none",
    meaning="How much each may ask at once.",
)

PROJECT = Block(
    name="project",
    fields=(
        Field(
            name="name",
            read=project,
            is_required=True,
            example="checkout",
            meaning='The project, as requests or keys name it; `"*"` is each that is not named '
            "here, by itself.",
        ),
        _BUDGETS,
        _LIMITS,
    ),
)

KEY = Block(
    name="key",
    fields=(
        Field(
            name="key",
            read=key_id,
            is_required=True,
            example="0A1b2C3d4E",
            meaning='The key\'s id, as `tollgate key list` shows it; `"*"` is each that is not '
            "named here, by itself.",
        ),
        _BUDGETS,
        _LIMITS,
    ),
)

COST_CENTRE = Block(
    name="cost centre",
    fields=(
        Field(
            name="name",
            read=words,
            is_required=True,
            example="CC-1207",
            meaning="The `cost_centre` of the teams that it is about.",
        ),
        Field(
            name="time_zone",
            read=time_zone,
            example="Europe/Berlin",
            default="UTC",
            default_text="`UTC`",
            meaning="IANA time zone in which the periods of its budgets begin.",
        ),
        Field(
            name="budgets",
            read=list_of(BUDGET),
            example="[{period: month, limit_usd: 20000}]",
            default_text="`[]`",
            meaning="The budgets of its teams together.",
        ),
    ),
)

ALERTS = Block(
    name="alerts block",
    fields=(
        Field(
            name="webhook",
            read=webhook,
            is_required=True,
            example="https://hooks.example/x",
            meaning="Address that each alert is posted to. `http://` only on this machine or a "
            "private network.",
        ),
        Field(
            name="secret",
            read=secret_reference,
            is_required=True,
            example="env:TOLLGATE_ALERT_SECRET",
            meaning="Reference to the secret that signs alerts: `env:NAME` or "
            "`file:/absolute/path`; never the secret.",
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Declared:
    """A budget as declared in the document, with the readable facts about its owner."""

    scope: BudgetScope
    team: str | None
    owner: str | None
    entry: Entry

    @property
    def identity(self) -> str | None:
        """The budget's id; None if errors prevent its computation."""
        if "name" in self.entry.spots:
            return self.entry.of("name", str)
        period = self.entry.of("period", str)
        has_team = self.team is not None or self.scope is BudgetScope.COST_CENTRE
        if period is None or self.owner is None or not has_team:
            return None
        return rule_id(self.scope, team=self.team, owner=self.owner, period=BudgetPeriod(period))


def declared_budgets(document: Entry) -> Iterator[Declared]:
    """Yield every budget of a document, in the order of `Policy.budgets`."""
    for team in entries(document.of("teams", Listed)):
        yield from _declared_by(team)
    for centre in entries(document.of("cost_centres", Listed)):
        name = centre.of("name", str)
        for budget in entries(centre.of("budgets", Listed)):
            yield Declared(BudgetScope.COST_CENTRE, None, name, budget)


def _declared_by(team: Entry) -> Iterator[Declared]:
    name = team.of("name", str)
    for budget in entries(team.of("budgets", Listed)):
        yield Declared(BudgetScope.TEAM, name, name, budget)
    for listed, scope, field in (
        ("projects", BudgetScope.PROJECT, "name"),
        ("keys", BudgetScope.KEY, "key"),
    ):
        for owner in entries(team.of(listed, Listed)):
            for budget in entries(owner.of("budgets", Listed)):
                yield Declared(scope, name, owner.of(field, str), budget)


def team_budgets(team: Entry) -> tuple[BudgetRule, ...]:
    """Return all budgets of a team's block: its own, its projects' and its keys'."""
    return tuple(_rule(declared, team.values["time_zone"]) for declared in _declared_by(team))


def limits_from_wire(declared: Entry | None) -> Limits:
    """Return the limits of a block, or empty limits."""
    if declared is None:
        return Limits()
    values = {name: value for name, value in declared.values.items() if name != "mode"}
    return Limits(**values, is_shadow=declared.values["mode"] == "shadow")


def limits_by(field: str, listed: Listed | None) -> dict[str, Limits]:
    """Return the limits of each project or key that declares some, by its name."""
    return {
        owner.values[field]: limits_from_wire(owner.values["limits"])
        for owner in entries(listed)
        if owner.values["limits"] is not None
    }


def cost_centre_from_wire(centre: Entry) -> CostCentre:
    """Return a cost centre and its budgets."""
    name, zone = centre.values["name"], centre.values["time_zone"]
    budgets = entries(centre.values["budgets"])
    rules = (
        _rule(Declared(BudgetScope.COST_CENTRE, None, name, budget), zone) for budget in budgets
    )
    return CostCentre(name=name, time_zone=zone, budgets=tuple(rules))


def alerts_from_wire(declared: Entry | None) -> Alerts | None:
    """Return the destination of alerts, or None."""
    return None if declared is None else Alerts(**declared.values)


def _rule(declared: Declared, zone: str) -> BudgetRule:
    values, identity, owner = declared.entry.values, declared.identity, declared.owner
    assert identity is not None, "a valid budget has an identity"
    assert owner is not None, "a valid budget has an owner"
    alert_at = values["alert_at"].items if values["alert_at"] is not None else ()
    return BudgetRule(
        rule_id=identity,
        scope=declared.scope,
        team=declared.team,
        owner=owner,
        period=BudgetPeriod(values["period"]),
        limit_nusd=nusd_from_usd(values["limit_usd"]),
        kind=BudgetKind(values["kind"]),
        # One spelling per share: 0.50 and 0.5 are the same alert in every version.
        alert_at=tuple(Decimal(f"{share.normalize():f}") for share in sorted(alert_at)),
        time_zone=zone,
        overdraft_nusd=nusd_from_usd(values["overdraft_usd"]),
    )


def allowances_to_wire(team: Team) -> dict[str, Any]:
    """Return a team's fields of this module, every default written out."""
    document: dict[str, Any] = {
        "time_zone": team.time_zone,
        "budgets": _budgets_of(team.budgets, BudgetScope.TEAM, team.name),
    }
    if team.limits.is_limited:
        document["limits"] = limits_to_wire(team.limits)
    document["projects"] = _owners_to_wire(
        team.budgets, BudgetScope.PROJECT, "name", limits=team.project_limits, names=team.projects
    )
    document["keys"] = _owners_to_wire(team.budgets, BudgetScope.KEY, "key", limits=team.key_limits)
    return document


def cost_centre_to_wire(centre: CostCentre) -> dict[str, Any]:
    """Return the block of a cost centre."""
    return {
        "name": centre.name,
        "time_zone": centre.time_zone,
        "budgets": _budgets_of(centre.budgets, BudgetScope.COST_CENTRE, centre.name),
    }


def alerts_to_wire(alerts: Alerts) -> dict[str, str]:
    """Return the alerts block."""
    return {"webhook": alerts.webhook, "secret": alerts.secret}


def limits_to_wire(limits: Limits) -> dict[str, int | str]:
    """Return a limits block; fields without a limit are left out."""
    document = {
        "requests_per_minute": limits.requests_per_minute,
        "tokens_per_minute": limits.tokens_per_minute,
        "concurrent": limits.concurrent,
        "mode": "shadow" if limits.is_shadow else None,
    }
    return {name: most for name, most in document.items() if most is not None}


def _owners_to_wire(
    rules: tuple[BudgetRule, ...],
    scope: BudgetScope,
    field: str,
    *,
    limits: Mapping[str, Limits],
    names: Collection[str] = (),
) -> list[dict[str, Any]]:
    """Return the blocks of projects or keys.

    A block of limits without any limit is kept: it replaces that of `*`.
    """
    owners = dict.fromkeys(
        [*(rule.owner for rule in rules if rule.scope is scope), *limits, *sorted(names)]
    )
    return [
        {field: owner, "budgets": _budgets_of(rules, scope, owner)}
        | ({"limits": limits_to_wire(limits[owner])} if owner in limits else {})
        for owner in owners
    ]


def _budgets_of(
    rules: tuple[BudgetRule, ...], scope: BudgetScope, owner: str
) -> list[dict[str, Any]]:
    return [budget_to_wire(rule) for rule in rules if rule.scope is scope and rule.owner == owner]


def budget_to_wire(rule: BudgetRule) -> dict[str, Any]:
    """Return a budget's block. Its name is left out if it is the default name of such a budget."""
    document: dict[str, Any] = {
        "period": rule.period.value,
        "limit_usd": _plain(rule.limit_nusd),
        "kind": rule.kind.value,
        "alert_at": list(rule.alert_at),
        "overdraft_usd": _plain(rule.overdraft_nusd),
    }
    if rule.rule_id != rule_id(rule.scope, team=rule.team, owner=rule.owner, period=rule.period):
        document["name"] = rule.rule_id
    return document


def _plain(amount_nusd: int) -> Decimal:
    return Decimal(plain_usd(amount_nusd))
