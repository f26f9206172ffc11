"""Tools that the provider runs read the window in each round: one request of USD 72 was sent on a
hard budget of USD 20, because the hold had one window.

Under a hard budget the gateway sends a bound of the rounds in the member that the provider obeys,
and holds a window for each of them. A tool without a bound is refused by name, or not sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests import plain_http
from tests.attacks.searching_provider import DEAF_ROUNDS, Bill, Provider, running_provider
from tests.gateway_process import Gateway
from tests.waiting import eventually

LIMIT_USD = 50
# One window costs a dollar, and so does an answer of as many tokens.
PRICE = "{input_usd_per_mtok: 1000, output_usd_per_mtok: 1000, web_search_usd_per_1k_calls: 10}"
UNLISTED = "{input_usd_per_mtok: 1000, output_usd_per_mtok: 1000}"
OPERATIONS = {
    "openai": "[chat, responses]",
    "xai": "[responses]",
    "anthropic": "[messages]",
    "openai_compatible": "[chat, responses, messages]",
}
SEARCH = {"type": "web_search"}
OLD_SEARCH = {"type": "web_search_20250305", "name": "web_search"}
OLD_FETCH = {"type": "web_fetch_20250910", "name": "web_fetch"}
CODEX = Path("tests/golden/openai_compatible/responses-to-chat-stream-codex/request.json")


@dataclass
class Searches:
    """A gateway with its provider. `budgets` has the key's one in dollars."""

    gateway: Gateway
    provider: Provider
    keys: dict[str, str]

    def post(self, path: str, body: dict[str, Any], *, team: str = "hard") -> httpx2.Response:
        """Send a request of a team."""
        url = f"{self.gateway.base_url}/{path}"
        headers = {"authorization": f"Bearer {self.keys[team]}"}
        return plain_http.post(url, json=body, headers=headers, timeout=60)

    def sent(self, answer: httpx2.Response) -> tuple[Bill, dict[str, Any]]:
        """Return the provider's last bill and the event of the answered request."""
        assert answer.status_code == 200, answer.text
        (event,) = self.gateway.events(answer.headers["x-request-id"])
        return self.provider.bills[-1], event

    def new_key(self, team: str = "hard") -> None:
        """Use a new key, which has a new budget."""
        self.keys[team] = self.gateway.make_key(team)
        newest = {"authorization": f"Bearer {self.keys[team]}"}
        url = f"{self.gateway.base_url}/models"
        eventually(lambda: plain_http.get(url, headers=newest).status_code == 200, "the new key")


def _deployment(provider: Provider, name: str, kind: str, *modes: str, more: str = "") -> str:
    """Return a deployment of the policy."""
    key = "" if kind == "openai_compatible" else 'api_key: "env:FAKE_KEY", '
    return (
        f"  - {{name: {name}, provider: {kind}, model: m, region: unknown, {key}"
        f'base_url: "{provider.url(*modes)}", operations: {OPERATIONS[kind]}, '
        "allows: [hosted_tools, service_tier], context_window: 1000, "
        f"max_output_tokens: 100{more}}}"
    )


def _policy(provider: Provider) -> str:
    """Return a policy with a route for each deployment, and teams with and without a budget."""
    priced = f", price: {PRICE}"
    deployments = {
        "openai": ("openai", "max_tool_calls", priced),
        "unlisted": ("openai", "max_tool_calls", f", price: {UNLISTED}"),
        "anthropic": ("anthropic", "max_uses", priced),
        "fast": ("anthropic", "max_uses", f", price: {UNLISTED}"),
        "patient": ("anthropic", "max_uses", f"{priced}, hosted_rounds: 10"),
        "xai": ("xai", "max_turns", priced),
        "deaf": ("openai_compatible", "deaf", priced),
        "dropping": ("openai_compatible", "deaf", f"{priced}, hosted_tools: drop"),
        "holding": (
            "openai_compatible",
            "deaf",
            f"{priced}, hosted_tools: hold, hosted_rounds: {DEAF_ROUNDS}",
        ),
    }
    listed = "\n".join(
        _deployment(provider, name, kind, mode, more=more)
        for name, (kind, mode, more) in deployments.items()
    )
    routes = {name: name for name in deployments} | {"two": "deaf, openai"}
    of_routes = "\n".join(
        f"  - {{name: {name}, objective: priority, deployments: [{one}]}}"
        for name, one in routes.items()
    )
    names = ", ".join(routes)
    budget = f"budgets: [{{period: once, limit_usd: {LIMIT_USD}}}]"
    team = f"cost_centre: CC-1, data_class: internal, routes: [{names}]"
    return f"""\
version: 1
classes: {{internal: {{regions: [any]}}}}
deployments:
{listed}
routes:
{of_routes}
teams:
  - {{name: hard, {team}, keys: [{{key: "*", {budget}}}]}}
  - {{name: free, {team}}}
  - {{name: counted, {team}, limits: {{tokens_per_minute: 5000}}}}
"""


@pytest.fixture(scope="module")
def searches_of_module(launch_gateway: Any, module_database_url: str) -> Iterator[Searches]:
    """Yield a gateway before a provider that runs tools."""
    with running_provider() as provider:
        for gateway in launch_gateway(_policy(provider), module_database_url):
            keys = {team: gateway.make_key(team) for team in ("free", "counted")}
            yield Searches(gateway, provider, keys)


@pytest.fixture
def searches(searches_of_module: Searches) -> Searches:
    """Return the module's gateway with a new budget and an empty ledger of the provider."""
    searches_of_module.provider.bills.clear()
    searches_of_module.new_key()
    return searches_of_module


def _body(path: str, route: str, *tools: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a request with tools."""
    prompt: dict[str, Any] = {"input": "search"}
    if path != "responses":
        prompt = {"messages": [{"role": "user", "content": "search"}]}
    maximum = "max_output_tokens" if path == "responses" else "max_tokens"
    return {"model": route, maximum: 100, **prompt, "tools": list(tools), **more}


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("path", "route", "tools", "more", "rounds"),
    [
        ("responses", "openai", [SEARCH], {}, 4),
        ("responses", "openai", [SEARCH], {"max_tool_calls": 2}, 2),
        ("responses", "openai", [SEARCH, {"type": "file_search"}], {"max_tool_calls": 90}, 4),
        ("responses", "openai", [{"type": "mcp", "server_label": "x"}], {}, 4),
        ("responses", "openai", [{"type": "of_tomorrow"}], {}, 4),
        ("responses", "openai", [{"type": "computer"}, {"type": "local_shell"}], {}, 0),
        ("responses", "xai", [SEARCH, {"type": "x_search"}], {"max_turns": 3}, 3),
        ("responses", "xai", [SEARCH], {"max_turns": "9"}, 4),
        ("messages", "anthropic", [OLD_SEARCH], {}, 4),
        ("messages", "anthropic", [{**OLD_SEARCH, "max_uses": 8}], {}, 4),
        ("messages", "anthropic", [{**OLD_SEARCH, "max_uses": 1}, OLD_FETCH], {}, 5),
        ("messages", "patient", [{"type": "web_search_20260318", "name": "web_search"}], {}, 10),
        ("messages", "patient", [{"type": "code_execution_20250825", "name": "c"}], {}, 10),
        ("responses", "two", [SEARCH], {}, 4),
        ("responses", "holding", [SEARCH], {}, DEAF_ROUNDS),
    ],
)
def test_no_event_costs_more_than_its_hold(
    searches: Searches,
    path: str,
    route: str,
    tools: list[dict[str, Any]],
    more: dict[str, Any],
    rounds: int,
    is_stream: bool,
) -> None:
    """The provider runs every round that the sent bound allows; the hold has a window for each."""
    answer = searches.post(path, _body(path, route, *tools, stream=is_stream, **more))
    bill, event = searches.sent(answer)
    assert bill.input_tokens == 1000 * (rounds + 1)
    assert not event["is_suspect"], (event["held_usd"], event["cost_usd"])
    assert event["features"]["windows"] == rounds + 1


def test_a_hard_budget_is_never_overrun(searches: Searches) -> None:
    """Each request costs five windows and its calls: ten of them fit in the budget."""
    body = _body("responses", "openai", SEARCH, max_tool_calls=30)
    answers = [searches.post("responses", body).status_code for _ in range(14)]
    assert set(answers) == {200, 402}
    billed = sum(
        Decimal(bill.input_tokens + bill.output_tokens) / 1000 + Decimal(bill.calls) / 100
        for bill in searches.provider.bills
    )
    assert billed <= LIMIT_USD
    assert billed > LIMIT_USD - 7, "a hold is no larger than it needs to be"


@pytest.mark.parametrize(
    ("path", "route", "tool", "remedies"),
    [
        ("responses", "deaf", SEARCH, ["hosted_tools: drop", "hosted_tools: hold"]),
        ("chat/completions", "deaf", {"type": "browser_search"}, ["hosted_tools: drop"]),
        (
            "messages",
            "anthropic",
            {"type": "code_execution_20250825", "name": "c"},
            ["hosted_tools: drop", "hosted_rounds: 10"],
        ),
        ("messages", "anthropic", {"type": "of_tomorrow", "name": "t"}, ["hosted_rounds: 10"]),
    ],
)
def test_a_tool_without_a_bound_is_refused_with_the_remedies(
    searches: Searches, path: str, route: str, tool: dict[str, Any], remedies: list[str]
) -> None:
    """Nothing is sent; a team without a hard budget is served, because its budget only counts."""
    body = _body(path, route, tool)
    refused = searches.post(path, body)
    assert refused.status_code == 400, refused.text
    assert searches.provider.bills == []
    assert tool["type"] in refused.text
    assert all(remedy in refused.text for remedy in remedies), refused.text
    assert searches.post(path, body, team="free").status_code == 200


def test_a_tool_that_is_defined_in_the_conversation_has_rounds_too(searches: Searches) -> None:
    """Anthropic takes one in a message; it passed with the hold of a plain message."""
    tool = {"type": "tool_definition", "definition": OLD_SEARCH}
    turn = {"role": "system", "content": [{"type": "tool_addition", "tool": tool}]}
    messages = [{"role": "user", "content": "search"}, turn]
    body = {"model": "anthropic", "max_tokens": 100, "messages": messages}
    refused = searches.post("messages", body)
    assert refused.status_code == 400, refused.text
    assert searches.provider.bills == []
    assert "messages: tools: web_search_20250305" in refused.text
    assert "hosted_rounds: 10" in refused.text
    assert "hosted_tools: drop" not in refused.text, "it cannot be taken out of a message"
    assert searches.post("messages", body, team="free").status_code == 200
    _, event = searches.sent(searches.post("messages", body | {"model": "patient"}))
    assert event["features"]["windows"] == 11


def test_a_fee_that_nothing_states_is_refused_with_the_remedies(searches: Searches) -> None:
    """Pictures were held at the rate of searches. A container has a stated fee, by its size."""
    body = _body("responses", "openai", {"type": "image_generation"})
    refused = searches.post("responses", body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools")
    assert searches.provider.bills == []
    for remedy in ("image_generation_usd_per_1k_calls", "hosted_tools: drop", "price add"):
        assert remedy in refused.text
    assert searches.post("responses", body, team="free").status_code == 200
    for container, fee_usd in (({"type": "auto"}, "0.03"), ("cntr_1", "1.92")):
        code = {"type": "code_interpreter", "container": container}
        _, event = searches.sent(searches.post("responses", _body("responses", "unlisted", code)))
        # Five windows at 1.25 times the input (written to the cache), one answer and four
        # containers, and the rounding of two lines.
        expected = Decimal("6.35") + 4 * Decimal(fee_usd) + Decimal("0.000000001")
        assert Decimal(event["held_usd"]) == expected


@pytest.mark.parametrize("name", ["service_tier", "speed"])
def test_a_tier_without_a_rate_is_refused_with_the_remedies(searches: Searches, name: str) -> None:
    """It was held at the standard rate, which is half of what `priority` costs."""
    body = {"model": "fast", "max_tokens": 10, "messages": [{"role": "user", "content": "x"}]}
    refused = searches.post("messages", body | {name: "fast"})
    assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")
    assert searches.provider.bills == []
    for remedy in ("service_tiers", f"listed: [{name}]", "price add"):
        assert remedy in refused.text
    assert searches.post("messages", body | {name: "fast"}, team="free").status_code == 200
    assert searches.post("messages", body).status_code == 200


def test_a_tool_that_is_dropped_is_named(searches: Searches) -> None:
    """The rest of the request is answered: the caller sees which tool it does not have."""
    own = {"type": "function", "name": "f", "parameters": {}}
    answer = searches.post(
        "responses", _body("responses", "dropping", own, SEARCH, tool_choice=SEARCH)
    )
    bill, event = searches.sent(answer)
    assert bill.body["tools"] == [own]
    assert "tool_choice" not in bill.body
    assert answer.headers["x-tollgate-dropped-fields"] == "tools: web_search"
    assert event["features"]["dropped_fields"] == ["tools: web_search"]
    alone = searches.post(
        "responses",
        _body("responses", "dropping", SEARCH, tool_choice="auto", parallel_tool_calls=True),
    )
    assert (
        searches.sent(alone)[0]
        .body.keys()
        .isdisjoint({"tools", "tool_choice", "parallel_tool_calls"})
    )


def test_a_token_limit_takes_its_guess_and_settles(searches: Searches) -> None:
    """No window of a round counts in advance: the limit is smaller than five of them."""
    answer = searches.post("responses", _body("responses", "openai", SEARCH), team="counted")
    bill, _ = searches.sent(answer)
    assert "max_tool_calls" not in bill.body


def test_a_fee_that_the_price_does_not_list_is_held(searches: Searches) -> None:
    """The dearest known fee is held, and the event stays unknown at its hold."""
    answer = searches.post("responses", _body("responses", "unlisted", SEARCH))
    _, event = searches.sent(answer)
    assert (event["usage_source"], event["cost_usd"]) == ("unknown", None)
    # Five windows at 1.25 times the input (written to the cache), one answer, four calls, and a
    # nano-dollar for the rounding of two lines.
    assert Decimal(event["held_usd"]) == Decimal("6.450000001")


def test_codex_and_claude_code_work_under_a_hard_budget(searches: Searches) -> None:
    """Both send a search of the provider: Codex with each request, Claude Code for its tool."""
    codex = {**json.loads(CODEX.read_text()), "model": "openai", "input": "search"}
    bill, event = searches.sent(searches.post("responses", codex))
    assert bill.body["tools"] == codex["tools"]
    assert bill.body["max_tool_calls"] == 4
    assert not event["is_suspect"]
    searches.new_key()
    claude = _body("messages", "anthropic", {**OLD_SEARCH, "max_uses": 8}, stream=True)
    bill, event = searches.sent(searches.post("messages?beta=true", claude))
    assert bill.body["tools"] == [{**OLD_SEARCH, "max_uses": 4}]
    assert not event["is_suspect"]
