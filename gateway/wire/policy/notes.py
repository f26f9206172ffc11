"""Notes on a document: facts that are worth knowing and are not errors."""

from __future__ import annotations

import re
from datetime import date
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from gateway.domain.budgets.budgets import EACH, BudgetRule, BudgetScope
from gateway.domain.money import plain_usd
from gateway.domain.places.known_hosts import known_place
from gateway.domain.places.regions import ANY, KNOWN, UNKNOWN, UNPLACED
from gateway.domain.policy.policy import Deployment, Operation, Policy, ResidencyRule, Team
from gateway.domain.pricing.pricing import Price
from gateway.domain.pricing.tokens import TokenKind
from gateway.domain.residency.rules import denials, rules_for
from gateway.wire.policy.blocks import placed
from gateway.wire.policy.deployments import DeploymentBlock
from gateway.wire.policy.document import PolicyDocument
from gateway.wire.policy.findings import Findings, shown
from gateway.wire.policy.regions import rules_in
from gateway.wire.policy.routes import RouteBlock
from gateway.wire.policy.teams import Declared, TeamBlock, declared_budgets

SHOWN_NAMES = 10
_VERSIONED = re.compile(r"/v\d+[a-z0-9]*/?$")


def take_notes(document: PolicyDocument, policy: Policy, findings: Findings) -> None:
    """Add notes on a valid policy."""
    _note_regions(document, findings)
    _note_classes(document, policy, findings)
    _note_shadows(document, findings)
    _note_deployments(document, policy, findings)
    _note_routes(document, policy, findings)
    _note_teams(document, policy, findings)
    _note_cost_centres(document, policy, findings)
    _note_budgets(document, policy, findings)
    _note_empty_limits(document, findings)
    _note_unlimited(document, policy, findings)


def _note_regions(document: PolicyDocument, findings: Findings) -> None:
    for parent, (place, children) in document.entries_of("regions").items():
        for spot, child in placed(place, children):
            if child in KNOWN and parent in KNOWN:
                findings.note(
                    spot, f"changes nothing: '{child}' lies in '{parent}' as everybody knows"
                )


def _note_classes(document: PolicyDocument, policy: Policy, findings: Findings) -> None:
    classes = document.entries_of("classes")
    ordered = sorted(policy.classes.items())
    for data_class, rule in ordered:
        spot, _ = classes[data_class.label]
        if not rule.regions and not rule.is_shadow:
            findings.note(spot, "lists no region: every request of this class is denied")
        for lower, lower_rule in ordered:
            if lower < data_class and (wider := _extra_permissions(rule, lower_rule, policy)):
                findings.note(
                    spot,
                    f"allows {wider}, which the lower class {lower.label} does not; is that meant?",
                )


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
    return ", ".join(
        sorted(region for region in mine if not policy.region_tree.covered(region, allowed))
    )


def _note_shadows(document: PolicyDocument, findings: Findings) -> None:
    for rule in rules_in(document):
        if rule.mode == "shadow":
            findings.note(
                rule.place("mode"), "denies nothing; its denials are only counted and shown"
            )


def _note_caveat(entry: DeploymentBlock, deployment: Deployment, findings: Findings) -> None:
    """Add the provider's caveat, unless the deployment names its own source: then its author has
    checked.
    """
    known = known_place(deployment.facts.host)
    has_own = deployment.residency is not None and deployment.residency.source
    if known is not None and known.caveat and not has_own and deployment.region not in UNPLACED:
        findings.note(entry.place("region"), known.caveat)


def _note_address(entry: DeploymentBlock, deployment: Deployment, findings: Findings) -> None:
    """Note an address without a version: engines and OpenAI serve under one, others may serve at
    their root.
    """
    is_versioned = _VERSIONED.search(urlsplit(deployment.base_url).path) is not None
    if not is_versioned and (
        deployment.provider in {"vllm", "openai"} or deployment.is_self_hosted
    ):
        findings.note(
            entry.place("base_url"),
            "does not end in /v1, so chat goes to "
            f"{deployment.base_url.rstrip('/')}/chat/completions; is that meant?",
        )


def _note_deployments(document: PolicyDocument, policy: Policy, findings: Findings) -> None:
    used = {name for route in policy.routes.values() for name in route.deployments}
    for entry in document.blocks_of("deployments"):
        deployment = policy.deployments[entry.name]
        if deployment.name not in used:
            findings.note(entry.place("name"), f"no route uses deployment '{deployment.name}'")
        _note_caveat(entry, deployment, findings)
        _note_address(entry, deployment, findings)
        is_priced = deployment.gpu or deployment.price or deployment.stand_in_price
        if deployment.is_self_hosted and not is_priced:
            findings.note(
                entry.place("name"),
                f"self-hosted deployment '{deployment.name}' has neither 'gpu' nor 'price': "
                "without a price its requests are refused (unpriced_model)",
            )
        if deployment.price and not any(rate.usd_per_mtok for rate in deployment.price.rates):
            findings.note(
                entry.place("price"), f"deployment '{deployment.name}' is free: all its rates are 0"
            )
        if (
            deployment.price
            and "vision" in (deployment.capabilities or ())
            and not _prices_images(deployment.price)
        ):
            findings.note(
                entry.place("price"),
                f"deployment '{deployment.name}' has vision, but its price has no "
                "image_input_usd_per_mtok: if the upstream reports image tokens separately, their "
                "cost stays unknown and is held",
            )


def _prices_images(price: Price) -> bool:
    return any(rate.kind is TokenKind.IMAGE_INPUT for rate in price.rates)


def _note_routes(document: PolicyDocument, policy: Policy, findings: Findings) -> None:
    used = {name for team in policy.teams.values() for name in team.routes}
    used |= {route.degrade_to for route in policy.routes.values() if route.degrade_to is not None}
    earlier: list[tuple[str, str]] = []
    for entry in document.blocks_of("routes"):
        name = entry.name
        if name not in used:
            findings.note(entry.place("name"), f"no team may use route '{name}'")
        for spot, alias in entry.items_of("aliases"):
            # Exact aliases take precedence over patterns, so only a pattern can hide a pattern.
            hider = next((e for e in earlier if "*" in alias and fnmatchcase(alias, e[0])), None)
            if hider:
                findings.note(
                    spot, f"is never reached: '{hider[0]}' of route '{hider[1]}' comes first"
                )
            if "*" in alias:
                earlier.append((alias, name))
        _note_unbounded(entry, policy, findings)


def _note_unbounded(entry: RouteBlock, policy: Policy, findings: Findings) -> None:
    """Note unbounded answers: a hard budget first holds an upper bound of the cost, and there is
    none.
    """
    route = policy.routes[entry.name]
    teams = [
        team
        for team in policy.teams.values()
        if route.name in team.routes and _is_hard(team, policy)
    ]
    if route.max_output_tokens is not None or not teams:
        return
    unbounded = [
        (spot, name)
        for spot, name in entry.items_of("deployments")
        if not _bounds_answers(policy.deployments[name])
    ]
    if unbounded:
        names = ", ".join(f"'{name}'" for _, name in unbounded)
        findings.note(
            unbounded[0][0],
            f"nothing bounds an answer of {names} here: neither the route nor the deployment "
            "has max_output_tokens, nor is there a context_window; if callers give no maximum, "
            "such requests of teams with a hard budget "
            f"({_few([team.name for team in teams])}) are refused",
        )


def _bounds_answers(deployment: Deployment) -> bool:
    """Return True if an answer has a largest size, or no output at all."""
    return (
        deployment.max_output_tokens is not None
        or deployment.context_window is not None
        or deployment.operations == {Operation.EMBEDDINGS}
    )


def _is_hard(team: Team, policy: Policy) -> bool:
    return any(rule.is_hard for rule in (*team.budgets, *_shared(team, policy)))


def _shared(team: Team, policy: Policy) -> tuple[BudgetRule, ...]:
    """Return the budgets that a team shares with others."""
    centre = policy.cost_centres.get(team.cost_centre)
    return centre.budgets if centre is not None else ()


def _note_teams(document: PolicyDocument, policy: Policy, findings: Findings) -> None:
    for entry in document.blocks_of("teams"):
        team = policy.teams[entry.name]
        if not team.routes:
            findings.note(
                entry.place("routes"), f"team '{team.name}' may call nothing: it lists no route"
            )
        rules = rules_for(policy, team, data_class=team.data_class)
        for spot, name in entry.items_of("routes"):
            behind = [
                policy.deployments[deployment] for deployment in policy.routes[name].deployments
            ]
            if all(_denied_everywhere(rules, deployment, policy) for deployment in behind):
                findings.note(
                    spot,
                    f"team '{team.name}' cannot use route '{name}': "
                    f"{_few([rule.rule_id for rule in rules])} allows none of its deployments "
                    f"({', '.join(f'{d.name} in {d.region}' for d in behind)})",
                )
        for listed in ("projects", "keys"):
            for owner in entry.blocks_of(listed):
                if listed == "projects" and team.declares_projects and owner.name != EACH:
                    continue  # a request may name it
                if not owner.budgets and owner.limits is None:
                    findings.note(
                        owner.spot, "has neither budgets nor limits, so it changes nothing"
                    )


def _denied_everywhere(
    rules: tuple[ResidencyRule, ...], deployment: Deployment, policy: Policy
) -> bool:
    """Return True if no gateway may send there on any day: the document knows neither its
    gateway nor its date.
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


def _note_cost_centres(document: PolicyDocument, policy: Policy, findings: Findings) -> None:
    used = {team.cost_centre for team in policy.teams.values()}
    for entry in document.blocks_of("cost_centres"):
        name = entry.name
        if name not in used:
            findings.note(
                entry.place("name"),
                f"no team has cost centre '{shown(name)}'; its budgets count nothing",
            )


def _note_budgets(document: PolicyDocument, policy: Policy, findings: Findings) -> None:
    declared = list(declared_budgets(document))
    alerting = [budget.block for budget in declared if budget.block.alert_at]
    if alerting and policy.alerts is None:
        findings.note(
            alerting[0].place("alert_at"),
            "the policy has no 'alerts' block, so budget alerts are only in log and metrics",
        )
    for budget in declared:
        _note_ineffective_budgets(budget, policy, findings)
    for entry in document.blocks_of("teams"):
        _note_avoidable_budgets(entry, policy, findings)


def _note_avoidable_budgets(entry: TeamBlock, policy: Policy, findings: Findings) -> None:
    """Note project budgets that callers can avoid.

    Callers choose the project by a header, so a project's budget alone does not bound a team's
    spend.
    """
    team = policy.teams[entry.name]
    of_projects = [rule for rule in team.budgets if rule.scope is BudgetScope.PROJECT]
    has_hard = any(rule.is_hard for rule in of_projects)
    of_team = [
        rule
        for rule in team.budgets
        if rule.scope is BudgetScope.TEAM and (rule.is_hard or not has_hard)
    ]
    if of_projects and not of_team:
        findings.note(
            entry.place("projects"),
            f"team '{team.name}' has budgets of projects and "
            f"{'no hard one' if has_hard else 'none'} itself: a caller can avoid a project's "
            "budget by naming another project, or none, in x-tollgate-project; give the team a "
            "budget, or bind keys to projects",
        )


def _note_ineffective_budgets(budget: Declared, policy: Policy, findings: Findings) -> None:
    """Note a part's budget above that of the whole team: it never refuses anything."""
    if budget.scope not in (BudgetScope.PROJECT, BudgetScope.KEY):
        return
    assert budget.team is not None, "a valid project or key has a team"
    limit_nusd, period = budget.block.limit_usd, budget.block.period
    for rule in policy.teams[budget.team].budgets:
        is_of_whole = rule.scope is BudgetScope.TEAM and rule.is_hard and rule.period == period
        if is_of_whole and rule.limit_nusd < limit_nusd:
            findings.note(
                budget.block.place("limit_usd"),
                f"is larger than the whole team's, {rule.rule_id} of {plain_usd(rule.limit_nusd)} "
                "USD: that one is used up first",
            )


def _note_empty_limits(document: PolicyDocument, findings: Findings) -> None:
    blocks = [*document.blocks_of("deployments")]
    for team in document.blocks_of("teams"):
        blocks += [team, *team.blocks_of("projects"), *team.blocks_of("keys")]
    for block in blocks:
        limits = block.of("limits")
        if limits is not None and limits.is_empty:
            findings.note(
                block.place("limits"),
                "limits nothing; write for example {requests_per_minute: 600}, or remove it",
            )


def _note_unlimited(document: PolicyDocument, policy: Policy, findings: Findings) -> None:
    names = [team.name for team in policy.teams.values() if not _has_any(team, policy)]
    if names:
        findings.note(
            document.place("teams"), f"unlimited: {_few(names)} (no budgets and no limits)"
        )


def _has_any(team: Team, policy: Policy) -> bool:
    limits = (team.limits, *team.project_limits.values(), *team.key_limits.values())
    is_limited = any(block.is_limited and not block.is_shadow for block in limits)
    return is_limited or bool(team.budgets or _shared(team, policy))


def _few(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return ", ".join(names[:SHOWN_NAMES]) + more
