"""Reports errors between the fields of one deployment block, and between replicas of one group."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

from gateway.domain.operation import WITHOUT_OUTPUT
from gateway.domain.policy.idle_cost import IdleRule
from gateway.domain.policy.policy import AMBIENT, possible_operations
from gateway.domain.providers.facts import host_of, provider_facts_of
from gateway.domain.providers.known_hosts import cloud_place
from gateway.domain.providers.table import PROVIDERS, ProviderFacts
from gateway.domain.words import listed, shown, suggestion
from gateway.wire.policy.deployments import DeploymentBlock
from gateway.wire.policy.document import PolicyDocument
from gateway.wire.yaml_blocks.blocks import Block


def _lacks_output_price(field: str) -> Callable[[DeploymentBlock], bool]:
    """Return a test for a price or tier without an output price although the deployment
    generates output.
    """

    def lacks(deployment: DeploymentBlock) -> bool:
        """Return True if a deployment generates output, and its price or a tier of it has no output
        rate.
        """
        price, operations = deployment.of(field), deployment.of("operations")
        if price is None or (operations and set(operations) <= WITHOUT_OUTPUT):
            return False
        tiers = (tier for _, tier in price.entries_of("service_tiers").values() if tier is not None)
        return any(not block.has("output_usd_per_mtok") for block in (price, *tiers))

    return lacks


def _answers_past_window(deployment: DeploymentBlock) -> bool:
    """Return True if a deployment's maximum of output tokens is larger than its context window."""
    window, answer = deployment.of("context_window"), deployment.of("max_output_tokens")
    return window is not None and answer is not None and answer > window


_DEPLOYMENT_RULES: tuple[tuple[str, Callable[[DeploymentBlock], bool], str], ...] = (
    (
        "gpu",
        lambda d: d.has("gpu") and d.has("price"),
        "a deployment has either 'gpu' or 'price'; remove one of them",
    ),
    (
        "gpu",
        lambda d: d.has("gpu") and d.of("provider") is not None and not d.is_own(),
        "GPU hours price only self-hosted deployments; add 'self_hosted: true' or write 'price' "
        "instead",
    ),
    (
        "idle_cost",
        lambda d: d.has("idle_cost") and d.of("provider") is not None and not d.is_own(),
        "is about GPUs of your own; add 'self_hosted: true' or remove it",
    ),
    *(
        (
            field,
            _lacks_output_price(field),
            "lacks 'output_usd_per_mtok'; write for example 'output_usd_per_mtok: 3.20' "
            "(absent is not 0)",
        )
        for field in ("price", "stand_in_price")
    ),
    (
        "stand_in_price",
        lambda d: d.has("stand_in_price") and (d.has("price") or d.has("gpu")),
        "stands in only while nothing else prices the deployment, but 'price' or 'gpu' does; "
        "remove one of them",
    ),
    (
        "operations",
        lambda d: d.of("operations") == [],
        "must list at least one operation, or be left out for the default",
    ),
    (
        "max_output_tokens",
        _answers_past_window,
        "is larger than 'context_window'; an answer must fit in the window",
    ),
)


def check_deployment(deployment: DeploymentBlock) -> None:
    """Check the fields of one deployment against each other."""
    provider = PROVIDERS.get(deployment.of("provider"))
    if provider is not None:
        _check_company(deployment, provider)
        _check_credentials(deployment, provider)
        _check_api_version(deployment, provider)
        _check_operations(deployment, provider)
        _check_cloud(deployment, provider)
    for field, is_broken, message in _DEPLOYMENT_RULES:
        if is_broken(deployment):
            deployment.error(field, message)


def check_idle_cost(deployment: DeploymentBlock, teams: frozenset[str] | None) -> None:
    """Report shares of idle cost that do not go with their rule, that add up to more than 1, or
    that name an unknown team.
    """
    block = deployment.of("idle_cost")
    if block is None:
        return
    rule, shares = block.of("rule"), block.of("shares")
    has_shares = block.has("shares") and shares != {}
    if rule is IdleRule.RESERVED and not has_shares:
        block.error("rule", "'reserved' asks for 'shares'; write for example 'shares: {search: 1}'")
    if rule not in (IdleRule.RESERVED, None) and has_shares:
        block.error("shares", "count only with 'rule: reserved'; write that or remove 'shares'")
    if not isinstance(shares, dict):
        return
    total = sum((one for one in shares.values() if isinstance(one, Decimal)), Decimal())
    if total > 1:
        block.error("shares", f"add up to {total:f}; they add up to at most 1")
    for team, (spot, _) in block.entries_of("shares").items():
        if teams is not None and team not in teams:
            spot.error(f"there is no team '{team}'{suggestion(team, teams)}")


def _check_credentials(deployment: DeploymentBlock, provider: ProviderFacts) -> None:
    """Report credentials beside a key, or in a form that the provider does not take."""
    credentials = deployment.of("credentials")
    if credentials is None:
        return
    if deployment.has("api_key"):
        deployment.error("credentials", "stand instead of 'api_key'; remove one of them")
    form = "ambient" if credentials == AMBIENT else "keys"
    if form not in provider.takes_credentials:
        takes = listed(provider.takes_credentials) if provider.takes_credentials else "none"
        deployment.error(
            "credentials",
            f"of this form ({form}) are not taken by {provider.name} (it takes {takes}); write "
            "'api_key' instead",
        )


def _check_api_version(deployment: DeploymentBlock, provider: ProviderFacts) -> None:
    """Report a version of the API at a provider whose addresses have none."""
    if deployment.has("api_version") and not provider.takes_api_version:
        takes = listed(name for name, one in PROVIDERS.items() if one.takes_api_version)
        deployment.error(
            "api_version", f"is not sent to {provider.name}, only to {takes}; remove the field"
        )


def _check_operations(deployment: DeploymentBlock, provider: ProviderFacts) -> None:
    """Report operations that the provider neither speaks nor gets translated, as its host and the
    form of its address show.
    """
    for spot, operation in deployment.items_of("native"):
        if operation not in provider.native:
            spot.error(
                f"{provider.name} does not speak {operation} by itself; 'native' names fewer of "
                f"{listed(sorted(provider.native)) or 'none'}"
            )
    base_url, native = deployment.of("base_url"), deployment.of("native")
    facts = provider if base_url is None else provider_facts_of(provider.name, base_url)
    spoken = facts.native if native is None else provider.native & frozenset(native)
    possible = possible_operations(spoken, facts)
    for spot, operation in deployment.items_of("operations"):
        if operation not in possible:
            spot.error(
                f"{facts.name} does not serve {operation}, and nothing can be translated to "
                f"serve it; it serves {listed(sorted(possible))}"
            )


def _check_company(deployment: DeploymentBlock, provider: ProviderFacts) -> None:
    """Report a deployment of a company's API that lacks its key or is declared self-hosted."""
    if not provider.needs_key:
        return
    name = provider.name
    if not (deployment.has("api_key") or deployment.has("credentials")):
        or_ambient = " or 'credentials: ambient'" if "ambient" in provider.takes_credentials else ""
        deployment.error(
            "api_key",
            f"is missing; {name} asks for one: write for example 'api_key: env:{name.upper()}"
            f"_API_KEY'{or_ambient}",
        )
    if deployment.of("self_hosted") is True:
        deployment.error(
            "self_hosted",
            f"provider {name} is never self-hosted; for an engine of your own write vllm or "
            "openai_compatible",
        )


def _check_cloud(deployment: DeploymentBlock, provider: ProviderFacts) -> None:
    """Report a model of Ollama's cloud that counts as self-hosted: Ollama's servers send requests
    for it on, also those of one's own.
    """
    model, host = deployment.of("model") or "", host_of(deployment.of("base_url") or "")
    cloud = cloud_place(provider.name, host, model)
    if cloud is None or not deployment.is_own():
        return
    deployment.error(
        "self_hosted",
        f"'{model}' runs at {cloud.host} ({cloud.statement.source}, {cloud.statement.as_of}), "
        "which is never self-hosted; write 'self_hosted: false', or name a model that the server "
        "keeps itself (one whose name ends in '-cloud': with its tag, ':latest')",
    )


_ALIKE = ("provider", "model", "region", "gpu", "price", "stand_in_price")


def check_groups(document: PolicyDocument) -> None:
    """Check that all members of a group are the same engine at the same price, except for the
    address.

    Any member may serve a session.
    """
    first: dict[str, DeploymentBlock] = {}
    for deployment in document.blocks_of("deployments"):
        group = deployment.of("group")
        if group is None:
            continue
        model = first.setdefault(group, deployment)
        different = [
            field
            for field in _ALIKE
            if _without_places(deployment.of(field)) != _without_places(model.of(field))
        ]
        if different:
            deployment.error(
                "group",
                f"'{group}' holds replicas of one engine, but {', '.join(different)} of this "
                f"deployment is not that of '{shown(model.of('name') or '?')}'; make them the "
                "same or choose another group",
            )


def _without_places(value: object) -> object:
    """Return a document's value without the places from which it was read, for comparison."""
    if isinstance(value, dict):
        return {name: _without_places(one) for name, one in value.items()}
    return _without_places(dict(value)) if isinstance(value, Block) else value
