"""Callers of Anthropic's messages through a running gateway, to upstreams of the same dialect."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any
from uuid import UUID

import httpx2
import pytest

from tests import plain_http
from tests.gateway_process import UPSTREAM_SECRET, FakeUpstreamProcess, Gateway
from tests.integration.messages_upstream import (
    MESSAGE,
    STREAMS,
    MessagesUpstream,
    messages_upstream,
)

PRICE = (
    "{input_usd_per_mtok: 3, cached_input_usd_per_mtok: 0.3, cache_write_usd_per_mtok: 3.75, "
    "cache_write_1h_usd_per_mtok: 6, output_usd_per_mtok: 15}"
)
# 10 fresh, 1,000 read, 200 written for five minutes, 300 for an hour, 12 written out.
COST = Decimal("0.00306")
MODELS = ("claude", "cut", "cut-early", "error", "429", "529", "404")
ASK = {"max_tokens": 50, "messages": [{"role": "user", "content": "Hello"}]}


def policy(url: str, chat_url: str) -> str:
    common = f'region: unknown, base_url: "{url}", price: {PRICE}'
    deployments = "\n".join(
        f'  - {{name: d-{model}, model: "{model}", provider: anthropic, api_key: "env:FAKE_KEY", '
        f"{common}}}"
        for model in MODELS
    )
    routes = "\n".join(f'  - {{name: "{model}", deployments: [d-{model}]}}' for model in MODELS)
    names = ", ".join(f'"{model}"' for model in MODELS)
    return f"""\
version: 1
classes: {{internal: {{regions: [any]}}}}
deployments:
{deployments}
  - {{name: engine, model: claude, provider: vllm, {common}}}
  - {{name: chat, model: "fake/style:vllm", provider: openai_compatible, region: unknown,
     base_url: "{chat_url}/v1", price: {PRICE}}}
routes:
{routes}
  - {{name: engine, deployments: [engine]}}
  - {{name: chat, deployments: [chat]}}
teams:
  - {{name: payments, cost_centre: CC-1, data_class: internal, routes: [{names}, engine, chat],
     limits: {{requests_per_minute: 10000}}}}
"""


@pytest.fixture(scope="module")
def upstream() -> Iterator[MessagesUpstream]:
    """Yield the upstream of all deployments."""
    yield from messages_upstream()


@pytest.fixture(scope="module")
def gateway(
    launch_gateway: Callable[..., Iterator[Gateway]],
    module_database_url: str,
    upstream: MessagesUpstream,
    fake_upstream: FakeUpstreamProcess,
) -> Iterator[Gateway]:
    """Yield a gateway in front of it, and of a server that speaks chat alone."""
    document = policy(upstream.url, fake_upstream.url)
    yield from launch_gateway(document, module_database_url)


@pytest.fixture
def http(gateway: Gateway) -> Iterator[httpx2.Client]:
    """Yield a client that sends its key as Anthropic's clients did."""
    with httpx2.Client(
        verify=plain_http.NO_CERTIFICATES,
        base_url=f"http://127.0.0.1:{gateway.port}",
        headers={"x-api-key": gateway.key, "anthropic-version": "2023-06-01"},
        timeout=30,
    ) as made:
        yield made


def post(http: httpx2.Client, model: str, path: str = "/v1/messages", **members: Any) -> Any:
    return http.post(path, json={"model": model, **ASK, **members})


def only_event(gateway: Gateway, answer: httpx2.Response) -> dict[str, Any]:
    (event,) = gateway.events(answer.headers["request-id"])
    return event


def test_a_whole_answer_has_the_callers_model_and_its_cost(
    gateway: Gateway, http: httpx2.Client, upstream: MessagesUpstream
) -> None:
    """The row has each part of the prompt, and the answer what it cost."""
    answer = post(http, "claude")
    assert answer.status_code == 200
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    assert answer.headers["anthropic-ratelimit-requests-limit"] == "10000"
    assert answer.headers["anthropic-ratelimit-requests-reset"].endswith("Z")
    body = answer.json()
    cost = body["usage"].pop("cost_usd")
    assert body == {**MESSAGE, "model": "claude"}
    event = only_event(gateway, answer)
    assert {
        name: event[name]
        for name in (
            "operation",
            "outcome",
            "input_tokens",
            "cached_input_tokens",
            "cache_write_tokens",
            "output_tokens",
            "reasoning_tokens",
            "finish_reason",
            "usage_source",
        )
    } == {
        "operation": "messages",
        "outcome": "ok",
        "input_tokens": 1510,
        "cached_input_tokens": 1000,
        "cache_write_tokens": 500,
        "output_tokens": 12,
        "reasoning_tokens": 5,
        "finish_reason": "end_turn",
        "usage_source": "provider",
    }
    assert Decimal(str(event["cost_usd"])) == COST == Decimal(str(cost))
    sent = upstream.received[-1]
    assert sent.headers["x-api-key"] == UPSTREAM_SECRET
    assert "authorization" not in sent.headers


def test_a_request_passes_byte_by_byte(http: httpx2.Client, upstream: MessagesUpstream) -> None:
    """Cache marks and signatures of thinking are checked by the provider."""
    body = (
        b'{ "model":"claude", "max_tokens" : 50,"thinking":{"type":"enabled","budget_tokens":1024},'
        b'"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"h\\u00e9",'
        b'"signature":"Eq\\/B+="}]},{"role":"user","content":[{"type":"text","text":"x",'
        b'"cache_control":{"type":"ephemeral","ttl":"1h"}}]}],"temperature":1.0}'
    )
    answer = http.post(
        "/v1/messages?beta=true",
        content=body,
        headers={
            "content-type": "application/json",
            "anthropic-beta": "interleaved-thinking-2025-05-14,prompt-caching-scope-2026-01-05",
            "anthropic-version": "2026-10-21",
            "anthropic-workspace-id": "wrkspc_1",
            "x-stainless-lang": "python",
        },
    )
    assert answer.status_code == 200
    sent = upstream.received[-1]
    assert sent.body == body
    assert sent.path == "/v1/messages?beta=true"
    assert sent.headers["anthropic-version"] == "2026-10-21"
    assert sent.headers["anthropic-beta"].startswith("interleaved-thinking")
    assert not {"anthropic-workspace-id", "x-stainless-lang"} & sent.headers.keys()


def test_a_stream_keeps_its_events(gateway: Gateway, http: httpx2.Client) -> None:
    """Named as they came; the cost stands in the last usage."""
    answer = post(http, "claude", stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    expected = STREAMS["claude"].replace(b"claude-real", b"claude")
    before, _, after = answer.content.partition(b',"cost_usd":0.00306')
    assert before + after == expected
    event = only_event(gateway, answer)
    assert (event["input_tokens"], event["output_tokens"], event["usage_source"]) == (
        1510,
        12,
        "provider",
    )
    assert Decimal(str(event["cost_usd"])) == COST


@pytest.mark.parametrize(
    ("model", "outcome", "output_tokens", "kind"),
    [
        ("cut", "upstream_cut", 2, "api_error"),
        ("cut-early", "upstream_cut", None, "api_error"),
        ("error", "upstream_error", 2, "overloaded_error"),
    ],
)
def test_a_broken_stream_keeps_its_prompt(
    gateway: Gateway,
    http: httpx2.Client,
    model: str,
    outcome: str,
    output_tokens: int | None,
    kind: str,
) -> None:
    """What `message_start` reported stands in the row, the cache's parts too; the text is counted,
    and without any the output is unknown.
    The caller's stream ends with an error event and never with `message_stop`.
    """
    answer = post(http, model, stream=True)
    assert b"message_stop" not in answer.content
    name, _, data = answer.text.split("event: ")[-1].partition("\ndata: ")
    assert (name, json.loads(data)["error"]["type"]) == ("error", kind)
    event = only_event(gateway, answer)
    assert (event["outcome"], event["input_tokens"], event["cached_input_tokens"]) == (
        outcome,
        1510,
        1000,
    )
    assert event["output_tokens"] == output_tokens
    assert (event["cost_usd"] is None) == (output_tokens is None)


@pytest.mark.parametrize(
    ("model", "status", "kind", "code"),
    [
        ("429", 429, "rate_limit_error", "rate_limited"),
        ("529", 503, "overloaded_error", "overloaded"),
        ("404", 404, "not_found_error", "model_not_found"),
        ("unknown", 404, "not_found_error", "model_not_found"),
    ],
)
def test_errors_have_anthropics_shape(
    http: httpx2.Client, model: str, status: int, kind: str, code: str
) -> None:
    """Official clients read the type, the message and the request's id."""
    answer = post(http, model)
    assert answer.status_code == status
    body = answer.json()
    assert (body["type"], body["error"]["type"], body["error"]["code"]) == ("error", kind, code)
    assert body["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]


def test_a_key_may_be_a_bearer_and_a_wrong_one_is_refused(
    gateway: Gateway, http: httpx2.Client
) -> None:
    """New clients send `Authorization: Bearer`."""
    url = f"http://127.0.0.1:{gateway.port}/v1/messages"
    body = {"model": "claude", **ASK}
    headers = {"authorization": f"Bearer {gateway.key}"}
    assert plain_http.post(url, json=body, headers=headers, timeout=30).status_code == 200
    refused = plain_http.post(url, json=body, headers={"x-api-key": "tg_wrong"}, timeout=30)
    assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")


def test_paths_below_messages_that_are_not_offered(http: httpx2.Client) -> None:
    """In the shape of the same dialect."""
    answer = http.post("/v1/messages/batches", json={})
    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "not_found_error"
    assert answer.json()["error"]["code"] == "not_supported"


def test_an_engine_that_speaks_messages_gets_them(
    gateway: Gateway, http: httpx2.Client, upstream: MessagesUpstream
) -> None:
    """vLLM's own endpoint, with the team's salt at the place that it reads."""
    answer = post(http, "engine")
    assert answer.status_code == 200
    assert answer.json()["model"] == "engine"
    sent = json.loads(upstream.received[-1].body)
    assert len(sent.pop("cache_salt")) == 32
    assert sent == {"model": "claude", **ASK}
    assert only_event(gateway, answer)["input_tokens"] == 1510


def test_a_larger_window_needs_leave(http: httpx2.Client) -> None:
    """The hold relies on the declared one."""
    answer = http.post(
        "/v1/messages",
        json={"model": "claude", **ASK},
        headers={"anthropic-beta": "context-1m-2025-08-07"},
    )
    assert answer.status_code == 400
    assert "context-1m" in answer.json()["error"]["message"]


def test_an_upstream_of_chats_answers_messages(gateway: Gateway, http: httpx2.Client) -> None:
    """Claude Code reaches any backend: the request is translated, and the row says so."""
    answer = post(http, "chat", system="Be brief.", stop_sequences=["END"])
    assert answer.status_code == 200
    body = answer.json()
    assert (body["type"], body["model"], body["stop_reason"]) == ("message", "chat", "end_turn")
    assert body["content"][0]["type"] == "text"
    assert body["usage"]["output_tokens"] > 0
    assert body["usage"]["cost_usd"] > 0
    event = only_event(gateway, answer)
    assert (event["operation"], event["outcome"]) == ("messages", "ok")
    assert event["output_tokens"] == body["usage"]["output_tokens"]


def test_an_upstream_of_chats_streams_messages(gateway: Gateway, http: httpx2.Client) -> None:
    """With Anthropic's named events alone."""
    answer = post(http, "chat", stream=True)
    lines = answer.text.splitlines()
    names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    assert names[:2] == ["message_start", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    last = json.loads(lines[lines.index("event: message_delta") + 1].removeprefix("data: "))
    event = only_event(gateway, answer)
    assert last["usage"]["output_tokens"] == event["output_tokens"] > 0
    assert Decimal(str(last["usage"]["cost_usd"])) == Decimal(str(event["cost_usd"]))


def test_a_field_without_a_place_in_a_chat_is_refused_by_name(http: httpx2.Client) -> None:
    """Never silently dropped."""
    answer = post(http, "chat", container="c_1")
    assert answer.status_code in (400, 403)
    assert "container" in answer.json()["error"]["message"]


def count(http: httpx2.Client, model: str, query: str = "") -> httpx2.Response:
    body = {"model": model, "messages": ASK["messages"]}
    return http.post(f"/v1/messages/count_tokens{query}", json=body)


@pytest.mark.parametrize("model", ["claude", "engine"])
def test_a_prompt_is_counted_where_it_would_be_answered(
    gateway: Gateway, http: httpx2.Client, upstream: MessagesUpstream, model: str
) -> None:
    """Claude Code plans its compaction by this figure. It is never charged."""
    before = gateway.query("SELECT count(*) AS n FROM finance.usage_events")
    answer = count(http, model, "?beta=true")
    assert (answer.status_code, answer.json()) == (200, {"input_tokens": 2095})
    assert "x-tollgate-estimated" not in answer.headers
    sent = upstream.received[-1]
    assert sent.path == "/v1/messages/count_tokens?beta=true"
    assert json.loads(sent.body) == {"model": "claude", "messages": ASK["messages"]}
    assert gateway.query("SELECT count(*) AS n FROM finance.usage_events") == before


@pytest.mark.parametrize("model", ["chat"])
def test_a_count_that_no_upstream_can_make_is_an_estimate(http: httpx2.Client, model: str) -> None:
    """Marked, so that nobody takes it for exact."""
    answer = count(http, model)
    assert answer.status_code == 200
    assert answer.headers["x-tollgate-estimated"] == "true"
    assert 5 <= answer.json()["input_tokens"] <= 40


def test_a_count_has_errors_of_its_dialect(http: httpx2.Client) -> None:
    """As its own endpoint has."""
    answer = count(http, "unknown")
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")


@pytest.mark.parametrize(
    ("method", "path", "members", "headers", "status"),
    [
        ("POST", "/v1/messages/batches", {}, {}, 404),
        ("GET", "/v1/messages/batches/b-1/results", None, {}, 404),
        ("DELETE", "/v1/messages", None, {}, 404),
        ("POST", "/v1/messages", {"model": "unknown", **ASK}, {}, 404),
        ("POST", "/v1/messages", {"model": "claude"}, {}, 400),
        ("POST", "/v1/messages", {}, {"x-api-key": "wrong"}, 401),
        ("POST", "/v1/messages", {}, {"host": "!"}, 400),
        ("POST", "/v1/messages/count_tokens", {"model": "unknown", **ASK}, {}, 404),
        ("POST", "/v1/messages/count_tokens", {"model": "claude"}, {}, 400),
        ("POST", "/v1/messages/count_tokens", {}, {"x-api-key": "wrong"}, 401),
        ("POST", "/v1/messages/count_tokens", {}, {"host": "!"}, 400),
        ("POST", "/v1/messages/count_tokens", {}, {"content-type": "text/plain"}, 415),
    ],
)
def test_each_error_names_its_request(
    http: httpx2.Client,
    method: str,
    path: str,
    members: dict[str, Any] | None,
    headers: dict[str, str],
    status: int,
) -> None:
    """Anthropic's clients show `request_id` with each error, and read the header `request-id`."""
    answer = http.request(method, path, json=members, headers=headers)
    assert answer.status_code == status
    body = answer.json()
    assert set(body) == {"type", "error", "request_id"}
    assert body["type"] == "error"
    assert body["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]
    assert UUID(body["request_id"]).version == 7


def test_a_count_carries_its_own_id_to_the_upstream(
    http: httpx2.Client, upstream: MessagesUpstream
) -> None:
    """The id of the answer is the one in the upstream's log."""
    answer = count(http, "claude")
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    sent = {name.lower(): value for name, value in upstream.received[-1].headers.items()}
    assert sent["x-request-id"] == answer.headers["x-request-id"]


def test_other_dialects_have_one_id_alone(http: httpx2.Client) -> None:
    """`request-id` is Anthropic's."""
    for path in ("/v1/chat/completions", "/v1/files", "/v1/usage/me"):
        answer = http.post(path, json={})
        assert answer.status_code in (400, 404)
        assert "x-request-id" in answer.headers
        assert "request-id" not in answer.headers


def test_models_have_the_shape_of_the_caller(http: httpx2.Client, gateway: Gateway) -> None:
    """Anthropic's clients send their version with each request."""
    listed = http.get("/v1/models").json()
    assert listed["has_more"] is False
    assert listed["first_id"] == listed["data"][0]["id"]
    assert {one["type"] for one in listed["data"]} == {"model"}
    one = http.get("/v1/models/claude").json()
    assert (one["id"], one["display_name"], one["lifecycle"]) == ("claude", "claude", "active")
    required = "capabilities created_at display_name id max_input_tokens max_tokens type"
    assert set(required.split()) <= set(one)
    for answer in (http.get("/v1/models/unknown"), http.post("/v1/models/claude")):
        assert answer.status_code == 404
        assert answer.json()["error"]["type"] == "not_found_error"
        assert answer.json()["request_id"] == answer.headers["request-id"]
    bearer = {"authorization": f"Bearer {gateway.key}"}
    url = f"http://127.0.0.1:{gateway.port}/v1/models"
    missing = plain_http.get(f"{url}/unknown", headers=bearer, timeout=30)
    assert missing.json()["error"]["code"] == "model_not_found"
    assert "request-id" not in missing.headers
    assert plain_http.get(url, headers=bearer, timeout=30).json()["object"] == "list"
