"""What is worth knowing about a document that is not wrong."""

from __future__ import annotations

from fnmatch import fnmatchcase

from gateway.domain.policy import ClassRule, Policy
from gateway.domain.pricing import Price
from gateway.domain.residency import ANY, denial, leaves
from gateway.domain.tokens import TokenKind
from gateway.wire.policy.checks import entries
from gateway.wire.policy.findings import Findings
from gateway.wire.policy.readers import Entry, Listed

SHOWN_NAMES = 10


def take_notes(document: Entry, policy: Policy, findings: Findings) -> None:
    """Add notes on a valid policy."""
    _note_classes(document, policy, findings)
    _note_deployments(document, policy, findings)
    _note_routes(document, policy, findings)
    _note_teams(document, policy, findings)


def _note_classes(document: Entry, policy: Policy, findings: Findings) -> None:
    classes = document.of("classes", Entry)
    assert classes is not None, "a valid document has classes"
    ordered = sorted(policy.classes.items())
    for data_class, rule in ordered:
        spot = classes.place(data_class.label)
        if not rule.regions:
            findings.note(spot, "lists no region: every request of this class is denied")
        for lower, lower_rule in ordered:
            if lower < data_class and (wider := _wider(rule, lower_rule, policy)):
                findings.note(spot, f"allows {wider}, which the lower class {lower.label} does not; is that meant?")


def _wider(rule: ClassRule, lower: ClassRule, policy: Policy) -> str:
    """What a higher class allows and a lower one does not: then raising a request's class would free it."""
    if lower.self_hosted_only and not rule.self_hosted_only:
        return "deployments that are not self-hosted"
    if ANY in lower.regions:
        return ""
    if ANY in rule.regions:
        return "every region"
    allowed = frozenset().union(*(leaves(region, policy.regions) for region in lower.regions))
    mine = frozenset().union(*(leaves(region, policy.regions) for region in rule.regions))
    return ", ".join(sorted(mine - allowed))


def _note_deployments(document: Entry, policy: Policy, findings: Findings) -> None:
    used = {name for route in policy.routes.values() for name in route.deployments}
    for entry in entries(document.of("deployments", Listed)):
        deployment = policy.deployments[entry.values["name"]]
        if deployment.name not in used:
            findings.note(entry.place("name"), f"no route uses deployment '{deployment.name}'")
        is_priced = deployment.gpu or deployment.price or deployment.stand_in_price
        if deployment.is_self_hosted and not is_priced:
            findings.note(
                entry.place("name"),
                f"self-hosted deployment '{deployment.name}' has neither 'gpu' nor 'price': without a price "
                "its requests are refused (unpriced_model)",
            )
        if deployment.price and not any(rate.usd_per_mtok for rate in deployment.price.rates):
            findings.note(entry.place("price"), f"deployment '{deployment.name}' is free: all its rates are 0")
        if deployment.price and "vision" in (deployment.capabilities or ()) and not _prices_images(deployment.price):
            findings.note(
                entry.place("price"),
                f"deployment '{deployment.name}' can see, but its price has no image_input_usd_per_mtok: where the "
                "upstream counts image tokens apart, what they cost stays unknown and is held",
            )


def _prices_images(price: Price) -> bool:
    return any(rate.kind is TokenKind.IMAGE_INPUT for rate in price.rates)


def _note_routes(document: Entry, policy: Policy, findings: Findings) -> None:
    used = {name for team in policy.teams.values() for name in team.routes}
    earlier: list[tuple[str, str]] = []
    for entry in entries(document.of("routes", Listed)):
        name = entry.values["name"]
        if name not in used:
            findings.note(entry.place("name"), f"no team may use route '{name}'")
        for spot, alias in entry.of("aliases", Listed) or ():
            # Exact aliases win over patterns, so only a pattern can hide a pattern.
            hider = next((e for e in earlier if "*" in alias and fnmatchcase(alias, e[0])), None)
            if hider:
                findings.note(spot, f"is never reached: '{hider[0]}' of route '{hider[1]}' comes first")
            if "*" in alias:
                earlier.append((alias, name))


def _note_teams(document: Entry, policy: Policy, findings: Findings) -> None:
    for entry in entries(document.of("teams", Listed)):
        team = policy.teams[entry.values["name"]]
        if not team.routes:
            findings.note(entry.place("routes"), f"team '{team.name}' may call nothing: it lists no route")
        rule = policy.classes[team.data_class]
        for spot, name in entry.of("routes", Listed) or ():
            behind = [policy.deployments[deployment] for deployment in policy.routes[name].deployments]
            if all(denial(rule, deployment, policy.regions) for deployment in behind):
                findings.note(
                    spot,
                    f"team '{team.name}' cannot use route '{name}': class {rule.name} allows none of its "
                    f"deployments ({', '.join(f'{d.name} in {d.region}' for d in behind)})",
                )
    names = list(policy.teams)
    if names:
        more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
        findings.note(
            document.place("teams"),
            f"unlimited: {', '.join(names[:SHOWN_NAMES])}{more} (this version has no budgets and limits)",
        )
