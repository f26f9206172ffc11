"""Chats and completions at upstreams that speak neither: through a real gateway, to the token."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from tests.fake_upstream.own_dialects import OwnDialects, own_dialects
from tests.gateway_process import Gateway
from tests.integration.policy import PRICE

MODELS = ("plain", "tools", "cut", "error")


@pytest.fixture(scope="module")
def fake() -> Iterator[OwnDialects]:
    with own_dialects() as one:
        yield one


def policy(url: str) -> str:
    places = {
        "gemini": f'provider: gemini, api_key: "env:FAKE_KEY", base_url: "{url}/v1beta"',
        "ollama": f'provider: ollama, base_url: "{url}"',
        "triton": f'provider: triton, base_url: "{url}", operations: [completions]',
    }
    deployments = "\n".join(
        f"  - {{name: {name}-{model}, model: {model}, region: eu-de, price: {PRICE}, {place}}}"
        for name, place in places.items()
        for model in MODELS
    )
    routes = "\n".join(
        f"  - {{name: {name}-{model}, deployments: [{name}-{model}]}}"
        for name in places
        for model in MODELS
    )
    names = ", ".join(f"{name}-{model}" for name in places for model in MODELS)
    return f"""\
version: 1
regions: {{eu: [eu-de]}}
classes:
  internal: {{regions: [any]}}
deployments:
{deployments}
routes:
{routes}
teams:
  - name: payments
    cost_centre: CC-1
    data_class: internal
    routes: [{names}]
"""


@pytest.fixture(scope="module")
def served(
    fake: OwnDialects,
    launch_gateway: Callable[..., Iterator[Gateway]],
    module_database_url: str,
) -> Iterator[Gateway]:
    yield from launch_gateway(policy(fake.url), module_database_url)


def asked(
    gateway: Gateway, model: str, *, attempts: int = 1, **members: Any
) -> tuple[httpx2.Response, dict[str, Any]]:
    """Return the caller's answer and the ledger's row of its last attempt."""
    is_chat = not model.startswith("triton")
    prompt = {"messages": [{"role": "user", "content": "Hi"}]} if is_chat else {"prompt": "Hi"}
    answer = httpx2.post(
        f"{gateway.base_url}/{'chat/' if is_chat else ''}completions",
        json={"model": model, **prompt, **members},
        headers={"authorization": f"Bearer {gateway.key}"},
        timeout=30,
    )
    return answer, gateway.events(answer.headers["x-request-id"], count=attempts)[-1]


def tokens(row: dict[str, Any]) -> tuple[int, int]:
    return row["input_tokens"], row["output_tokens"]


@pytest.mark.parametrize("name", ["gemini", "ollama", "triton"])
def test_a_plain_answer_is_metered_to_the_token(
    served: Gateway, fake: OwnDialects, name: str
) -> None:
    """The fake knows what it generated, and the caller sees the same counts with their cost."""
    answer, row = asked(served, f"{name}-plain", max_tokens=50)
    body = answer.json()
    choice = body["choices"][0]
    text = choice["text"] if name == "triton" else choice["message"]["content"]
    assert (answer.status_code, text, choice["finish_reason"]) == (200, "one two three", "stop")
    assert (row["outcome"], tokens(row)) == ("ok", fake.generated[-1])
    usage = body["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == fake.generated[-1]
    assert usage["cost_usd"] > 0


@pytest.mark.parametrize("name", ["gemini", "ollama", "triton"])
def test_a_stream_is_metered_to_the_token(served: Gateway, fake: OwnDialects, name: str) -> None:
    """And ends as OpenAI's do."""
    options = {"stream": True, "stream_options": {"include_usage": True}}
    answer, row = asked(served, f"{name}-plain", **options)
    events = [line[6:] for line in answer.text.split("\n") if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    usage = json.loads(events[-2])["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == fake.generated[-1]
    assert (row["outcome"], tokens(row)) == ("ok", fake.generated[-1])
    assert row["ttft_s"] is not None


@pytest.mark.parametrize("name", ["gemini", "triton"])
def test_a_cut_stream_is_charged_exactly(served: Gateway, fake: OwnDialects, name: str) -> None:
    """Both report running counts, so nothing is estimated."""
    answer, row = asked(served, f"{name}-cut", stream=True)
    assert '"error"' in answer.text
    assert "[DONE]" not in answer.text
    assert (row["outcome"], tokens(row)) == ("upstream_cut", fake.generated[-1])
    assert row["usage_source"] == "derived"


def test_a_call_keeps_its_signature_through_a_chat(served: Gateway, fake: OwnDialects) -> None:
    """The caller sends back what it got, and Gemini gets the signature byte-exact."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    answer, row = asked(served, "gemini-tools", tools=tools)
    choice = answer.json()["choices"][0]
    assert (choice["finish_reason"], row["finish_reason"]) == ("tool_calls", "STOP")
    call = choice["message"]["tool_calls"][0]
    call.pop("extra_content", None)  # most clients lose it
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "done"},
    ]
    again, _ = asked(served, "gemini-plain", tools=tools, messages=turns)
    assert again.status_code == 200
    sent = fake.asked[-1][1]["contents"]
    assert sent[1]["parts"] == [
        {"functionCall": {"name": "f", "args": {"a": 1}}, "thoughtSignature": "S+/="}
    ]
    result = {"functionResponse": {"name": "f", "response": {"output": "done"}}}
    assert sent[2] == {"role": "user", "parts": [result]}


def test_an_error_hands_on_its_wait(served: Gateway) -> None:
    """And costs nothing."""
    answer, row = asked(served, "gemini-error", attempts=3)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
    assert (row["outcome"], row["cost_usd"]) == ("upstream_error", 0)


def test_a_field_without_a_place_is_refused_before_anything_is_sent(
    served: Gateway, fake: OwnDialects
) -> None:
    """By the caller's own name."""
    before = len(fake.asked)
    answer = httpx2.post(
        f"{served.base_url}/chat/completions",
        json={"model": "gemini-plain", "messages": [], "logit_bias": {"5": 1}},
        headers={"authorization": f"Bearer {served.key}"},
    )
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "logit_bias")
    assert len(fake.asked) == before
