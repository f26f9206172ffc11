"""Finds facts in a valid policy that its author should know and that are no errors: unused names,
unlimited teams, avoidable budgets.

Each note has a path in the policy's document: fields by name, and list positions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from datetime import date
from fnmatch import fnmatchcase
from typing import TypeAlias
from urllib.parse import urlsplit

from gateway.domain.budgets.budgets import BudgetPeriod, BudgetRule, BudgetScope
from gateway.domain.money import plain_usd
from gateway.domain.operation import CONVERSATIONS, Operation
from gateway.domain.places.regions import ANY, KNOWN, UNKNOWN, UNPLACED
from gateway.domain.policy.policy import (
    Deployment,
    HostedToolsRule,
    Policy,
    ResidencyRule,
    Route,
    Team,
)
from gateway.domain.pricing.tokens import TokenKind
from gateway.domain.providers.known_hosts import known_place
from gateway.domain.providers.place_prices import premium_at
from gateway.domain.providers.table import OPENAI_COMPATIBLE, ProviderFacts, provider_at
from gateway.domain.residency.rules import denials, rules_for
from gateway.domain.words import few, shown

Path: TypeAlias = tuple[str | int, ...]
Note: TypeAlias = tuple[Path, str]
MOST_PATTERNS = 500  # each alias is compared with so many; with all, 20,000 would take two minutes
OF_ONE_VERSION = "/openai/deployments/"  # Azure OpenAI's addresses of one deployment
_MODEL_IN_PATH = ("gemini", "vertex")
# Cost centres of these names are served: reports and exports show them as any other.
_WORDS_OF_REPORTS = {
    "all": "the word of 'report schedule add' for each cost centre",
    "unallocated": "the word of reports for what has no cost centre, whose statement is not sent",
    "(none)": "the word of the dashboard's filters for no value",
}
_VERSIONED = re.compile(r"/v\d+[a-z0-9]*/?$")


def notes_on(policy: Policy) -> Iterator[Note]:
    """Yield notes on a policy, each with its path in the document."""
    yield from _on_regions(policy)
    yield from _on_classes(policy)
    yield from _on_shadows(policy)
    yield from _on_deployments(policy)
    yield from _on_routes(policy)
    yield from _on_teams(policy)
    yield from _on_cost_centres(policy)
    yield from _on_names(policy)
    yield from _on_budgets(policy)
    names = [team.name for team in policy.teams.values() if not _has_budget_or_limit(team, policy)]
    if names:
        yield ("teams",), f"unlimited: {few(names)} (no budgets and no limits)"
    shared = [one.name for one in policy.deployments.values() if _shares_prompts(one, policy)]
    if shared:
        yield (
            ("deployments",),
            f"teams share the cached prompts of {few(shared)}: cached tokens tell a team whether "
            "another one sent a text; write 'prompt_cache: shared' to hide them and the costs from "
            "callers, 'trusted' to accept it, 'separate' if the upstream keeps them apart, or give "
            "each team a deployment of its own",
        )


def _shares_prompts(deployment: Deployment, policy: Policy) -> bool:
    """Return True if several teams may find cached prompts of each other at a deployment, and the
    policy does not say so.
    """
    if deployment.prompt_cache is not None:
        return False
    asked = deployment.operations & CONVERSATIONS
    sent = {one if one in deployment.native else Operation.CHAT for one in asked}
    if sent <= deployment.salted:
        return False
    routes = {name for name, one in policy.routes.items() if deployment.name in one.deployments}
    return sum(not routes.isdisjoint(team.routes) for team in policy.teams.values()) > 1


def _on_regions(policy: Policy) -> Iterator[Note]:
    """Yield a note for each declared region that a built-in region contains already."""
    for parent, children in policy.regions.items():
        for at, child in enumerate(children):
            if child in KNOWN and parent in KNOWN:
                message = f"changes nothing: '{child}' lies in '{parent}' as everybody knows"
                yield ("regions", parent, at), message


def _on_classes(policy: Policy) -> Iterator[Note]:
    """Yield notes on data classes that deny every request, or allow more than a lower class."""
    ordered = sorted(policy.classes.items())
    for data_class, rule in ordered:
        path = ("classes", data_class.label)
        if not rule.regions and not rule.is_shadow:
            yield path, "lists no region: every request of this class is denied"
        for lower, lower_rule in ordered:
            if lower < data_class and (wider := _extra_permissions(rule, lower_rule, policy)):
                message = f"allows {wider}, which the lower class {lower.label} does not"
                yield path, f"{message}; is that meant?"


def _extra_permissions(rule: ResidencyRule, lower: ResidencyRule, policy: Policy) -> str:
    """Return the permissions that a higher class has and a lower one lacks: raising a request's
    class would gain them.
    """
    if lower.is_shadow:
        return ""
    if rule.is_shadow:
        return "everything (mode: shadow)"
    if lower.self_hosted_only and not rule.self_hosted_only:
        return "deployments that are not self-hosted"
    allowed, mine = lower.regions or frozenset(), rule.regions or frozenset()
    if ANY in allowed:
        return ""
    if ANY in mine:
        return "every region"
    covered = policy.region_tree.covered
    return ", ".join(sorted(region for region in mine if not covered(region, allowed)))


def _on_shadows(policy: Policy) -> Iterator[Note]:
    """Yield a note for each residency rule in shadow mode, which denies nothing."""
    rules: list[tuple[Path, ResidencyRule | None]] = [
        *((("classes", one.label), rule) for one, rule in policy.classes.items()),
        *((("data_tags", tag), rule) for tag, rule in policy.data_tags.items()),
        *((("teams", at, "residency"), t.residency) for at, t in enumerate(policy.teams.values())),
    ]
    for path, rule in rules:
        if rule is not None and rule.is_shadow:
            yield (*path, "mode"), "denies nothing; its denials are only counted and shown"


def _on_deployments(policy: Policy) -> Iterator[Note]:
    """Yield notes on deployments: unused ones, and doubts about their region, address or price."""
    used = {name for route in policy.routes.values() for name in route.deployments}
    has_hard = any(rule.is_hard for rule in policy.budgets)
    for at, deployment in enumerate(policy.deployments.values()):
        name = deployment.name
        if name not in used:
            yield ("deployments", at, "name"), f"no route uses deployment '{name}'"
        for field, message in (*_on_place(deployment), *_on_price(deployment)):
            yield ("deployments", at, field), message
        if has_hard:
            for field, message in _on_rounds(deployment):
                yield ("deployments", at, field), message


def _on_rounds(deployment: Deployment) -> Iterator[tuple[str, str]]:
    """Yield notes on a deployment whose requests a hard budget refuses."""
    model = deployment.search_model
    if (
        model is not None
        and model.is_unbounded
        and deployment.hosted_tools is not HostedToolsRule.HOLD
    ):
        yield (
            "model",
            "nothing bounds its rounds: hard budgets refuse it without 'hosted_tools: hold'",
        )
    if deployment.context_window is not None:
        return
    if "hosted_tools" in deployment.allows:
        yield "allows", "hard budgets refuse these tools here: they need 'context_window'"
    if model is not None:
        yield "model", "it searches by itself: hard budgets refuse it without 'context_window'"
    if deployment.unasked.thinks_beyond:
        yield "model", "no maximum bounds its thinking: hard budgets need 'context_window'"


def _on_place(deployment: Deployment) -> Iterator[tuple[str, str]]:
    """Yield notes on a deployment's provider, region and base address, each with its field."""
    named = provider_at(deployment.facts.host)
    if named is not None and deployment.provider == OPENAI_COMPATIBLE:
        yield "provider", f"this host is {named.title}'s; write 'provider: {named.name}'"
    elif named is not None and deployment.provider != named.name:
        yield (
            "provider",
            f"this host is {named.title}'s, which 'provider: {named.name}' is for; is "
            f"'{deployment.provider}' meant?",
        )
    # If the deployment names its own source, its author has checked the provider's caveat.
    known = known_place(deployment.facts.host)
    has_own = deployment.residency is not None and deployment.residency.source
    if known is not None and known.caveat and not has_own and deployment.region not in UNPLACED:
        yield "region", known.caveat
    address = _address_note(deployment, named)
    if address is not None:
        yield "base_url", address


def _address_note(deployment: Deployment, named: ProviderFacts | None) -> str | None:
    """Return a note on a base address that its provider's requests would hardly answer, or None.

    `named` is the provider whose usual host it is.
    """
    path = urlsplit(deployment.base_url).path.rstrip("/")
    facts = deployment.provider_facts
    if facts.takes_api_version and OF_ONE_VERSION in path:
        if deployment.api_version is not None:
            return None
        return (
            f"an address below {OF_ONE_VERSION}NAME answers 404 without a version; write "
            "'api_version: \"2024-10-21\"', or an address below /openai/v1, which needs none"
        )
    if named is not None and named.name == deployment.provider:
        if named.is_address_path(path):
            return None
        return f"{named.title}'s address is written '{named.addresses[0]}'; is this one meant?"
    # Engines and OpenAI serve under a version, others may serve at their root.
    is_complete = not path and (facts.base_path or facts.is_own_dialect)
    wants_version = deployment.provider in {"vllm", "openai"} or deployment.is_self_hosted
    if is_complete or not wants_version or _VERSIONED.search(path):
        return None
    address = f"{deployment.base_url.rstrip('/')}/chat/completions"
    return f"does not end in /v1, so chat goes to {address}; is that meant?"


def _on_price(deployment: Deployment) -> Iterator[tuple[str, str]]:
    """Yield notes on a deployment's price, each with its field: missing, free, or without image
    rates.
    """
    price, name = deployment.price, deployment.name
    yield from _on_place_price(deployment)
    if deployment.is_self_hosted and not (deployment.gpu or price or deployment.stand_in_price):
        yield (
            "name",
            f"self-hosted deployment '{name}' has neither 'gpu' nor 'price': "
            "without a price its requests are refused (unpriced_model)",
        )
    if price and not any(rate.usd_per_mtok for rate in price.rates):
        yield "price", f"deployment '{name}' is free: all its rates are 0"
    has_images = price and any(rate.kind is TokenKind.IMAGE_INPUT for rate in price.rates)
    if price and "vision" in (deployment.capabilities or ()) and not has_images:
        yield (
            "price",
            f"deployment '{name}' has vision, but its price has no image_input_usd_per_mtok: if "
            "the upstream reports image tokens separately, their cost stays unknown and is held",
        )


def _on_place_price(deployment: Deployment) -> Iterator[tuple[str, str]]:
    """Yield a note on an external deployment whose list price depends on a place that is not
    known.
    """
    if deployment.price or deployment.gpu or deployment.is_self_hosted:
        return
    here = premium_at(
        deployment.provider, deployment.base_url, deployment.region, model=deployment.model
    )
    if here.is_estimated:
        yield (
            "region",
            f"what its tokens cost at {here.place} is not known for sure: a list price counts "
            f"{here.factor.normalize():f} times, the dearest known factor, and its events are "
            "flagged; write the provider's own address, 'region: global' if that is so, or "
            "'price'",
        )


def _on_routes(policy: Policy) -> Iterator[Note]:
    """Yield notes on routes: unused ones, hidden aliases, and answers without a bound."""
    used = {name for team in policy.teams.values() for name in team.routes}
    used |= {route.degrade_to for route in policy.routes.values() if route.degrade_to is not None}
    hard: dict[str, list[str]] = {}  # the teams with a hard budget, by route
    for team in policy.teams.values():
        for name in team.routes if _has_hard_budget(team, policy) else ():
            hard.setdefault(name, []).append(team.name)
    earlier: list[tuple[str, str]] = []
    for at, route in enumerate(policy.routes.values()):
        if route.name not in used:
            yield ("routes", at, "name"), f"no team may use route '{route.name}'"
        for index, alias in enumerate(route.aliases):
            # Exact aliases take precedence over patterns, so only a pattern can hide a pattern.
            hider = next((e for e in earlier if "*" in alias and fnmatchcase(alias, e[0])), None)
            if hider:
                message = f"is never reached: '{hider[0]}' of route '{hider[1]}' comes first"
                yield ("routes", at, "aliases", index), message
            if "*" in alias and len(earlier) < MOST_PATTERNS:
                earlier.append((alias, route.name))
        yield from _on_unbounded(route, at, hard.get(route.name, []), policy)


def _on_unbounded(route: Route, at: int, teams: list[str], policy: Policy) -> Iterator[Note]:
    """Yield a note if a route has unbounded answers and teams with a hard budget: their requests
    without a maximum are refused.
    """
    unbounded = [
        index
        for index, name in enumerate(route.deployments)
        if not _bounds_answers(policy.deployments[name])
    ]
    if route.max_output_tokens is None and teams and unbounded:
        names = ", ".join(f"'{route.deployments[index]}'" for index in unbounded)
        yield (
            ("routes", at, "deployments", unbounded[0]),
            f"nothing bounds an answer of {names} here: neither the route nor the deployment has "
            "max_output_tokens, nor is there a context_window; if callers give no maximum, such "
            f"requests of teams with a hard budget ({few(teams)}) are refused",
        )


def _bounds_answers(deployment: Deployment) -> bool:
    """Return True if a deployment's answers have a largest size (a declared maximum or context
    window), or no output at all.
    """
    return (
        deployment.max_output_tokens is not None
        or deployment.context_window is not None
        or not any(operation.writes_output for operation in deployment.operations)
    )


def _has_hard_budget(team: Team, policy: Policy) -> bool:
    """Return True if a hard budget can refuse a team's requests: its own, one of its projects or
    keys, or its cost centre's.
    """
    return any(rule.is_hard for rule in (*team.budgets, *_shared_budgets(team, policy)))


def _shared_budgets(team: Team, policy: Policy) -> tuple[BudgetRule, ...]:
    """Return the budgets of a team's cost centres, which it shares with their other teams."""
    centres = [policy.cost_centres.get(name) for name in sorted(team.cost_centre_names)]
    return tuple(rule for centre in centres if centre is not None for rule in centre.budgets)


def _has_budget_or_limit(team: Team, policy: Policy) -> bool:
    """Return True if a budget, also a soft one, or an enforced limit covers a team's requests;
    without any, its author gets a note.
    """
    limits = (team.limits, *team.project_limits.values(), *team.key_limits.values())
    is_limited = any(block.is_limited and not block.is_shadow for block in limits)
    return is_limited or bool(team.budgets or _shared_budgets(team, policy))


def _on_teams(policy: Policy) -> Iterator[Note]:
    """Yield notes on teams that list no route, or a route that their residency rules deny."""
    for at, team in enumerate(policy.teams.values()):
        if not team.routes:
            yield ("teams", at, "routes"), f"team '{team.name}' may call nothing: it lists no route"
        rules = rules_for(policy, team, data_class=team.data_class)
        for index, name in enumerate(team.routes):
            behind = [policy.deployments[one] for one in policy.routes[name].deployments]
            if all(_is_denied_everywhere(rules, deployment, policy) for deployment in behind):
                yield (
                    ("teams", at, "routes", index),
                    f"team '{team.name}' cannot use route '{name}': "
                    f"{few([rule.rule_id for rule in rules])} allows none of its deployments "
                    f"({', '.join(f'{d.name} in {d.region}' for d in behind)})",
                )


def _is_denied_everywhere(
    rules: tuple[ResidencyRule, ...], deployment: Deployment, policy: Policy
) -> bool:
    """Return True if the rules deny a deployment for a gateway in any region and on any day: a
    document knows neither of them.
    """
    found = denials(
        rules,
        deployment,
        regions=policy.region_tree,
        gateway_region=UNKNOWN,
        day=date.min,
        valid_days=None,
    )
    return any(not denial.is_shadow and denial.field != "gateway_regions" for denial in found)


def _on_cost_centres(policy: Policy) -> Iterator[Note]:
    """Yield a note for each cost centre without a team."""
    used = {name for team in policy.teams.values() for name in team.cost_centre_names}
    for at, (name, centre) in enumerate(policy.cost_centres.items()):
        if name not in used:
            effect = "; its budgets count nothing" if centre.budgets else ""
            message = f"no team has cost centre '{shown(name)}'{effect}"
            yield ("cost_centres", at, "name"), message


def _on_names(policy: Policy) -> Iterator[Note]:
    """Yield notes on names that a place cannot tell from another thing: a model of Google's with
    the path before it, a project that no header can name, and a cost centre that is called as a
    word of the reports.
    """
    for at, deployment in enumerate(policy.deployments.values()):
        if deployment.provider in _MODEL_IN_PATH and "/" in deployment.model:
            message = (
                f"the address has the path of models; write '{deployment.model.split('/')[-1]}'"
            )
            yield ("deployments", at, "model"), message
    for at, team in enumerate(policy.teams.values()):
        for index, project in enumerate(team.projects):
            if project.endswith(" "):
                message = f"no header can name '{project}': blanks at its end are lost on the way"
                yield ("teams", at, "projects", index, "name"), message
        for name in team.cost_centre_names:
            if name in _WORDS_OF_REPORTS:
                message = f"'{name}' is {_WORDS_OF_REPORTS[name]}; another name is never mistaken"
                yield ("teams", at, "cost_centre"), message


def _on_budgets(policy: Policy) -> Iterator[Note]:
    """Yield notes on budgets: alerts without a receiver, limits larger than the whole team's, and
    budgets that callers can avoid.
    """
    paths = list(_budget_paths(policy))
    alerting = [path for rule, path in paths if rule.alert_at]
    if alerting and policy.alerts is None:
        message = "the policy has no 'alerts' block, so budget alerts are only in log and metrics"
        yield (*alerting[0], "alert_at"), message
    if policy.alerts is not None and not policy.alerts.has_receiver:
        yield ("alerts",), "it names no webhook and no email, so alerts are only in log and metrics"
    smallest = _smallest_of_teams(policy)
    for rule, path in paths:
        whole = smallest.get((rule.team, rule.period))
        is_part = rule.scope in (BudgetScope.PROJECT, BudgetScope.KEY)
        if is_part and whole is not None and whole.limit_nusd < rule.limit_nusd:
            limit = f"{whole.rule_id} of {plain_usd(whole.limit_nusd)} USD"
            message = f"is larger than the whole team's, {limit}: that one is used up first"
            yield (*path, "limit_usd"), message
    for at, team in enumerate(policy.teams.values()):
        yield from _on_avoidable_budgets(team, at)


def _budget_paths(policy: Policy) -> Iterator[tuple[BudgetRule, Path]]:
    """Yield each budget with its path; projects and keys are found by their names."""
    owners = [
        *((("teams", at), team.budgets) for at, team in enumerate(policy.teams.values())),
        *((("cost_centres", at), c.budgets) for at, c in enumerate(policy.cost_centres.values())),
    ]
    lists = {BudgetScope.PROJECT: "projects", BudgetScope.KEY: "keys"}
    for owner, rules in owners:
        before: Counter[tuple[str, str]] = Counter()
        for rule in rules:
            part = (lists[rule.scope], rule.owner) if rule.scope in lists else ()
            yield rule, (*owner, *part, "budgets", before[rule.scope, rule.owner])
            before[rule.scope, rule.owner] += 1


def _smallest_of_teams(policy: Policy) -> dict[tuple[str | None, BudgetPeriod], BudgetRule]:
    """Return for each team and period the smallest hard budget of the whole team, to find larger
    budgets of its parts.
    """
    smallest: dict[tuple[str | None, BudgetPeriod], BudgetRule] = {}
    for rule in policy.budgets:
        if rule.scope is BudgetScope.TEAM and rule.is_hard:
            before = smallest.setdefault((rule.team, rule.period), rule)
            if rule.limit_nusd < before.limit_nusd:
                smallest[rule.team, rule.period] = rule
    return smallest


def _on_avoidable_budgets(team: Team, at: int) -> Iterator[Note]:
    """Yield notes on project budgets that callers can avoid.

    Callers choose the project by a header, so a project's budget alone does not bound a team's
    spend.
    """
    of_projects = [rule for rule in team.budgets if rule.scope is BudgetScope.PROJECT]
    has_hard = any(rule.is_hard for rule in of_projects)
    own = [rule for rule in team.budgets if rule.scope is BudgetScope.TEAM]
    if of_projects and not any(rule.is_hard or not has_hard for rule in own):
        yield (
            ("teams", at, "projects"),
            f"team '{team.name}' has budgets of projects and "
            f"{'no hard one' if has_hard else 'none'} itself: a caller can avoid a project's "
            "budget by naming another project, or none, in x-tollgate-project; give the team a "
            "budget, or bind keys to projects",
        )
