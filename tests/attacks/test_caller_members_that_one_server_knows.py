"""`n_cmpl` of llama.cpp multiplied the answers and no list of ours had it: one request cost USD 32
of a hard 20. Under a hard budget a member counts only if the server's published schema lists it and
its effect on the cost has a bound.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests import plain_http
from tests.attacks.bounded import LIMIT_USD, Bounded
from tests.attacks.permissive_engine import WINDOW, running_engine
from tests.gateway_process import Gateway, StartGateway
from tests.integration.policy import PRICE

CHAT = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 10}
DEPLOYMENTS = {
    "llama": "provider: llamacpp",
    "compatible": "provider: openai_compatible",
    "drops": "provider: openai_compatible, unlisted: drop",
    "sixteen": "provider: openai_compatible, unlisted: {factor: 16}",
    "lists": "provider: openai_compatible, listed: [watermark_key, stream_options.pace]",
    "llama-vectors": "provider: llamacpp, operations: [embeddings, rerank]",
    "vectors": "provider: openai_compatible, operations: [embeddings, rerank]",
    "claude": 'provider: anthropic, api_key: "env:FAKE_KEY"',
    "claude-drops": 'provider: anthropic, api_key: "env:FAKE_KEY", unlisted: drop',
}
ROUTES = {name: [name] for name in DEPLOYMENTS} | {
    "two": ["compatible", "lists"],
    "later": ["drops", "lists"],
    "cheapest": ["drops", "lists"],
}


def policy(url: str) -> str:
    """A route for each deployment, with a small hard budget of each key, and a free team."""
    listed = "\n".join(
        f"  - {{name: {name}, base_url: '{url}', model: m, region: unknown, price: {PRICE}, "
        f"context_window: {WINDOW}, {fields}}}"
        for name, fields in DEPLOYMENTS.items()
    )
    routes = "\n".join(
        f"  - {{name: {name}, deployments: [{', '.join(of)}]"
        + (", objective: cheapest}" if name == "cheapest" else "}")
        for name, of in ROUTES.items()
    )
    names = ", ".join(ROUTES)
    budgets = f"[{{period: month, limit_usd: {LIMIT_USD}}}]"
    return f"""\
version: 1
classes: {{internal: {{regions: [any]}}}}
deployments:
{listed}
routes:
{routes}
teams:
  - {{name: poor, cost_centre: CC-1, data_class: internal, routes: [{names}],
     keys: [{{key: "*", budgets: {budgets}}}]}}
  - {{name: free, cost_centre: CC-2, data_class: internal, routes: [{names}],
     limits: {{tokens_per_minute: 100000}}}}
"""


@pytest.fixture(scope="module")
def gateway_and_engine(launch_gateway: StartGateway, module_database_url: str) -> Iterator[Bounded]:
    with running_engine() as engine:
        url = engine.url("max_tokens", "window")
        for gateway in launch_gateway(policy(url), module_database_url):
            yield Bounded(gateway, engine, gateway.key)


@pytest.fixture
def poor(gateway_and_engine: Bounded) -> Bounded:
    gateway_and_engine.engine.forget()
    gateway_and_engine.provide(1)
    gateway_and_engine.renew()
    return gateway_and_engine


def refused(on: Bounded, path: str, body: dict[str, object]) -> str:
    """Return the message of a refusal by name, before anything is sent."""
    answer = on.post(path, body)
    assert answer.status_code == 400, answer.text
    assert on.engine.bills == []
    error = answer.json()["error"]
    return f"{error.get('param')}: {error['message']}"


@pytest.mark.parametrize("stream", [False, True])
def test_the_other_name_for_the_number_of_answers_is_counted(poor: Bounded, stream: bool) -> None:
    """Three of four answers were not in the hold."""
    bill = poor.try_one(
        "chat/completions", CHAT | {"model": "llama", "n_cmpl": 4, "stream": stream}
    )
    assert bill is not None
    assert bill.output_tokens == 40
    assert poor.try_one("chat/completions", CHAT | {"model": "llama", "n_cmpl": 128}) is not None
    poor.engine.forget()
    refused(poor, "chat/completions", CHAT | {"model": "llama", "n_cmpl": 129})


@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses"])
@pytest.mark.parametrize(
    "member", ["num_completions", "num_generations", "agent_count", "frobnicate"]
)
def test_a_member_without_a_known_effect_is_refused_by_name(
    poor: Bounded, path: str, member: str
) -> None:
    """The answer names it with every remedy."""
    body = {"chat/completions": CHAT, "completions": {"prompt": "x"}, "responses": {"input": "x"}}
    said = refused(poor, path, body[path] | {"model": "compatible", member: 100})
    assert said.startswith(f"{member}: ")
    for remedy in ("Leave it out", f"listed: [{member}]", "unlisted: drop", "{factor: N}"):
        assert remedy in said


@pytest.mark.parametrize(
    ("member", "value", "named"),
    [
        ("stream_options", {"include_usage": True, "pace": 2}, "stream_options.pace"),
        ("reasoning", {"effort": "low", "mode": "pro"}, "reasoning.mode=pro"),
        ("thinking", {"type": "collective"}, "thinking.type=collective"),
        ("response_format", {"type": "many"}, "response_format.type=many"),
        ("modalities", ["text", "image"], "modalities=image"),
        ("max_output_tokens", 4000, "max_output_tokens"),
        ("reasoning", {"mode": ["pro"]}, "reasoning.mode=?"),
        ("context_management", {"edits": [{"type": "rewrite"}, 5]}, "context_management=?"),
        ("prompt_cache_options", {"ttl": "365d"}, "prompt_cache_options.ttl=365d"),
    ],
)
def test_parts_and_values_that_a_bound_relies_on_are_refused_too(
    poor: Bounded, member: str, value: object, named: str
) -> None:
    """The same kind one level down, and the maximum of another endpoint."""
    body = CHAT | {"model": "compatible", "stream": True, member: value}
    assert refused(poor, "chat/completions", body).startswith(f"{named}: ")


@pytest.mark.parametrize(
    ("path", "route", "prompts", "more"),
    [
        ("embeddings", "llama-vectors", "content", {}),
        ("embeddings", "vectors", "inputs", {}),
        ("embeddings", "vectors", "content", {"input": []}),
        ("rerank", "llama-vectors", "texts", {"query": "q"}),
        ("rerank", "vectors", "texts", {"query": "q"}),
    ],
)
def test_prompts_under_another_name_are_counted(
    poor: Bounded, path: str, route: str, prompts: str, more: dict[str, object]
) -> None:
    """Twenty of them were held as one window."""
    body = {"model": route, prompts: ["b" * (WINDOW + 200)] * 20, **more}
    bill = poor.try_one(path, body)
    assert bill is not None
    assert bill.input_tokens == 20 * WINDOW
    (event,) = poor.gateway.query(
        "SELECT * FROM finance.usage_events WHERE key_id = %s", poor.key.split("_")[1]
    )
    assert event["features"]["prompts"] >= 20
    assert not event["is_suspect"]


def test_it_goes_first_to_a_deployment_that_takes_it(poor: Bounded) -> None:
    """Also if the other one stands first, or is as cheap, and would leave it out."""
    for route in ("two", "later", "cheapest"):
        answer = poor.post("chat/completions", CHAT | {"model": route, "watermark_key": "a"})
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-tollgate-deployment"] == "lists"
        assert poor.engine.bills[-1].body["watermark_key"] == "a"


def test_a_dropped_member_is_not_sent_and_is_named(poor: Bounded) -> None:
    """In the header, and in the event, which keeps the caller's other bytes."""
    body = CHAT | {"model": "drops", "num_completions": 9, "stream_options": {"pace": 1}}
    answer = poor.post("chat/completions", body | {"stream": True, "seed": 7, "frobnicate": None})
    assert answer.status_code == 200, answer.text
    (bill,) = poor.engine.bills
    assert bill.output_tokens == 10
    assert bill.body.keys().isdisjoint({"num_completions", "frobnicate"})
    assert "pace" not in bill.body["stream_options"]
    assert bill.body["seed"] == 7
    names = "frobnicate, num_completions, stream_options.pace"
    assert answer.headers["x-tollgate-dropped-fields"] == names
    event = poor.event(answer)
    assert event["features"]["unlisted"] == names.split(", ")


def test_a_factor_multiplies_the_hold(poor: Bounded) -> None:
    """The honest bill then fits it."""
    body = CHAT | {"model": "sixteen", "num_completions": 9}
    answer = poor.post("chat/completions", body)
    assert answer.status_code == 200, answer.text
    (bill,) = poor.engine.bills
    assert bill.output_tokens == 90
    event = poor.event(answer)
    assert not event["is_suspect"]
    assert poor.spent_usd() <= LIMIT_USD


def test_without_a_hard_budget_it_passes_unchanged(gateway_and_engine: Bounded) -> None:
    """Tomorrow's members work today; a token limit takes its guess and settles."""
    on = gateway_and_engine
    on.engine.forget()
    key = on.gateway.make_key("free")
    gateway: Gateway = on.gateway
    body = CHAT | {"model": "compatible", "frobnicate": {"a": 1}, "num_completions": 2}
    answer = plain_http.post(
        f"{gateway.base_url}/chat/completions",
        content=json.dumps(body).encode(),
        headers={"authorization": f"Bearer {key}", "content-type": "application/json"},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    assert on.engine.bills[-1].body["frobnicate"] == {"a": 1}
    (event,) = gateway.events(answer.headers["x-request-id"])
    assert event["features"]["unlisted"] == ["frobnicate", "num_completions"]


def message(on: Bounded, route: str, beta: str, query: str = "") -> tuple[int, str, dict[str, str]]:
    """Send a message with a beta."""
    answer = plain_http.post(
        f"{on.gateway.base_url}/messages{query}",
        content=json.dumps(CHAT | {"model": route}).encode(),
        headers={
            "x-api-key": on.key,
            "content-type": "application/json",
            "anthropic-version": "2023-06-01",
            "anthropic-beta": beta,
        },
        timeout=60,
    )
    return answer.status_code, answer.text, dict(answer.headers)


def test_a_beta_that_no_sdk_knows_is_refused_or_left_out(poor: Bounded) -> None:
    """A header may change a bound as well as a member."""
    status, text, _ = message(poor, "claude", "fine-answers-2026-11-01")
    assert status == 400
    assert "anthropic-beta: fine-answers-2026-11-01" in text
    assert poor.engine.bills == []
    usual = "claude-code-20250219,interleaved-thinking-2025-05-14"
    assert message(poor, "claude", usual, "?beta=true&n=9")[0] == 200
    status, _, headers = message(poor, "claude-drops", f"{usual},fine-answers-2026-11-01")
    assert status == 200
    assert headers["x-tollgate-dropped-fields"] == "anthropic-beta: fine-answers-2026-11-01"
