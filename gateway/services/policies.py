"""Applying a policy document, pricing its deployments, and saying why a decision comes out as it does."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from hashlib import sha256
from typing import Any, Protocol

from gateway.domain import expectation_words
from gateway.domain.budgets import EACH, BudgetRule, BudgetScope
from gateway.domain.money import usd_from_nusd
from gateway.domain.policy import DataClass, Deployment, Operation, Policy, PolicyVersion, Team
from gateway.domain.pricing import Price, cost_nusd, lines
from gateway.domain.regions import UNKNOWN
from gateway.domain.request import unsent
from gateway.domain.routing import NONE_EJECTED, Candidate, Decision, Ranking, decide, find_route
from gateway.domain.selfhost import standard_price
from gateway.domain.tokens import TokenUsage
from gateway.errors import BadUsage, NothingFound
from gateway.wire.policy import effective, parse
from gateway.wire.policy.allowances import budget_to_wire

_ALLOWANCES = ("budget", "limits")  # kinds whose figures are shown when they come or go
_TAKEN_APART = ("budgets", "limits", "projects", "keys")  # fields of a team that are compared one by one


class StoredDocument(Protocol):
    """An applied document as the shelf keeps it."""

    @property
    def version(self) -> int: ...
    @property
    def sha256(self) -> str: ...
    @property
    def document(self) -> str: ...
    @property
    def is_demo(self) -> bool: ...


class PolicyShelf(Protocol):
    """Keeps every applied document; `storage.policies.PolicyStore` is one."""

    def current(self) -> StoredDocument | None:
        """The document in force."""

    def apply(
        self,
        document: str,
        *,
        sha256: str,
        author: str,
        message: str,
        is_demo: bool,
        expected_version: int | None,
        budgets: Sequence[BudgetRule],
    ) -> int:
        """Make a document the current one, with all the budgets it declares, and return its version."""


class Book(Protocol):
    """Stored prices, as they were read; `storage.prices.StoredBook` is one."""

    def override(self, deployment: Deployment, *, at: datetime) -> Price | None:
        """The price that `price add` set for a deployment at a moment."""

    def has_listed(self, deployment: Deployment) -> bool:
        """True where the list's price of its model was imported: then that counts, not the bundled list."""

    def listed(self, deployment: Deployment, *, at: datetime) -> Price | None:
        """The list price of its model at a moment, as imported."""


class PriceShelf(Protocol):
    """Keeps dated prices; `storage.prices.PriceStore` is one."""

    def book(self, deployments: Iterable[Deployment]) -> Book:
        """What is stored for these deployments."""

    def pin(self, deployments: Iterable[Deployment], *, author: str, reason: str) -> object:
        """Import the list's prices of models that the book does not have yet."""

    def ensure(self, prices: Mapping[str, Price], *, policy_version: int, at: datetime) -> object:
        """Write the prices that are not in force yet, from `at` on."""


class BuiltinPrices(Protocol):
    """The built-in price list; `storage.prices.builtin_price` is one."""

    def __call__(self, *, provider: str, model: str, base_url: str, at: datetime) -> Price | None:
        """The list's price of a model at a moment, None if it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What an apply did. `is_new` is False where the very same document was in force already."""

    version: int
    sha256: str
    is_new: bool
    policy: Policy
    prices: Mapping[str, Price]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference between two policies.

    `details` are `field: before → after`, for a change. A budget or limit that comes or goes has one: what it is.
    """

    verb: str  # added, removed or changed
    kind: str
    name: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one candidate. `rank` is None for one that lost; `reason` says why in words.

    `expected` is what an event would keep of it (`Expected.record`), `arithmetic` the same in words. `route` is the
    route that is degraded to, where it is that one's.
    """

    deployment: str
    region: str
    rank: int | None
    reason: str
    price: Price | None = None
    cost_usd: Decimal | None = None
    route: str | None = None
    expected: Mapping[str, object] | None = None
    arithmetic: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A decision in words, for one team, route and data class.

    `degraded` says why it goes elsewhere than the objective would send it; `basis` what the expectations stand on.
    """

    policy_version: int
    team: str
    route: str
    data_class: str
    outcome: str
    is_refused: bool
    verdicts: tuple[Verdict, ...]
    degraded: str | None = None
    basis: str = ""

    def record(self) -> dict[str, object]:
        """All but the candidates, which command line and HTTP show each in its own way."""
        record: dict[str, object] = {
            "policy_version": self.policy_version, "team": self.team, "route": self.route,
            "data_class": self.data_class, "outcome": self.outcome, "is_refused": self.is_refused,
        }  # fmt: skip
        if self.basis:
            record |= {"degraded": self.degraded, "basis": self.basis}
        return record


def apply_policy(
    document: str, *, policies: PolicyShelf, prices: PriceShelf, builtin: BuiltinPrices, author: str,
    message: str, now: datetime, is_demo: bool = False, expected_version: int | None = None,
) -> Applied:  # fmt: skip
    """Make a document the current policy and date its prices from now. Raises `PolicyRejected`.

    The same document again makes no version, but its prices are brought up to date: so an apply that was
    cut off between its two transactions is mended by repeating it.
    """
    policy = parse(document).policy
    digest = document_sha256(document)
    current = policies.current()
    is_new = current is None or current.sha256 != digest or current.is_demo != is_demo
    version = policies.apply(
        document, sha256=digest, author=author, message=message, is_demo=is_demo, expected_version=expected_version,
        budgets=policy.budgets,
    )  # fmt: skip
    deployments = policy.deployments.values()
    prices.pin(deployments, author=author, reason=f"first used by policy version {version}")
    found = prices_of(policy, at=now, builtin=builtin, book=prices.book(deployments))
    prices.ensure(found, policy_version=version, at=now)
    return Applied(version=version, sha256=digest, is_new=is_new, policy=policy, prices=found)


def document_sha256(document: str) -> str:
    """The hash that identifies a document, over its UTF-8 bytes."""
    return sha256(document.encode()).hexdigest()


def version_of(stored: StoredDocument) -> PolicyVersion:
    """The stored document, read. Raises `PolicyRejected` where this Tollgate is stricter than its writer."""
    return PolicyVersion(version=stored.version, sha256=stored.sha256, policy=parse(stored.document).policy)


def require_current(policies: PolicyShelf) -> PolicyVersion:
    """The policy in force. Raises `NothingFound` where none was applied yet."""
    stored = policies.current()
    if stored is None:
        raise NothingFound("No policy was applied yet. Write one and run: tollgate policy apply FILE")
    return version_of(stored)


def require_team(version: PolicyVersion, name: str) -> Team:
    """A team of the policy. Raises `NothingFound` with the nearest name."""
    teams = version.policy.teams
    if name not in teams:
        raise NothingFound(f"There is no team '{name}' in policy version {version.version}.{_near(name, teams)}")
    return teams[name]


def prices_of(policy: Policy, *, at: datetime, builtin: BuiltinPrices, book: Book | None = None) -> dict[str, Price]:
    """The price of each deployment at a moment; a deployment without any is absent. See `price_of`.

    Without a book (for a document that is not applied anywhere) the bundled list alone is asked.
    """
    found = {
        name: price_of(deployment, at=at, builtin=builtin, book=book) for name, deployment in policy.deployments.items()
    }
    return {name: price for name, price in found.items() if price is not None}


def price_of(deployment: Deployment, *, at: datetime, builtin: BuiltinPrices, book: Book | None) -> Price | None:
    """The price of one deployment at a moment, by the one order of precedence.

    The policy's own, else `price add`, else the GPU standard cost, else the list's (as imported, else as bundled),
    else the policy's stand-in. A self-hosted one never takes the list's: that is another's price.
    """
    if deployment.price is not None:
        return deployment.price
    override = None if book is None else book.override(deployment, at=at)
    if override is not None:
        return override
    if deployment.gpu is not None:
        return standard_price(deployment.gpu, model=deployment.model)
    listed = None if deployment.is_self_hosted else _list_price(deployment, at, builtin, book)
    return listed or deployment.stand_in_price


def unpriced(policy: Policy, prices: Mapping[str, Price]) -> tuple[str, ...]:
    """The deployments that nobody can be charged for: their requests are refused (`unpriced_model`)."""
    return tuple(name for name in policy.deployments if name not in prices)


def changes(before: Policy | None, after: Policy) -> tuple[Change, ...]:
    """What differs between two policies, in the order of the document."""
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


def decision_for(
    version: PolicyVersion, *, team: str, route: str, prices: Mapping[str, Price], day: date,
    data_class: str | None = None, data_tags: frozenset[str] = frozenset(), gateway_region: str = UNKNOWN,
    operation: Operation = Operation.CHAT, capabilities: frozenset[str] = frozenset(),
    features: frozenset[str] = frozenset(), ejected: Mapping[str, str] = NONE_EJECTED, is_degraded_to: bool = False,
) -> Decision:  # fmt: skip
    """Decide for a request that is not sent. Raises `NothingFound`, `BadUsage` or the caller's own error.

    A route that is degraded to need not be one of the team's.
    """
    policy = version.policy
    asking = require_team(version, team)
    wanted = _raised(policy, asking.data_class, data_class)
    return decide(
        version,
        team=asking,
        route=policy.routes[route] if is_degraded_to else find_route(policy, asking, route),
        data_class=wanted,
        data_tags=data_tags,
        ask=unsent(operation, route, capabilities=capabilities, features=features),
        prices=prices,
        gateway_region=gateway_region,
        day=day,
        ejected=ejected,
    )


def explain(
    decision: Decision, *, usage: TokenUsage | None = None, ranking: Ranking | None = None, basis: str = ""
) -> Explanation:
    """Every candidate with its rank or why it lost; with `usage`, what that many tokens would cost there.

    `ranking` is the order of a request, with what is expected of each; without it they stand as listed.
    """
    refusal = decision.refusal()
    ranked = decision.as_listed if ranking is None else ranking
    first = ranked.choices[0].candidate.deployment.name if ranked.choices else ""
    record = ranked.record
    why = expectation_words.degraded(record)
    return Explanation(
        policy_version=decision.policy.version,
        team=decision.team.name,
        route=decision.route.name,
        data_class=decision.class_label,
        outcome=refusal.message if refusal else f"Goes to {first}{f' ({why})' if why else ''}.",
        is_refused=refusal is not None,
        verdicts=tuple(_verdicts(decision, ranked, usage)),
        degraded=why,
        basis=basis,
    )


def _list_price(deployment: Deployment, at: datetime, builtin: BuiltinPrices, book: Book | None) -> Price | None:
    if book is not None and book.has_listed(deployment):
        return book.listed(deployment, at=at)
    return builtin(provider=deployment.provider, model=deployment.model, base_url=deployment.base_url, at=at)


def _by_name(policy: Policy | None) -> dict[tuple[str, str], Any]:
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
        # Each budget is a line of its own: nobody finds a changed number in a list of lists.
        mappings["team", team["name"]] = {name: value for name, value in team.items() if name not in _TAKEN_APART}
        mappings |= {("limits", owner): limits for owner, limits in _limits(team)}
    for centre in document["cost_centres"]:
        mappings["cost centre", centre["name"]] = {"time_zone": centre["time_zone"]}
    mappings |= {("budget", rule.rule_id): _budget(rule) for rule in policy.budgets}
    if "alerts" in document:
        mappings["alerts", "webhook"] = document["alerts"]
    return mappings


def _limits(team: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    blocks = [
        (team["name"], team),
        *((f"{team['name']}/project:{project['name']}", project) for project in team["projects"]),
        *((f"{team['name']}/key:{key['key']}", key) for key in team["keys"]),
    ]
    return ((owner, block["limits"]) for owner, block in blocks if "limits" in block)


def _budget(rule: BudgetRule) -> dict[str, Any]:
    fields = {name: value for name, value in budget_to_wire(rule).items() if name != "name"}
    return {"of": _whose(rule), **fields}


def _whose(rule: BudgetRule) -> str:
    match rule.scope:
        case BudgetScope.TEAM:
            return f"team {rule.team}"
        case BudgetScope.COST_CENTRE:
            return f"cost centre {rule.owner}"
        case scope:
            owner = f"each {scope}" if rule.owner == EACH else f"{scope} {rule.owner}"
            return f"{owner} of team {rule.team}"


def _allowance(was: Any, now: Any) -> tuple[str, ...]:
    if was is not None and now is not None:
        return _details(was, now)
    fields = was if now is None else now
    return (", ".join(f"{name}: {_short(value)}" for name, value in fields.items()) or "no limit",)


def _details(was: Any, now: Any) -> tuple[str, ...]:
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
    if value is None:
        return "—"
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_short(inner)}" for key, inner in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _raised(policy: Policy, own: DataClass, asked: str | None) -> DataClass:
    """The class a request would have. It may raise the team's class, never lower it."""
    if asked is None:
        return own
    if asked.upper() not in DataClass.__members__ or DataClass[asked.upper()] not in policy.classes:
        declared = [data_class.label for data_class in sorted(policy.classes)]
        raise NothingFound(f"There is no data class '{asked}' in the policy. Declared: {', '.join(declared)}.")
    wanted = DataClass[asked.upper()]
    if wanted < own:
        raise BadUsage(f"A request may raise its class, never lower it: the team's class is {own.label}, not {asked}.")
    return wanted


def _verdicts(decision: Decision, ranking: Ranking, usage: TokenUsage | None) -> Iterator[Verdict]:
    """The route's own candidates as it lists them, then those of a route that is degraded to."""
    ranks = {choice.candidate.deployment.name: rank for rank, choice in enumerate(ranking.choices)}
    for candidate in decision.candidates:
        yield _verdict(candidate, decision, ranking, rank=ranks.get(candidate.deployment.name), usage=usage)
    for rank, choice in enumerate(ranking.choices):
        if choice.decision is not decision:
            yield _verdict(choice.candidate, choice.decision, ranking, rank=rank, usage=usage)


def _verdict(
    candidate: Candidate, decision: Decision, ranking: Ranking, *, rank: int | None, usage: TokenUsage | None
) -> Verdict:
    deployment = candidate.deployment
    expected = ranking.expected[rank].record() if rank is not None and ranking.expected else None
    missed = () if expected is None else expectation_words.missed(expected, _bounds(decision))
    other = decision.route.name if decision is not ranking.decision else None
    return Verdict(
        deployment=deployment.name,
        region=deployment.region,
        rank=None if rank is None else rank + 1,
        reason="; ".join((_reason(candidate.obstacles) or _place(rank, decision), *missed, *_in_shadow(candidate))),
        price=candidate.price,
        cost_usd=_cost_usd(candidate.price, usage),
        route=other,
        expected=expected,
        arithmetic="" if expected is None else expectation_words.arithmetic(expected, candidate.price),
    )


def _bounds(decision: Decision) -> Mapping[str, Any]:
    return {"ttft_p95_s": decision.ttft_bound_s, "max_cost_nusd": decision.route.max_cost_nusd}


def _reason(obstacles: Sequence[Sequence[str]]) -> str:
    return "; ".join(detail for _, detail in obstacles)


def _in_shadow(candidate: Candidate) -> Iterator[str]:
    return (f"in shadow: {denial.why}" for denial in candidate.shadow)


def _place(rank: int | None, decision: Decision) -> str:
    objective = decision.route.objective
    return f"first by {objective}" if rank == 0 else f"eligible, but after others by {objective}"


def _cost_usd(price: Price | None, usage: TokenUsage | None) -> Decimal | None:
    if price is None or usage is None:
        return None
    try:
        return usd_from_nusd(cost_nusd(lines(usage, price)))
    except ValueError:  # tokens of a kind that this price does not cover
        return None


def _near(word: str, names: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(word, list(names), n=1)
    if near:
        return f" Did you mean '{near[0]}'?"
    return f" There is: {', '.join(sorted(names)) or 'none'}."
