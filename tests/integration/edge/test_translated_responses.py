"""Responses at a backend that speaks chat alone, through a real gateway, by the official client."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import httpx2
import openai
import pytest

from tests import plain_http
from tests.canary import PROMPT
from tests.gateway_process import FakeUpstreamProcess, Gateway
from tests.integration.policy import PRICE, TIMEOUTS, USD_PER_TOKEN

WORK = "in:1000+cached:400+out:12+think:4"
TEXT = "t4 t5 t6 t7 t8 t9 t10 t11"
HOSTED = [
    {"type": "function", "name": "exec_command", "parameters": {"type": "object"}},
    {"type": "web_search", "external_web_access": False},
    {"type": "custom", "name": "apply_patch"},
]


def policy(upstream: str) -> str:
    """Return a policy whose deployments speak chat alone."""
    common = (
        f'base_url: "{upstream}/v1", native: [chat], region: eu-de, price: {PRICE}, '
        f"timeouts: {TIMEOUTS}"
    )
    routes = ("strict", "drops", "engine", "cut", "dies", "unreadable")
    listed = ", ".join(f"{{name: {one}, deployments: [{one}]}}" for one in routes)
    return f"""\
version: 1
regions: {{eu: [eu-de]}}
classes: {{internal: {{regions: [any]}}}}
deployments:
  - {{name: strict, model: "fake/{WORK}", provider: openai_compatible, {common}}}
  - {{name: drops, model: "fake/{WORK}", provider: openai_compatible, untranslatable: drop, {common}}}
  - {{name: engine, model: "fake/style:vllm+{WORK}", provider: vllm, {common}}}
  - {{name: cut, model: "fake/{WORK}+cut@6", provider: openai_compatible, {common}}}
  - {{name: dies, model: "fake/{WORK}+miderr@6", provider: openai_compatible, {common}}}
  - {{name: unreadable, model: "fake/{WORK}+badjson", provider: openai_compatible, {common}}}
routes: [{listed}]
teams: [{{name: payments, cost_centre: A, data_class: internal, routes: [{", ".join(routes)}]}}]
"""  # noqa: E501


@pytest.fixture(scope="module")
def translating(
    launch_gateway: Callable[..., Iterator[Gateway]],
    module_database_url: str,
    fake_upstream: FakeUpstreamProcess,
) -> Iterator[Gateway]:
    """Yield the gateway of these tests."""
    yield from launch_gateway(policy(fake_upstream.url), module_database_url)


@pytest.fixture
def asking(translating: Gateway) -> Iterator[openai.OpenAI]:
    """Yield the official client."""
    with plain_http.official_client(translating.base_url, translating.key) as made:
        yield made


def check_usage(usage: Any, event: dict[str, Any], entry: dict[str, Any]) -> None:
    """Require that caller, ledger and upstream have the same tokens, and caller and ledger the
    same cost.
    """
    assert (usage.input_tokens, usage.input_tokens_details.cached_tokens) == (1000, 400)
    assert (usage.output_tokens, usage.output_tokens_details.reasoning_tokens) == (12, 4)
    assert (entry["generated"], entry["input_tokens"]) == (12, 1000)
    assert (event["input_tokens"], event["cached_input_tokens"]) == (1000, 400)
    assert (event["output_tokens"], event["reasoning_tokens"]) == (12, 4)
    nusd = 600 * USD_PER_TOKEN["input"] + 400 * USD_PER_TOKEN["cached"]
    assert event["cost_usd"] * 10**9 == nusd + 12 * USD_PER_TOKEN["output"]
    assert Decimal(str(usage.cost_usd)) == event["cost_usd"]
    assert (event["operation"], event["outcome"]) == ("responses", "ok")


@pytest.mark.parametrize("route", ["strict", "engine"])
def test_a_plain_response(
    asking: openai.OpenAI, translating: Gateway, fake_upstream: FakeUpstreamProcess, route: str
) -> None:
    """An engine is asked for a stream, and its caller gets a plain answer all the same."""
    raw = asking.responses.with_raw_response.create(
        model=route, input=PROMPT, instructions="Be brief.", max_output_tokens=50
    )
    answer = raw.parse()
    request_id = raw.headers["x-request-id"]
    entry = fake_upstream.entry(request_id)
    (event,) = translating.events(request_id)
    assert answer.output_text.endswith(TEXT)
    assert (answer.model, answer.status) == (route, "completed")
    check_usage(answer.usage, event, entry)
    assert event["features"]["sent_as"] == "chat"
    sent = json.loads(entry["body"])
    assert sent["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": PROMPT},
    ]
    assert "input" not in sent


@pytest.mark.parametrize("route", ["strict", "engine"])
def test_a_streamed_response(
    asking: openai.OpenAI, translating: Gateway, fake_upstream: FakeUpstreamProcess, route: str
) -> None:
    """The official client assembles it from its events."""
    with asking.responses.stream(model=route, input=PROMPT) as stream:
        kinds = {event.type for event in stream}
        answer = stream.get_final_response()
        request_id = stream._response.headers["x-request-id"]
    assert kinds >= {
        "response.created",
        "response.reasoning_summary_text.delta",
        "response.output_text.delta",
        "response.completed",
    }
    assert answer.output_text.endswith(TEXT)
    (event,) = translating.events(request_id)
    check_usage(answer.usage, event, fake_upstream.entry(request_id))


def test_a_tool_that_a_chat_lacks_is_refused_before_anything_is_sent(
    asking: openai.OpenAI, fake_upstream: FakeUpstreamProcess
) -> None:
    """Silence would answer another question than the caller's."""
    tools: Any = [HOSTED[0], HOSTED[2]]
    with pytest.raises(openai.BadRequestError) as refused:
        asking.responses.create(model="strict", input=PROMPT, tools=tools)
    assert refused.value.param == "tools[1]"
    assert "untranslatable: drop" in str(refused.value)
    request_id = refused.value.response.headers["x-request-id"]
    assert request_id not in {one["request_id"] for one in fake_upstream.ledger()["entries"]}


def test_a_hosted_tool_is_refused_by_what_would_let_it_pass(asking: openai.OpenAI) -> None:
    """Codex sends one each time."""
    tools: Any = HOSTED
    with pytest.raises(openai.PermissionDeniedError) as refused:
        asking.responses.create(model="strict", input=PROMPT, tools=tools)
    assert "hosted_tools" in str(refused.value)
    assert "untranslatable: drop" in str(refused.value)


def test_what_a_deployment_drops_is_named(
    asking: openai.OpenAI, translating: Gateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """In the answer's header and in the ledger: Codex's requests have such tools each time."""
    tools: Any = HOSTED
    raw = asking.responses.with_raw_response.create(
        model="drops",
        input=PROMPT,
        tools=tools,
        extra_body={"client_metadata": {"a": "b"}},
    )
    dropped = ["tools[1]", "tools[2]", "client_metadata"]
    assert raw.headers["x-tollgate-dropped-fields"] == ", ".join(dropped)
    request_id = raw.headers["x-request-id"]
    (event,) = translating.events(request_id)
    assert event["features"]["dropped_fields"] == dropped
    sent = json.loads(fake_upstream.entry(request_id)["body"])
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["exec_command"]


@pytest.mark.parametrize(
    ("route", "outcome"),
    [("cut", "upstream_cut"), ("dies", "upstream_error"), ("unreadable", "upstream_error")],
)
def test_a_stream_that_breaks_is_an_error_for_the_client(
    asking: openai.OpenAI, translating: Gateway, route: str, outcome: str
) -> None:
    """Half an answer that looks whole would be worse than none."""
    raw = asking.responses.with_raw_response.create(model=route, input=PROMPT, stream=True)
    kinds: list[str] = []
    with pytest.raises(openai.APIError) as raised:
        kinds.extend(event.type for event in raw.parse())
    assert raised.value.code == "upstream_error"
    assert "response.completed" not in kinds
    (event,) = translating.events(raw.headers["x-request-id"])
    assert event["outcome"] == outcome
    assert event["output_tokens"] > 0


def test_a_translated_response_is_not_stored(translating: Gateway) -> None:
    """A chat backend keeps nothing, and no other deployment has it."""
    headers = {"authorization": f"Bearer {translating.key}"}
    with httpx2.Client(
        verify=plain_http.NO_CERTIFICATES,
        base_url=translating.base_url,
        headers=headers,
        timeout=30,
    ) as http:
        made = http.post("/responses", json={"model": "strict", "input": PROMPT}).json()
        assert made["store"] is False
        assert http.get(f"/responses/{made['id']}").status_code == 404
        wants = {"model": "strict", "input": PROMPT, "previous_response_id": made["id"]}
        refused = http.post("/responses", json=wants)
        assert refused.status_code == 403
        assert "previous_response_id" in refused.json()["error"]["message"]
