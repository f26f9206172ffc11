"""Declares the blocks of teams, projects, keys, cost centres, budgets and alerts in a policy
document, and converts them to domain values and back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Self

from gateway.domain.alerts.mail import MOST_RECIPIENTS
from gateway.domain.budgets.budgets import (
    EACH,
    BudgetKind,
    BudgetPeriod,
    BudgetRule,
    BudgetScope,
    rule_id,
)
from gateway.domain.budgets.limits import Limits
from gateway.domain.policy.policy import Alerts, CostCentre, DataClass, EndUserRule, Priority, Team
from gateway.domain.words import listed
from gateway.wire.policy.cost_shares import CostCentres
from gateway.wire.policy.limits import LimitsBlock
from gateway.wire.policy.residency import ResidencyRuleBlock
from gateway.wire.policy.scalars import (
    LABELS,
    MOST_USD,
    Address,
    BudgetName,
    KeyId,
    MailAddresses,
    ModelName,
    Name,
    Names,
    ProjectName,
    SecretReference,
    TimeZone,
    Words,
    dollars,
)
from gateway.wire.yaml_blocks.blocks import Block, Items, optional, required
from gateway.wire.yaml_blocks.scalars import converted, decimal, member_of, one_of

_CLASS = converted(one_of(LABELS), lambda label: DataClass[label.upper()], lambda one: one.label)
_SHARE = decimal("a share of the limit", above="0", most="10")
Shares = Annotated[list[Annotated[Decimal, _SHARE]], Items(is_unique=True)]


class BudgetBlock(Block):
    """A budget of one owner."""

    title = "budget"
    makes = BudgetRule
    period: Annotated[BudgetPeriod, member_of(BudgetPeriod)] = required(
        f"How long it lasts, of {listed(BudgetPeriod)}. A week begins on Monday, `once` never "
        "begins again.",
        "month",
    )
    limit_nusd: Annotated[int, dollars(above="0")] = required(
        f"Most USD in one period, to the nano-dollar, up to {MOST_USD}.", "5000", alias="limit_usd"
    )
    kind: Annotated[BudgetKind, member_of(BudgetKind)] = optional(
        "`hard` refuses requests beyond it; `soft` only counts and alerts.", "soft", BudgetKind.HARD
    )
    alert_at: Shares | None = optional(
        "Shares of the limit, up to 10, at which an alert is sent, once a period each.",
        "[0.5, 0.8, 1.0]",
        shown="`[]`",
    )
    overdraft_nusd: Annotated[int, dollars(least="0")] = optional(
        "The amount that each replica may spend beyond its lease while the database is "
        "away; only for `hard`.",
        "1",
        0,
        alias="overdraft_usd",
    )
    rule_id: BudgetName | None = optional(
        "Unique name; needed for a second budget of the same owner and period.",
        "pilot-2026",
        shown="its owner and period, as in `payments/month`",
        alias="name",
    )

    @classmethod
    def of_value(cls, value: Any, **others: Any) -> Self:
        """Return the block of a budget; a default name is left out."""
        default = rule_id(value.scope, team=value.team, owner=value.owner, period=value.period)
        name = None if value.rule_id == default else value.rule_id
        return super().of_value(value, rule_id=name, **others)


Budgets = Annotated[list[BudgetBlock], Items()] | None


class ProjectBlock(Block):
    """A project's budgets and limits."""

    title = "project"
    name: ProjectName = required(
        'The project, as requests or keys name it; `"*"` is each that is not named here, '
        "by itself.",
        "checkout",
    )
    budgets: Budgets = optional(
        "The budgets of each.", "[{period: day, limit_usd: 20}]", shown="`[]`"
    )
    limits: LimitsBlock | None = optional(
        "How much each may ask at once.", "{requests_per_minute: 60}"
    )


class KeyBlock(Block):
    """An API key's budgets and limits."""

    title = "key"
    key: KeyId = required(
        'The key\'s id, as `tollgate key list` shows it; `"*"` is each that is not named '
        "here, by itself.",
        "0A1b2C3d4E",
    )
    budgets: Budgets = optional(
        "The budgets of each.", "[{period: day, limit_usd: 20}]", shown="`[]`"
    )
    limits: LimitsBlock | None = optional(
        "How much each may ask at once.", "{requests_per_minute: 60}"
    )


class CostCentreBlock(Block):
    """A cost centre: its title, its owner, and the budgets of its teams together."""

    title = "cost centre"
    makes = CostCentre
    name: Words = required("The `cost_centre` of the teams that it is about.", "CC-1207")
    full_name: Words | None = optional("Its title, for people.", "Payments platform", alias="title")
    owner: Words | None = optional("Who answers for it, for people.", "ana@example.com")
    time_zone: TimeZone = optional(
        "IANA time zone in which the periods of its budgets begin.", "Europe/Berlin", "UTC"
    )
    budgets: Budgets = optional(
        "The budgets of its teams together.", "[{period: month, limit_usd: 20000}]", shown="`[]`"
    )

    def value(self, **others: Any) -> Any:
        """Return the cost centre that this block declares."""
        budgets = tuple(declared.rule(self.time_zone) for declared in _of_centre(self))
        return super().value(budgets=budgets, **others)


class AlertsBlock(Block):
    """The receivers of alerts, the reference to the signing secret, and the spikes that alert."""

    title = "alerts block"
    makes = Alerts
    webhook: Address | None = optional(
        "Address that each alert is posted to; needs `secret`. `http://` only on this machine or a "
        "private network.",
        "https://hooks.example/x",
    )
    secret: SecretReference | None = optional(
        "Reference to the secret that signs alerts: `env:NAME` or `file:/absolute/path`; "
        "never the secret.",
        "env:TOLLGATE_ALERT_SECRET",
    )
    email: MailAddresses | None = optional(
        f"Addresses, up to {MOST_RECIPIENTS}, that each alert is mailed to. The gateways need "
        "`TOLLGATE_SMTP_URL`.",
        "[finops@example.com]",
        shown="`[]`",
    )
    spikes_above_nusd: Annotated[int, dollars(least="0")] | None = optional(
        "Alert once for each day on which a team spent more than on its usual weekday, by more "
        "than this many USD.",
        "50",
        shown="none: spikes raise no alert",
        alias="spikes_above_usd",
    )


class TeamBlock(Block):
    """A team, which calls and pays."""

    title = "team"
    makes = Team
    sets = ("data_tags",)
    name: Name = required("Unique name of the paying team.", "payments")
    cost_centre: CostCentres = required(
        "Cost centre in finance, or a list of them with shares and dates.", "CC-1207"
    )
    data_class: Annotated[DataClass, _CLASS] = required(
        "The least class of its requests; a request may raise it, never lower it.", "confidential"
    )
    routes: Annotated[list[ModelName], Items()] = required("Routes it may call.", "[assistant]")
    data_tags: Names | None = optional(
        "Data tags of all its requests; a request may add others.", "[phi]", shown="`[]`"
    )
    residency: ResidencyRuleBlock | None = optional(
        "A rule for all its requests, besides those of their class and tags.",
        "{deny_providers: [openai]}",
    )
    end_user: Annotated[EndUserRule, member_of(EndUserRule)] = optional(
        "The ledger's form of a request's `user`: `hash` a keyed hash of it, `keep` the "
        "name itself.",
        "keep",
        EndUserRule.HASH,
    )
    priority: Annotated[Priority, member_of(Priority)] = optional(
        "Precedence when capacity is short: `high`, `normal` or `low`; for `low` a "
        "route's latency bound counts at half.",
        "low",
        Priority.NORMAL,
    )
    time_zone: TimeZone = optional(
        "IANA time zone in which the periods of its budgets begin.", "Europe/Berlin", "UTC"
    )
    budgets: Budgets = optional(
        "The whole team's budgets.", "[{period: month, limit_usd: 5000}]", shown="`[]`"
    )
    limits: LimitsBlock | None = optional(
        "How much the whole team may ask at once.", "{requests_per_minute: 600, concurrent: 50}"
    )
    projects: Annotated[list[ProjectBlock], Items()] | None = optional(
        "Budgets and limits of single projects, besides the team's.",
        "[{name: checkout, budgets: [...]}]",
        shown="`[]`",
    )
    key_limits: Annotated[list[KeyBlock], Items()] | None = optional(
        "Budgets and limits of single API keys, besides the team's.",
        '[{key: "*", limits: {...}}]',
        shown="`[]`",
        alias="keys",
    )

    def value(self, **others: Any) -> Any:
        """Return the team with all its budgets: its own, its projects' and its keys'."""
        projects, rule = self.projects or [], self.residency
        return super().value(
            residency=rule and rule.value(rule_id=f"team:{self.name}"),
            budgets=tuple(declared.rule(self.time_zone) for declared in _of_team(self)),
            projects=frozenset(project.name for project in projects) - {EACH},
            project_limits=_limits_by("name", projects),
            key_limits=_limits_by("key", self.key_limits or []),
            **others,
        )

    @classmethod
    def of_value(cls, value: Any, **others: Any) -> Self:
        """Return the block of a team, with every default written out."""
        rules, named, limits = value.budgets, value.projects, LimitsBlock.of_limits(value.limits)
        projects = _owners(rules, BudgetScope.PROJECT, value.project_limits, names=named)
        keys = _owners(rules, BudgetScope.KEY, value.key_limits)
        return super().of_value(
            value,
            budgets=[BudgetBlock.of_value(r) for r in rules if r.scope is BudgetScope.TEAM],
            limits=limits,
            projects=[ProjectBlock.model_construct(name=o, **rest) for o, rest in projects],
            key_limits=[KeyBlock.model_construct(key=owner, **rest) for owner, rest in keys],
            **others,
        )


@dataclass(frozen=True, slots=True)
class Declared:
    """A budget as declared in the document, with the readable facts about its owner."""

    scope: BudgetScope
    team: str | None
    owner: str | None
    block: BudgetBlock

    @property
    def identity(self) -> str | None:
        """The budget's id; None if errors prevent its computation."""
        if self.block.has("name"):
            return self.block.of("name")  # type: ignore[no-any-return]  # a name or None
        period = self.block.of("period")
        has_team = self.team is not None or self.scope is BudgetScope.COST_CENTRE
        if period is None or self.owner is None or not has_team:
            return None
        return rule_id(self.scope, team=self.team, owner=self.owner, period=period)

    def rule(self, time_zone: str) -> BudgetRule:
        """Return the declared budget as a rule of the policy, if the document is valid."""
        assert self.identity is not None, "a valid budget has an identity"
        rule: BudgetRule = self.block.value(
            rule_id=self.identity,
            scope=self.scope,
            team=self.team,
            owner=self.owner,
            # One spelling per share: 0.50 and 0.5 are the same alert in every version.
            alert_at=tuple(_one_spelling(at) for at in sorted(self.block.alert_at or ())),
            time_zone=time_zone,
        )
        return rule


def _one_spelling(share: Decimal) -> Decimal:
    """Return a share with one spelling: 0.50 and 0.5 are the same alert threshold."""
    return Decimal(f"{share.normalize():f}")


def declared_budgets(document: Block) -> Iterator[Declared]:
    """Yield every budget of a document, in the order of `Policy.budgets`."""
    for team in document.blocks_of("teams"):
        yield from _of_team(team)
    for centre in document.blocks_of("cost_centres"):
        yield from _of_centre(centre)


def _of_centre(centre: CostCentreBlock) -> Iterator[Declared]:
    """Yield the declared budgets of a cost centre."""
    for budget in centre.blocks_of("budgets"):
        yield Declared(BudgetScope.COST_CENTRE, None, centre.of("name"), budget)


def _of_team(team: TeamBlock) -> Iterator[Declared]:
    """Yield the declared budgets of a team, of its projects and of its keys."""
    name = team.of("name")
    for budget in team.blocks_of("budgets"):
        yield Declared(BudgetScope.TEAM, name, name, budget)
    owned = (("projects", BudgetScope.PROJECT, "name"), ("keys", BudgetScope.KEY, "key"))
    for field, scope, named in owned:
        for owner in team.blocks_of(field):
            for budget in owner.blocks_of("budgets"):
                yield Declared(scope, name, owner.of(named), budget)


def _limits_by(field: str, owners: Any) -> dict[str, Limits]:
    """Return the limits of each project or key that declares some, by its name."""
    return {getattr(one, field): one.limits.value() for one in owners if one.limits is not None}


def _owners(
    rules: tuple[BudgetRule, ...],
    scope: BudgetScope,
    limits: Mapping[str, Limits],
    *,
    names: Collection[str] = (),
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each project or key with its budgets and limits.

    A block of limits without any limit is kept: it replaces that of `*`.
    """
    budgets = [rule for rule in rules if rule.scope is scope]
    for owner in dict.fromkeys([*(rule.owner for rule in budgets), *limits, *sorted(names)]):
        own = [BudgetBlock.of_value(rule) for rule in budgets if rule.owner == owner]
        limited = LimitsBlock.of_value(limits[owner]) if owner in limits else None
        yield owner, {"budgets": own, "limits": limited}
