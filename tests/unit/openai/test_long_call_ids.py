"""Ids of tool calls from another provider, in a chat for one with a bound on their length."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.providers.openai import OpenAI
from gateway.wire.openai.tool_call_ids import with_signature
from tests import factories

GEMINI = with_signature("call_1", "c2lnbmF0dXJl" * 40)
FOREIGN = "toolu_" + "x" * 60


def chat(first: str, second: str, text: str = "Hi") -> dict[str, Any]:
    """Return a chat with two answered calls."""
    calls = [
        {"id": one, "type": "function", "function": {"name": "look", "arguments": '{"id":"7"}'}}
        for one in (first, second)
    ]
    results = [{"role": "tool", "tool_call_id": one, "content": "x"} for one in (first, second)]
    asked = {"role": "user", "content": text}
    answered = {"role": "assistant", "content": None, "tool_calls": calls}
    return {"model": "assistant", "messages": [asked, answered, *results], "temperature": 0.10}


@pytest.mark.parametrize("provider", ["openai", "azure_openai"])
def test_a_call_and_its_result_keep_one_short_id(provider: str) -> None:
    """OpenAI refused ids of more than 40 letters, so a session could not leave Gemini for it."""
    text = f'He said: "tool_call_id": "{GEMINI}"'
    body = json.dumps(chat(GEMINI, FOREIGN, text)).encode()
    deployment = factories.deployment("one", provider=provider, base_url="https://a.example/v1")
    made = OpenAI().translate(deployment, factories.read(body))
    assert made is not None
    sent = json.loads(made.body.body)
    ids = [call["id"] for call in sent["messages"][1]["tool_calls"]]
    assert ids == [one["tool_call_id"] for one in sent["messages"][2:]]
    assert ids[0] == "call_1"
    assert ids[1].startswith("call_")
    assert len(ids[1]) == 40
    assert sent == chat(ids[0], ids[1], text)
    again = OpenAI().translate(deployment, factories.read(body))
    assert again is not None
    assert again.body.body == made.body.body


@pytest.mark.parametrize(
    ("provider", "ids"), [("openai", ("a", "b" * 40)), ("vllm", (GEMINI, FOREIGN))]
)
def test_short_ids_and_other_providers_keep_their_bytes(
    provider: str, ids: tuple[str, str]
) -> None:
    """A request that is taken as it is passes as it is."""
    deployment = factories.deployment("one", provider=provider, base_url="https://a.example/v1")
    assert OpenAI().translate(deployment, factories.read(json.dumps(chat(*ids)).encode())) is None
