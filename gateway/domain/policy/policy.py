"""Declares the policy as frozen, already valid values: deployments, routes, teams, data classes,
tags and regions; parses no document.

`wire.policy` reads the document and reports its errors; everything here is already valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from enum import IntEnum, StrEnum
from fnmatch import fnmatchcase
from fractions import Fraction
from functools import cached_property
from urllib.parse import urlsplit

from gateway.domain.budgets.budgets import Account, BudgetRule, BudgetScope, accounts_of
from gateway.domain.budgets.limits import NO_LIMITS, LimitedBy, Limits, limits_of_owner
from gateway.domain.operation import CONVERSATIONS, OF_OPENAI, ONLY_STATED, Operation
from gateway.domain.places.regions import ANY, RegionTree
from gateway.domain.policy import cost_centres
from gateway.domain.policy.cost_centres import CostCentreShare
from gateway.domain.policy.dashboard_roles import DashboardRoles
from gateway.domain.policy.idle_cost import IdleCost
from gateway.domain.policy.listed_members import bounded_members
from gateway.domain.policy.unlisted import REFUSE_UNLISTED, Unlisted
from gateway.domain.pricing.pricing import Price
from gateway.domain.pricing.selfhost import BilledHours, GpuRate
from gateway.domain.providers.facts import (
    Facts,
    Known,
    facts_of,
    host_of,
    known_of,
    provider_facts_of,
)
from gateway.domain.providers.hosted_tools import SearchModels, search_model
from gateway.domain.providers.known_hosts import Statement
from gateway.domain.providers.own_members import StreamUsage, asked_for
from gateway.domain.providers.table import OutputLimit, ProviderFacts
from gateway.domain.providers.unasked import Unasked, unasked_of


class DataClass(IntEnum):
    """The sensitivity of a request. A request may raise its class, never lower it."""

    PUBLIC = 0
    INTERNAL = 1
    CONFIDENTIAL = 2
    RESTRICTED = 3

    @property
    def label(self) -> str:
        """Return the data class's name in documents, headers and rows."""
        return self.name.lower()


DEFAULT_OPERATIONS = frozenset({Operation.CHAT, Operation.COMPLETIONS, Operation.RESPONSES})


def possible_operations(native: frozenset[Operation], facts: ProviderFacts) -> frozenset[Operation]:
    """Return the operations that a deployment can serve: those that it speaks itself, and every
    conversation, unless its dialect has no place for one.
    """
    return native | CONVERSATIONS if facts.takes_conversations else native


def default_operations(native: frozenset[Operation], facts: ProviderFacts) -> frozenset[Operation]:
    """Return the operations that a deployment serves if the policy names none: all possible ones,
    except those that must be stated.
    """
    return possible_operations(native, facts) - ONLY_STATED


def default_output_limit(provider: str, base_url: str) -> OutputLimit:
    """Return the members that carry the maximum output tokens at a provider, if the document does
    not name them.
    """
    return provider_facts_of(provider, base_url).output_limit


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencyRule:
    """The allowed places for requests of a data class, with a data tag or of a team.

    None and empty sets impose nothing.

    `rule_id` is `class:restricted`, `tag:phi` or `team:payments`. Allowing lists may hold `any`; an
    empty one allows nothing. A shadow rule denies nothing: its denials are counted and shown.
    """

    rule_id: str
    regions: frozenset[str] | None = None
    at_rest: frozenset[str] | None = None
    telemetry: frozenset[str] | None = None
    self_hosted_only: bool = False
    max_retention_days: int | None = None
    deny_regions: frozenset[str] = frozenset()
    deny_providers: frozenset[str] = frozenset()
    gateway_regions: frozenset[str] | None = None
    is_shadow: bool = False

    @property
    def restricts(self) -> bool:
        """Return True if the rule can deny something: one with `regions: [any]` and no other
        condition cannot.
        """
        lists = (self.regions, self.at_rest, self.telemetry, self.gateway_regions)
        return not self.is_shadow and (
            any(allowed is not None and ANY not in allowed for allowed in lists)
            or self.self_hosted_only
            or self.max_retention_days is not None
            or bool(self.deny_regions or self.deny_providers)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds.

    `first_token_s` bounds the wait for the first content: status and headers may come long before
    it.
    """

    connect_s: float = 2.0
    first_byte_s: float = 60.0
    first_token_s: float = 60.0
    idle_s: float = 60.0
    total_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyPrior:
    """A deployment's assumed latency before any observation, in seconds."""

    ttft_s: float = 0.5
    tpot_s: float = 0.02


# Every piece of an answer repeats the name that the caller sent, which a pattern matches at any
# length.
MOST_MODEL_CHARS = 256

# The features that no translation carries over: a translation is refused, or leaves them out.
LEFT_OUT = frozenset({"hosted_tools", "unknown_fields"})
_NONE: frozenset[str] = frozenset()


class FieldLoss(StrEnum):
    """The treatment of a request's field that has no place in the dialect of its upstream."""

    REFUSE = "refuse"
    DROP = "drop"


DEFAULT_ROUNDS = 4


class HostedToolsRule(StrEnum):
    """The treatment, under a hard budget, of a tool whose rounds have no bound at the
    provider.
    """

    REFUSE = "refuse"
    DROP = "drop"
    HOLD = "hold"


class PromptCache(StrEnum):
    """The teams that one cached prompt of a deployment serves."""

    SHARED = "shared"  # any team, and answers show callers no cached counts
    SEPARATE = "separate"  # the team that sent it
    TRUSTED = "trusted"  # any team: their admin accepts that one can find the prompts of another


_ANY_TEAM = frozenset({PromptCache.SHARED, PromptCache.TRUSTED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """References to the parts of a signing key (`env:NAME`, `file:PATH`), never the secrets.

    `is_ambient`: the identity that the platform gives to the gateway's own process.
    """

    access_key_id: str | None = None
    secret_access_key: str | None = None
    session_token: str | None = None
    is_ambient: bool = False


AMBIENT = Credentials(is_ambient=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Billing:
    """The provider's account, project and key that a deployment's requests are billed to; None is
    not stated.
    """

    account: str | None = None
    project: str | None = None
    key: str | None = None


def _salted(facts: ProviderFacts, prompt_cache: PromptCache | None) -> frozenset[Operation]:
    """Return the operations whose requests are sent the salt of their team."""
    is_asked = not facts.salts_if_stated or prompt_cache is PromptCache.SEPARATE
    return facts.salted if is_asked and prompt_cache not in _ANY_TEAM else frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One model at one provider in one region.

    `api_key` is a reference (`env:NAME`, `file:PATH`), never the secret. `stand_in_price` counts
    only while nothing else prices it. `capabilities` None means not declared: nothing is ruled out.
    `allows` lists request features (`domain.policy.request_fields`) that this deployment may
    receive although they store, fetch or send data elsewhere or control the engine. `residency` is
    the document's statement about its place besides `region`. Deployments of one `group` are
    replicas of one engine. `max_in_flight` is one worker's maximum of concurrent attempts there.
    `native` are the `operations` that the upstream speaks itself; the others are translated, and
    `untranslatable` decides what happens to a field without a place there. `credentials` stand
    instead of `api_key` if a provider signs its requests or takes the platform's identity.
    `prompt_cache` says whether teams share its cached prompts, None if its provider decides;
    `hides_cache` is True if callers may not see cached counts. Requests of the `salted` operations
    are sent the salt of their team, so that no other one can find their prompts by that cache.
    `output_limit` selects the member for the maximum tokens of an answer, and `stream_usage` the
    usage that streams are asked for, None for all that its provider reports. `refuses` are words
    of `own_members.REFUSABLE` that it is not sent. `api_version` goes in
    the query of each address. `billing` says which lines of the provider's bills are its own.
    `hosted_rounds` is the most rounds of the provider's own tools in one request under a hard
    budget, and `hosted_tools` decides about tools whose rounds have no bound there. `search_model`
    is set if its model searches by itself, and `unasked` has the other facts about its model.
    Under a hard budget `unlisted` decides on members whose effect on the cost is not known, and
    `listed` names those (parts too, as `reasoning.mode=pro`) that the operator knows to do nothing
    to it; `bounded_members` are those that each operation which it speaks itself may have.
    `provider_facts` is the provider's entry in the table of providers, for its host if that says
    more, with no more usage of streams than it is asked for; `address` is what its endpoints'
    addresses begin with.
    """

    name: str
    provider: str
    base_url: str
    model: str
    region: str
    is_self_hosted: bool
    residency: Statement | None = None
    api_key: str | None = None
    api_version: str | None = None
    gpu: GpuRate | None = None
    price: Price | None = None
    stand_in_price: Price | None = None
    idle_cost: IdleCost = field(default_factory=IdleCost)
    operations: frozenset[Operation] = DEFAULT_OPERATIONS
    native: frozenset[Operation] = OF_OPENAI
    untranslatable: FieldLoss = FieldLoss.REFUSE
    credentials: Credentials | None = None
    prompt_cache: PromptCache | None = None
    billing: Billing | None = None
    capabilities: frozenset[str] | None = None
    allows: frozenset[str] = frozenset()
    unlisted: Unlisted = REFUSE_UNLISTED
    listed: frozenset[str] = frozenset()
    context_window: int | None = None
    max_output_tokens: int | None = None
    output_limit: OutputLimit = OutputLimit.BOTH
    stream_usage: StreamUsage | None = None
    refuses: frozenset[str] = frozenset()
    input_overhead_tokens: int = 64
    limits: Limits = NO_LIMITS
    max_in_flight: int | None = None
    group: str | None = None
    prior: LatencyPrior | None = None
    timeouts: Timeouts = field(default_factory=Timeouts)
    hosted_rounds: int = DEFAULT_ROUNDS
    hosted_tools: HostedToolsRule = HostedToolsRule.REFUSE
    hides_cache: bool = field(init=False, repr=False, compare=False)
    search_model: SearchModels | None = field(init=False, repr=False, compare=False)
    unasked: Unasked = field(init=False, repr=False, compare=False)
    provider_facts: ProviderFacts = field(init=False, repr=False, compare=False)
    address: str = field(init=False, repr=False, compare=False)
    salted: frozenset[Operation] = field(init=False, repr=False, compare=False)
    bounded_members: Mapping[Operation, frozenset[str]] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Find its provider's facts, address and members: once, as each request reads them."""
        base = self.base_url.rstrip("/")
        known = provider_facts_of(self.provider, self.base_url)
        facts = asked_for(known, self.stream_usage, self.refuses)
        has_all = not facts.base_path or urlsplit(base).path
        searches = None if self.is_self_hosted else search_model(facts.name, self.model)
        object.__setattr__(self, "provider_facts", facts)
        object.__setattr__(self, "hides_cache", self.prompt_cache is PromptCache.SHARED)
        object.__setattr__(self, "search_model", searches)
        unasked = unasked_of(facts.name, self.model, host=host_of(self.base_url))
        object.__setattr__(self, "unasked", unasked)
        object.__setattr__(self, "address", base if has_all else base + facts.base_path)
        object.__setattr__(self, "salted", _salted(facts, self.prompt_cache))
        bounded = {one: bounded_members(facts.name, one) | self.listed for one in self.native}
        object.__setattr__(self, "bounded_members", bounded)

    @property
    def secret_references(self) -> tuple[str, ...]:
        """Return the references to all secrets that its requests need."""
        own = self.credentials or Credentials()
        found = (self.api_key, own.access_key_id, own.secret_access_key, own.session_token)
        return tuple(one for one in found if one is not None)

    @property
    def is_ambient(self) -> bool:
        """Return True if it uses the identity that the platform gives to the gateway's process."""
        return self.credentials is not None and self.credentials.is_ambient

    @property
    def drops_untranslatable(self) -> bool:
        """Return True if a field without a place in the upstream's dialect is left out."""
        return self.untranslatable is FieldLoss.DROP

    def translates(self, operation: Operation) -> bool:
        """Return True if a request of this operation is translated for the upstream."""
        return operation not in self.native

    def may_adapt(self, operation: Operation) -> bool:
        """Return True if a request of this operation may have to change for the upstream in more
        than the gateway's own members.
        """
        return operation not in self.native or self.provider_facts.adapts_requests

    def unsent_features(self, operation: Operation) -> frozenset[str]:
        """Return the features of a request that its translation leaves out, so that they need no
        permission.
        """
        return LEFT_OUT if self.drops_untranslatable and self.translates(operation) else _NONE

    @property
    def facts(self) -> Facts:
        """Return the facts about its place, from the document and from the bundled host data."""
        return facts_of(
            self.provider, self.base_url, self.region, self.is_self_hosted, self.residency
        )

    def known_on(self, day: date, valid_days: int | None) -> Known:
        """Return the facts about the deployment's place that are valid on a day."""
        # If nothing expires the day does not matter, and a new one would miss the cache.
        return known_of(
            self.provider,
            self.base_url,
            self.region,
            self.is_self_hosted,
            self.residency,
            day if valid_days is not None else None,
            valid_days,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """The weights of cost and latency under the objective `balanced`."""

    cost: float = 0.5
    latency: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The public model name that a team requests, and its deployments in order of preference.

    `max_output_tokens` is sent upstream if the caller gives no maximum. `shadow_deployments` are
    ranked beside the others; their ranks are recorded and never followed. `ttft_p95_s` and
    `max_cost_nusd` bound the prediction for one request. `degrade_to` is the route whose
    deployments follow if none of this one's meets the bounds. `weights` has each deployment's
    weight if the objective is `weighted`, else nothing. `timeout_s` is for all attempts together.
    """

    name: str
    deployments: tuple[str, ...]
    shadow_deployments: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    objective: str = "priority"
    balance: Balance = field(default_factory=Balance)
    weights: Mapping[str, float] = field(default_factory=dict)
    ttft_p95_s: float | None = None
    max_cost_nusd: int | None = None
    degrade_to: str | None = None
    timeout_s: float = 600.0
    max_output_tokens: int | None = None

    @property
    def is_bounded(self) -> bool:
        """Return True if the route bounds the latency or the cost of a request."""
        return self.ttft_p95_s is not None or self.max_cost_nusd is not None

    @property
    def members(self) -> tuple[str, ...]:
        """Return the route's deployments, those in its shadow too."""
        return self.deployments + self.shadow_deployments

    def answers_to(self, model: str) -> bool:
        """Return True if `model` is this route's name or matches one of its aliases
        (`gpt-4o-*`).
        """
        return model == self.name or any(fnmatchcase(model, alias) for alias in self.aliases)


class Priority(StrEnum):
    """A team's priority for the best deployment when it fills up."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


class EndUserRule(StrEnum):
    """The ledger's treatment of a request's end-user name."""

    HASH = "hash"  # a keyed hash: the same person is recognised without being named
    KEEP = "keep"


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """A paying team.

    `budgets` are all of the team's rules: its own, its projects' and its keys'. `project_limits`
    and `key_limits` are by name or key id; `*` is for each unnamed one. `data_tags` apply to every
    request. `projects` are the declared names. `cost_centre` is one for all days, or several with
    shares and dates.
    """

    name: str
    cost_centre: str | tuple[CostCentreShare, ...]
    data_class: DataClass
    routes: tuple[str, ...]
    data_tags: frozenset[str] = frozenset()
    residency: ResidencyRule | None = None
    end_user: EndUserRule = EndUserRule.HASH
    priority: Priority = Priority.NORMAL
    time_zone: str = "UTC"
    budgets: tuple[BudgetRule, ...] = ()
    limits: Limits = NO_LIMITS
    projects: frozenset[str] = frozenset()
    project_limits: Mapping[str, Limits] = field(default_factory=dict)
    key_limits: Mapping[str, Limits] = field(default_factory=dict)
    # True if its cost centre may depend on the day: kept, because each request asks.
    has_dated_cost_centre: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Note whether the cost centre has dates."""
        object.__setattr__(self, "has_dated_cost_centre", not isinstance(self.cost_centre, str))

    @property
    def cost_centre_names(self) -> frozenset[str]:
        """Return every cost centre that it has on some day."""
        centre = self.cost_centre
        return frozenset([centre] if isinstance(centre, str) else (one.name for one in centre))

    def cost_centre_on(self, day: date | None) -> str:
        """Return the cost centre of its events on a UTC day, the one with the largest share.

        None is for a team whose cost centre does not depend on the day.
        """
        if isinstance(self.cost_centre, str):
            return self.cost_centre
        assert day is not None, "the cost centre depends on the day"
        return cost_centres.largest_on(self.cost_centre, day)

    def shares_on(self, day: date) -> Mapping[str, Fraction]:
        """Return the exact shares of its cost centres on a UTC day; they add up to 1."""
        if isinstance(self.cost_centre, str):
            return {self.cost_centre: Fraction(1)}
        return cost_centres.shares_on(self.cost_centre, day)

    @property
    def declares_projects(self) -> bool:
        """Return True if a request may name only declared projects: any other name would avoid a
        hard budget.
        """
        return any(rule.scope is BudgetScope.PROJECT and rule.is_hard for rule in self.budgets)

    def limits_for(self, *, project: str | None, key_id: str) -> tuple[LimitedBy, ...]:
        """Return the limits of a request: the team's, its project's and its key's; empty without
        limits.
        """
        found = [
            (self.name, self.limits),
            (f"{self.name}/project:{project}", limits_of_owner(self.project_limits, project)),
            (f"{self.name}/key:{key_id}", limits_of_owner(self.key_limits, key_id)),
        ]
        return tuple((limit_id, limits) for limit_id, limits in found if limits.is_limited)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostCentre:
    """A cost centre of several teams, with budgets for all of them together.

    `full_name` and `owner` are for people: its title, and who answers for it.
    """

    name: str
    full_name: str | None = None
    owner: str | None = None
    time_zone: str = "UTC"
    budgets: tuple[BudgetRule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Alerts:
    """The receivers of alerts, and the spikes that raise one.

    `secret` is a reference (`env:NAME`, `file:PATH`) to the webhook's signing key; both or neither.
    Without `spikes_above_nusd` no spike raises an alert.
    """

    webhook: str | None = None
    secret: str | None = None
    email: tuple[str, ...] = ()
    spikes_above_nusd: int | None = None

    @property
    def has_receiver(self) -> bool:
        """Return True if alerts go anywhere but into log and metrics."""
        return self.webhook is not None or bool(self.email)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """One valid document.

    `regions` are the declared ones, parent to children; names are unique within their kind.

    `facts_valid_days` is the maximum age of a deployment's fact; None: they do not expire.
    """

    regions: Mapping[str, tuple[str, ...]]
    classes: Mapping[DataClass, ResidencyRule]
    deployments: Mapping[str, Deployment]
    routes: Mapping[str, Route]
    teams: Mapping[str, Team]
    cost_centres: Mapping[str, CostCentre] = field(default_factory=dict)
    data_tags: Mapping[str, ResidencyRule] = field(default_factory=dict)
    facts_valid_days: int | None = None
    alerts: Alerts | None = None
    dashboard: DashboardRoles | None = None

    @cached_property
    def region_tree(self) -> RegionTree:
        """Return the policy's regions together with the built-in ones."""
        return RegionTree(self.regions)

    @property
    def always_billed(self) -> tuple[str, ...]:
        """Return the deployments whose GPUs are paid for in every hour."""
        return tuple(
            one.name
            for one in self.deployments.values()
            if one.gpu is not None and one.gpu.hours is BilledHours.ALWAYS
        )

    @property
    def budgets(self) -> tuple[BudgetRule, ...]:
        """Return every declared budget of the policy."""
        of_teams = [rule for team in self.teams.values() for rule in team.budgets]
        return (
            *of_teams,
            *(rule for centre in self.cost_centres.values() for rule in centre.budgets),
        )

    def accounts(
        self, team: Team, *, project: str | None, key_id: str, day: date | None
    ) -> tuple[Account, ...]:
        """Return the budget accounts of a request of this team on a UTC day, in the order of their
        names; the day may be None for a team whose cost centre does not depend on it.
        """
        centre = self.cost_centres.get(team.cost_centre_on(day))
        shared = centre.budgets if centre is not None else ()
        return accounts_of(team.budgets, cost_centre=shared, project=project, key_id=key_id)

    @cached_property
    def _route_by_name(self) -> dict[str, Route]:
        """Return the routes by their names and exact aliases; a name takes precedence over an
        alias.
        """
        exact = {
            alias: route
            for route in self.routes.values()
            for alias in route.aliases
            if "*" not in alias
        }
        return exact | dict(self.routes)

    def route_for(self, model: str) -> Route | None:
        """Return the route of a model name: by its name first, then exact aliases, then patterns
        in order.
        """
        found = self._route_by_name.get(model)
        if found is None and len(model) > MOST_MODEL_CHARS:
            return None
        return found or next((r for r in self.routes.values() if r.answers_to(model)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVersion:
    """An applied document: immutable, numbered, hashed."""

    version: int
    sha256: str
    policy: Policy
