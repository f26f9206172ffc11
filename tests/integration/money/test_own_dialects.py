"""Chats at Gemini: a translation must keep more than the counts of `test_dialect_endings`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from tests import plain_http
from tests.gateway_process import FakeUpstreamProcess, Gateway
from tests.integration.policy import PRICE

SCRIPTS = {"plain": "out:3", "tools": "out:2+call", "busy": "429+ra:2"}


def policy(url: str) -> str:
    """Return a policy with a route for each script."""
    place = f'provider: gemini, api_key: "env:FAKE_KEY", base_url: "{url}/v1beta"'
    deployments = "\n".join(
        f'  - {{name: gemini-{name}, model: "fake/{script}", region: eu-de, price: {PRICE}, '
        f"{place}}}"
        for name, script in SCRIPTS.items()
    )
    routes = "\n".join(
        f"  - {{name: gemini-{name}, deployments: [gemini-{name}]}}" for name in SCRIPTS
    )
    listed = ", ".join(f"gemini-{name}" for name in SCRIPTS)
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
    routes: [{listed}]
"""


@pytest.fixture(scope="module")
def served(
    fake_upstream: FakeUpstreamProcess,
    launch_gateway: Callable[..., Iterator[Gateway]],
    module_database_url: str,
) -> Iterator[Gateway]:
    yield from launch_gateway(policy(fake_upstream.url), module_database_url)


def asked(
    gateway: Gateway, model: str, *, attempts: int = 1, **members: Any
) -> tuple[httpx2.Response, dict[str, Any]]:
    """Return the caller's answer and the ledger's row of its last attempt."""
    answer = plain_http.post(
        f"{gateway.base_url}/chat/completions",
        json={"model": model, "messages": [{"role": "user", "content": "Hi"}], **members},
        headers={"authorization": f"Bearer {gateway.key}"},
        timeout=30,
    )
    return answer, gateway.events(answer.headers["x-request-id"], count=attempts)[-1]


def test_a_call_keeps_its_signature_through_a_chat(
    served: Gateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """The caller sends back what it got, and Gemini gets the signature byte-exact."""
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
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
    entry = fake_upstream.entry(again.headers["x-request-id"])
    sent = json.loads(entry["body"])["contents"]
    arguments = json.loads(call["function"]["arguments"])
    assert sent[1]["parts"] == [
        {"functionCall": {"name": "look", "args": arguments}, "thoughtSignature": "S+/="}
    ]
    result = {"functionResponse": {"name": "look", "response": {"output": "done"}}}
    assert sent[2] == {"role": "user", "parts": [result]}


def test_an_error_hands_on_its_wait(served: Gateway) -> None:
    """And costs nothing."""
    answer, row = asked(served, "gemini-busy", attempts=3)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")
    assert (row["outcome"], row["cost_usd"]) == ("upstream_error", 0)


def test_a_field_without_a_place_is_refused_before_anything_is_sent(
    served: Gateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """By the caller's own name."""
    answer = plain_http.post(
        f"{served.base_url}/chat/completions",
        json={"model": "gemini-plain", "messages": [], "logit_bias": {"5": 1}},
        headers={"authorization": f"Bearer {served.key}"},
    )
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "logit_bias")
    sent = {entry["request_id"] for entry in fake_upstream.ledger()["entries"]}
    assert answer.headers["x-request-id"] not in sent
