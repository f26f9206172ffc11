"""The policy document of the run: each route has a deployment in the United States first, and one
in the European Union. Only the latter is allowed to team `ruled`.
"""

from __future__ import annotations

import os

from gateway.domain.providers.table import PROVIDERS
from tests.clients.matrix import Treatment, route_of
from tests.clients.wording import Dialect

PRICE = (
    "{input_usd_per_mtok: 1.25, cached_input_usd_per_mtok: 0.125, "
    "cache_write_usd_per_mtok: 1.5, output_usd_per_mtok: 10}"
)
NUSD_PER_TOKEN = {"input": 1250, "cached": 125, "cache_write": 1500, "output": 10_000}
# The places of the deployments, in the order of the routes: the backend's name and the region.
PLACES = {"us": "us-east", "eu": "eu-de"}


# A hard budget of each team, in USD; without it money refuses nothing.
BUDGET_USD = os.environ.get("TOLLGATE_CLIENTS_BUDGET_USD")
CONTEXT_WINDOW = 200_000  # bounds a prompt that a provider's own tools make


def document(addresses: dict[str, str]) -> str:
    """Return the policy for the backends at these addresses, by place."""
    routes = dict(_routes())
    deployments = [
        f"  - {{name: {place}-{route}, region: {PLACES[place]}, price: {PRICE}, "
        f"context_window: {CONTEXT_WINDOW}, "
        f'base_url: "{address}/v1", {text}}}'
        for route, text in routes.items()
        for place, address in addresses.items()
    ]
    of_routes = {route: [f"{place}-{route}" for place in addresses] for route in routes}
    of_routes["either"] = [*of_routes["chat"], *of_routes["responses"]]
    listed = [
        f"  - {{name: {name}, objective: priority, max_output_tokens: 1000, "
        f"deployments: [{', '.join(deployments_of)}]}}"
        for name, deployments_of in of_routes.items()
    ]
    terms = f"routes: [{', '.join(of_routes)}]"
    if BUDGET_USD:
        terms += f", budgets: [{{period: once, limit_usd: {BUDGET_USD}}}]"
    return "\n".join(
        [
            "version: 1",
            "regions: {eu: [eu-de], us: [us-east]}",
            "classes: {public: {regions: [any]}, confidential: {regions: [eu]}}",
            "deployments:",
            *deployments,
            "routes:",
            *listed,
            "teams:",
            f"  - {{name: open, cost_centre: CC-1, data_class: public, {terms}}}",
            f"  - {{name: ruled, cost_centre: CC-2, data_class: confidential, {terms}}}",
        ]
    )


def _routes() -> list[tuple[str, str]]:
    """Return each route with the fields of its deployments."""
    translated = "operations: [chat, responses, messages]"
    chat = f"provider: openai_compatible, model: chat-1, {translated}, native: [chat]"
    responses = (
        'provider: openai, api_key: "env:FAKE_KEY", model: responses-1, operations: [responses]'
    )
    messages = 'provider: anthropic, api_key: "env:FAKE_KEY", model: messages-1'
    found = [
        (route_of(Dialect.CHAT, Treatment.PLAIN), chat),
        (route_of(Dialect.CHAT, Treatment.DROP), f"{chat}, untranslatable: drop"),
        (route_of(Dialect.RESPONSES, Treatment.PLAIN), responses),
        (route_of(Dialect.RESPONSES, Treatment.HOSTED), f"{responses}, allows: [hosted_tools]"),
    ]
    if "anthropic" in PROVIDERS:
        found.append((route_of(Dialect.MESSAGES, Treatment.PLAIN), messages))
    return found
