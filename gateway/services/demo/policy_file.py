"""Writes the policy of the demo organisation: the deployments, routes, teams and cost centres that
its events name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gateway.domain.pricing.pricing import Price
from gateway.domain.pricing.selfhost import GpuRate
from gateway.domain.pricing.tokens import TokenKind
from gateway.services.demo.catalogue import DESTINATIONS, WORKS, Destination
from gateway.services.demo.exports import DemoFile
from gateway.services.demo.organisation import OrganisationSize, Project, projects_of

NAME = "policy.yaml"
_ADDRESSES: Mapping[str, str] = {
    "openai": "https://api.openai.com/v1",
    "anthropic": "https://api.anthropic.com/v1",
    "bedrock": "https://bedrock-runtime.eu-central-1.amazonaws.com",
    "gemini": "https://generativelanguage.googleapis.com/v1beta",
    "groq": "https://api.groq.com/openai/v1",
    "openai_compatible": "https://llm.partner.example/v1",
}
_EU_OPENAI = "https://eu.api.openai.com/v1"
_FIRST_PORT = 8101  # of the engines
_SITES = ("eu-de", "eu-fr")  # of own engines and the partner; other hosts promise no place
_RATE_FIELDS: Mapping[TokenKind, str] = {
    TokenKind.INPUT: "input_usd_per_mtok",
    TokenKind.CACHED_INPUT: "cached_input_usd_per_mtok",
    TokenKind.OUTPUT: "output_usd_per_mtok",
}
_HEAD = """\
# The policy of the demo organisation: whose bills are whose, which GPUs are paid for, which cost
# centres pay. Everything in it is invented, and the variables of its keys are not set: a gateway
# that runs with it reaches nobody.
version: 1
regions: {eu: [eu-de, eu-fr]}
classes:
  public: {regions: [any]}
  internal: {regions: [any]}
  confidential: {regions: [eu]}
deployments:"""


def policy_file(size: OrganisationSize, prices: Mapping[str, Price]) -> DemoFile:
    """Return the policy as a file; `prices` are those in force, by deployment."""
    return DemoFile("policy", "", "", NAME, "\n".join(_lines(size, prices)) + "\n")


def _lines(size: OrganisationSize, prices: Mapping[str, Price]) -> Iterable[str]:
    """Yield the lines of the policy."""
    yield _HEAD
    for number, (name, place) in enumerate(DESTINATIONS.items()):
        fields = [
            f"name: {name}, provider: {place.provider}, region: {_region(place)}, "
            f'model: "{place.model}"',
            *_terms(place, prices[name], port=_FIRST_PORT + number),
        ]
        yield "  - {" + ",\n     ".join(fields) + "}"
    yield "routes:"
    for route in {work.route.name: work.route for work in WORKS}.values():
        yield f"  - {{name: {route.name}, deployments: [{', '.join(route.order)}]}}"
    projects = projects_of(size)
    by_team: dict[str, list[Project]] = {}
    by_centre: dict[str, list[str]] = {}
    for one in projects:
        by_team.setdefault(one.team, []).append(one)
        teams = by_centre.setdefault(one.cost_centre, [])
        if one.team not in teams:
            teams.append(one.team)
    yield "teams:"
    yield from map(_team, by_team.values())
    yield "cost_centres:"
    for centre, teams in by_centre.items():
        title = teams[0].replace("-", " ").capitalize() + (" and others" if teams[1:] else "")
        yield f"  - {{name: {centre}, title: {title}, owner: {teams[0]}@example.com}}"


def _region(place: Destination) -> str:
    """Return the region that a deployment's host promises."""
    is_promised = place.region in _SITES or _is_eu_openai(place)
    return place.region if is_promised else "unknown"


def _is_eu_openai(place: Destination) -> bool:
    """Return True for a deployment at OpenAI's host for Europe."""
    return place.provider == "openai" and place.region == "eu"


def _terms(place: Destination, price: Price, *, port: int) -> Iterable[str]:
    """Yield how a deployment is reached and paid for: its GPUs, or an account."""
    if place.gpu is not None:
        yield f'base_url: "http://127.0.0.1:{port}/v1"'
        yield f"gpu: {{{_gpu(place.gpu)}}}"
        return
    address = _EU_OPENAI if _is_eu_openai(place) else _ADDRESSES[place.provider]
    yield f'base_url: "{address}", api_key: "env:DEMO_{place.provider.upper()}_KEY"'
    assert place.billed_to is not None, "the account of a provider's deployment"
    account, project, key = place.billed_to
    yield f'billing: {{account: "{account}", project: {project}, key: {key}}}'
    if place.provider == "openai_compatible":
        rates = (f"{_RATE_FIELDS[rate.kind]}: {rate.usd_per_mtok}" for rate in price.rates)
        yield f"price: {{{', '.join(rates)}}}"


def _gpu(gpu: GpuRate) -> str:
    """Return the fields of a `gpu` block."""
    fields: dict[str, object] = {
        "type": gpu.type,
        "count": gpu.count,
        "usd_per_gpu_hour": gpu.usd_per_gpu_hour,
        "input_tok_per_s": gpu.input_tok_per_s,
        "cached_input_tok_per_s": gpu.cached_input_tok_per_s,
        "output_tok_per_s": gpu.output_tok_per_s,
        "target_utilisation": gpu.target_utilisation,
        "hours": gpu.hours.value,
    }
    return ", ".join(f"{name}: {value}" for name, value in fields.items())


def _team(projects: Sequence[Project]) -> str:
    """Return the line of a team with the routes that its projects use."""
    first = projects[0]
    routes = dict.fromkeys(one.work.route.name for one in projects)
    return (
        f"  - {{name: {first.team}, cost_centre: {first.cost_centre}, "
        f"data_class: {first.data_class}, routes: [{', '.join(routes)}]}}"
    )
