"""Callers of chat through a running gateway, to upstreams of Anthropic and Bedrock."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import openai
import pytest

from tests.gateway_process import UPSTREAM_SECRET, Gateway
from tests.integration.converse_upstream import ConverseUpstream, converse_upstream
from tests.integration.messages_upstream import MessagesUpstream, messages_upstream

PRICE = (
    "{input_usd_per_mtok: 3, cached_input_usd_per_mtok: 0.3, cache_write_usd_per_mtok: 3.75, "
    "cache_write_1h_usd_per_mtok: 6, output_usd_per_mtok: 15}"
)
ANTHROPIC = ("claude", "tools", "cut", "error", "429")
BEDROCK = ("nova-1:0", "cut", "error", "429", "signed")
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
ASK: Any = [{"role": "user", "content": "Weather in Bonn?"}]
# 27 fresh, 400 read, 100 written for five minutes, 20 for an hour, 40 written out.
COST = Decimal("0.001296")


def policy(messages: str, converse: str) -> str:
    """Return a policy with one route for each answer of both upstreams."""
    common = f"region: unknown, price: {PRICE}"
    key = 'api_key: "env:FAKE_KEY"'
    signed = (
        'credentials: {access_key_id: "env:FAKE_KEY", secret_access_key: "env:FAKE_KEY", '
        'session_token: "env:FAKE_KEY"}'
    )
    lines = [
        f'  - {{name: "a-{model}", model: "{model}", provider: anthropic, base_url: "{messages}", '
        f"{key}, {common}}}"
        for model in ANTHROPIC
    ] + [
        f'  - {{name: "b-{model[:6]}", model: "{model}", provider: bedrock, '
        f'base_url: "{converse}", '
        f"{signed if model == 'signed' else key}, {common}}}"
        for model in BEDROCK
    ]
    names = [f"a-{model}" for model in ANTHROPIC] + [f"b-{model[:6]}" for model in BEDROCK]
    drops = lines[0].replace("a-claude", "drops").replace("}}", "}, untranslatable: drop}")
    routes = "\n".join(
        f'  - {{name: "{name}", deployments: ["{name}"]}}' for name in [*names, "drops"]
    )
    deployments = "\n".join([*lines, drops])
    listed = ", ".join(f'"{name}"' for name in [*names, "drops"])
    return f"""\
version: 1
classes: {{internal: {{regions: [any]}}}}
deployments:
{deployments}
routes:
{routes}
teams:
  - {{name: payments, cost_centre: CC-1, data_class: internal, routes: [{listed}]}}
"""


@pytest.fixture(scope="module")
def messages() -> Iterator[MessagesUpstream]:
    """Yield the upstream of Anthropic's dialect."""
    yield from messages_upstream()


@pytest.fixture(scope="module")
def converse() -> Iterator[ConverseUpstream]:
    """Yield the upstream of Bedrock's dialect."""
    yield from converse_upstream()


@pytest.fixture(scope="module")
def gateway(
    launch_gateway: Callable[..., Iterator[Gateway]],
    module_database_url: str,
    messages: MessagesUpstream,
    converse: ConverseUpstream,
) -> Iterator[Gateway]:
    """Yield a gateway in front of both."""
    yield from launch_gateway(policy(messages.url, converse.url), module_database_url)


def only_event(gateway: Gateway, request_id: str) -> dict[str, Any]:
    """Return the one event of a request."""
    (event,) = gateway.events(request_id)
    return event


def asked(client: openai.OpenAI, model: str, **members: Any) -> tuple[Any, str]:
    """Return a plain answer and the id of its request."""
    raw = client.chat.completions.with_raw_response.create(
        model=model, messages=ASK, max_tokens=50, **members
    )
    return raw.parse(), raw.headers["x-request-id"]


def streamed(client: openai.OpenAI, model: str) -> tuple[list[Any], str, openai.APIError | None]:
    """Return the chunks of a stream, the id of its request and the error that ended it."""
    raw = client.chat.completions.with_raw_response.create(
        model=model,
        messages=ASK,
        max_tokens=50,
        tools=[TOOL],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks: list[Any] = []
    try:
        chunks.extend(raw.parse())
    except openai.APIError as error:
        return chunks, raw.headers["x-request-id"], error
    return chunks, raw.headers["x-request-id"], None


def test_a_plain_answer_of_anthropic(
    gateway: Gateway, client: openai.OpenAI, messages: MessagesUpstream
) -> None:
    """The chat has text, thoughts and usage; the row has what the provider reports."""
    answer, request_id = asked(client, "a-claude")
    assert answer.choices[0].message.content == "Hi you"
    assert answer.choices[0].message.reasoning_content == "hm"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens == 1510
    event = only_event(gateway, request_id)
    assert (event["operation"], event["outcome"], event["finish_reason"]) == (
        "chat",
        "ok",
        "end_turn",
    )
    assert (event["input_tokens"], event["cached_input_tokens"]) == (1510, 1000)
    assert (event["output_tokens"], event["reasoning_tokens"]) == (12, 5)
    assert Decimal(str(event["cost_usd"])) == Decimal(str(answer.usage.cost_usd))
    sent = messages.received[-1]
    assert (sent.path, sent.headers["anthropic-version"]) == ("/v1/messages", "2023-06-01")
    assert sent.headers["x-api-key"] == UPSTREAM_SECRET
    assert json.loads(sent.body)["max_tokens"] == 50


def test_without_a_maximum_the_held_one_is_sent(
    gateway: Gateway, client: openai.OpenAI, messages: MessagesUpstream
) -> None:
    """The dialect requires one, and the hold must be a bound of it."""
    raw = client.chat.completions.with_raw_response.create(model="a-claude", messages=ASK)
    assert json.loads(messages.received[-1].body)["max_tokens"] == 32_000
    assert only_event(gateway, raw.headers["x-request-id"])["outcome"] == "ok"


@pytest.mark.parametrize("model", ["a-tools", "b-nova-1", "b-signed"])
def test_a_stream_with_a_tool_call(gateway: Gateway, client: openai.OpenAI, model: str) -> None:
    """The same answer from both, at the same cost."""
    chunks, request_id, error = streamed(client, model)
    assert error is None
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == "Let me look."
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    assert calls[0].function.name == "get_weather"
    arguments = "".join(call.function.arguments or "" for call in calls)
    assert json.loads(arguments) == {"city": "Bonn"}
    assert chunks[-2].choices[0].finish_reason == "tool_calls"
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (547, 40)
    event = only_event(gateway, request_id)
    assert (event["outcome"], event["usage_source"], event["finish_reason"]) == (
        "ok",
        "provider",
        "tool_use",
    )
    assert Decimal(str(event["cost_usd"])) == COST


def test_a_plain_answer_of_bedrock(
    gateway: Gateway, client: openai.OpenAI, converse: ConverseUpstream
) -> None:
    """The address has the escaped model; the key goes as a bearer."""
    answer, request_id = asked(client, "b-nova-1", temperature=0.5)
    assert answer.choices[0].message.content == "Forty-two."
    event = only_event(gateway, request_id)
    assert (event["outcome"], event["finish_reason"]) == ("ok", "end_turn")
    assert event["reasoning_tokens"] is None
    assert Decimal(str(event["cost_usd"])) == COST
    sent = converse.received[-1]
    assert sent.path == "/model/nova-1%3A0/converse"
    assert sent.headers["authorization"] == f"Bearer {UPSTREAM_SECRET}"
    assert json.loads(sent.body)["inferenceConfig"] == {"maxTokens": 50, "temperature": 0.5}


def test_a_signed_request(client: openai.OpenAI, converse: ConverseUpstream) -> None:
    """The secret key makes the signature and is not sent."""
    asked(client, "b-signed")
    sent = converse.received[-1]
    assert sent.headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=")
    assert (
        "SignedHeaders=content-type;host;x-amz-date;x-amz-security-token"
        in (sent.headers["authorization"])
    )


@pytest.mark.parametrize(
    ("model", "input_tokens", "source"),
    [("a-cut", 1510, "estimated"), ("b-cut", None, "estimated")],
)
def test_a_cut_stream_is_settled(
    gateway: Gateway, client: openai.OpenAI, model: str, input_tokens: int | None, source: str
) -> None:
    """What was reported before the break stands in the row, and the rest is counted."""
    chunks, request_id, error = streamed(client, model)
    assert error is not None
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    event = only_event(gateway, request_id)
    assert (event["outcome"], event["usage_source"]) == ("upstream_cut", source)
    if input_tokens is not None:
        assert (event["input_tokens"], event["cached_input_tokens"]) == (input_tokens, 1000)
    assert event["output_tokens"] > 0


@pytest.mark.parametrize("model", ["a-error", "b-error"])
def test_an_error_in_a_stream_is_handed_on(
    gateway: Gateway, client: openai.OpenAI, model: str
) -> None:
    """The caller gets an error, never a clean end."""
    _, request_id, error = streamed(client, model)
    assert error is not None
    assert only_event(gateway, request_id)["outcome"] == "upstream_error"


@pytest.mark.parametrize("model", ["a-429", "b-429"])
def test_an_error_answer_is_mapped(client: openai.OpenAI, model: str) -> None:
    """By its status; the caller's SDK knows it."""
    with pytest.raises(openai.RateLimitError):
        asked(client, model)


def test_a_field_without_a_place(client: openai.OpenAI, messages: MessagesUpstream) -> None:
    """It is refused by its name and nothing is sent, or dropped and named."""
    before = len(messages.received)
    with pytest.raises(openai.BadRequestError) as refused:
        asked(client, "a-claude", seed=1)
    assert refused.value.param == "seed"
    assert len(messages.received) == before
    raw = client.chat.completions.with_raw_response.create(
        model="drops", messages=ASK, max_tokens=50, seed=1
    )
    assert raw.headers["x-tollgate-dropped-fields"] == "seed"
