"""A search in a chat: the provider bills it, the usage has no count of it, and it was booked
without its fee, unflagged.

A fee that is known from the request and that nothing counts makes the cost unknown at the hold, or
is settled by the provider's stated rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import httpx2
import pytest

from tests import plain_http
from tests.attacks.searching_provider import Provider, running_provider
from tests.gateway_process import Gateway
from tests.waiting import eventually

# Tokens of the searching provider: one window of 1,000 for each reading, and the maximum of 10.
PRICE = "{input_usd_per_mtok: 1000, output_usd_per_mtok: 1000, web_search_usd_per_1k_calls: 25}"
OTHERS = PRICE.replace("}", ", other_model_usd_per_1k_calls: 25}")  # its tools may be of any kind
UNLISTED = "{input_usd_per_mtok: 1000, output_usd_per_mtok: 1000}"
MESSAGES = [{"role": "user", "content": "search"}]


def _policy(provider: Provider) -> str:
    """Return a policy with a route for each kind of model."""
    kinds = {
        "chat": ("openai", "gpt-5", PRICE),
        "search": ("openai", "gpt-5-search-api", PRICE),
        "by-request": ("openai_compatible", "sonar-pro", PRICE),
        "by-request-unlisted": ("openai_compatible", "sonar-pro", UNLISTED),
        "compound": ("groq", "groq/compound", OTHERS),
        "own": ("vllm", "sonar-pro", PRICE),
        "code": ("anthropic", "claude", f"{PRICE}"),
    }
    listed = "\n".join(
        f"  - {{name: {name}, provider: {kind}, model: {model}, region: unknown, price: {price}, "
        f'api_key: "env:FAKE_KEY", base_url: "{provider.url("max_uses")}", operations: '
        f"[{'messages' if kind == 'anthropic' else 'chat'}], allows: [hosted_tools], "
        "listed: ['web_search_options.search_context_size=high'], "
        "context_window: 1000, max_output_tokens: 10}"
        for name, (kind, model, price) in kinds.items()
    )
    routes = "\n".join(f"  - {{name: {name}, deployments: [{name}]}}" for name in kinds)
    return f"""\
version: 1
classes: {{internal: {{regions: [any]}}}}
deployments:
{listed}
routes:
{routes}
teams:
  - {{name: red, cost_centre: CC-1, data_class: internal, routes: [{", ".join(kinds)}]}}
  - name: hard
    cost_centre: CC-1
    data_class: internal
    routes: [{", ".join(kinds)}]
    budgets: [{{period: once, limit_usd: 5000}}]
"""


@dataclass
class Keyed:
    """A gateway with a key of each team."""

    gateway: Gateway
    keys: dict[str, str]

    def events(self, request_id: str) -> list[dict[str, Any]]:
        """Return the events of a request."""
        return self.gateway.events(request_id)


@pytest.fixture(scope="module")
def gateway(launch_gateway: Any, module_database_url: str) -> Iterator[Keyed]:
    """Yield a gateway before a provider that searches."""
    with running_provider() as provider:
        for made in launch_gateway(_policy(provider), module_database_url):
            yield _keyed(made)


def _keyed(gateway: Gateway) -> Keyed:
    """Make a key of each team, and wait until the gateway knows both."""
    keys = {team: gateway.make_key(team) for team in ("red", "hard")}
    newest = {"authorization": f"Bearer {keys['hard']}"}
    url = f"{gateway.base_url}/models"
    eventually(lambda: plain_http.get(url, headers=newest).status_code == 200, "the keys")
    return Keyed(gateway, keys)


def _ask(gateway: Keyed, path: str, body: dict[str, Any], team: str) -> httpx2.Response:
    """Send a request of a team."""
    headers = {"authorization": f"Bearer {gateway.keys[team]}"}
    url = f"{gateway.gateway.base_url}/{path}"
    answer = plain_http.post(url, json=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer


@pytest.mark.parametrize("team", ["red", "hard"])
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("route", "more"),
    [
        ("chat", {"web_search_options": {}}),
        ("search", {}),
        ("search", {"web_search_options": {"search_context_size": "high"}}),
        ("compound", {}),
        ("by-request-unlisted", {}),
    ],
)
def test_a_fee_that_nothing_counts_is_unknown_at_the_hold(
    gateway: Keyed, route: str, more: dict[str, Any], is_stream: bool, team: str
) -> None:
    """The tokens are kept, the caller sees no cost, and the hold has the tokens and a fee."""
    body = {"model": route, "max_tokens": 10, "messages": MESSAGES, "stream": is_stream, **more}
    answer = _ask(gateway, "chat/completions", body, team)
    (event,) = gateway.events(answer.headers["x-request-id"])
    assert (event["usage_source"], event["cost_usd"]) == ("unknown", None)
    assert "x-tollgate-cost-usd" not in answer.headers
    assert event["input_tokens"] in (1000, 2000)
    tokens = Decimal(event["input_tokens"] + event["output_tokens"]) / 1000
    if team == "hard":
        assert Decimal(event["held_usd"]) >= tokens


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_fee_of_each_request_is_settled_by_the_stated_rule(
    gateway: Keyed, is_stream: bool
) -> None:
    """Perplexity's price of a request is its tokens and one fee; the price list names the fee."""
    body = {"model": "by-request", "max_tokens": 10, "messages": MESSAGES, "stream": is_stream}
    answer = _ask(gateway, "chat/completions", body, "hard")
    (event,) = gateway.events(answer.headers["x-request-id"])
    tokens = Decimal(event["input_tokens"] + event["output_tokens"]) / 1000
    assert Decimal(event["cost_usd"]) == tokens + Decimal("0.025")
    assert not event["is_suspect"]


def test_code_that_the_provider_runs_is_billed_by_the_hour(gateway: Keyed) -> None:
    """A neighbour: Anthropic's usage does not say how long a container ran."""
    tools = [{"type": "code_execution_20250825", "name": "code_execution"}]
    body = {"model": "code", "max_tokens": 10, "messages": MESSAGES, "tools": tools}
    answer = _ask(gateway, "messages", body, "red")
    (event,) = gateway.events(answer.headers["x-request-id"])
    assert (event["usage_source"], event["cost_usd"]) == ("unknown", None)


def test_an_engine_of_ones_own_and_a_chat_without_a_search_cost_their_tokens(
    gateway: Keyed,
) -> None:
    """No fee is invented."""
    for route in ("own", "chat"):
        body = {"model": route, "max_tokens": 10, "messages": MESSAGES}
        answer = _ask(gateway, "chat/completions", body, "hard")
        (event,) = gateway.events(answer.headers["x-request-id"])
        tokens = Decimal(event["input_tokens"] + event["output_tokens"]) / 1000
        assert Decimal(event["cost_usd"]) == tokens
