"""Arguments of a tool call that Ollama or Gemini gave as the text of an object became `{}`.

The rule for every dialect: the text of an object is that object, and no other value is lost.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.domain.operation import Operation
from tests.attacks.every_target import ASKED, target
from tests.fakes import FakeUpstreamAnswer
from tests.unit.request.test_request_service import once

VALUES: dict[str, tuple[Any, Any]] = {  # as sent, and as the caller's chat has it
    "an object": ({"x": "1"}, {"x": "1"}),
    "its text": ('{"x": "1"}', {"x": "1"}),
    "a list": ([1], [1]),
    "no JSON": ("x = 1", "x = 1"),
    "nothing": (None, {}),
    "an empty text": ("", {}),
}


def answer(provider: str, arguments: Any) -> bytes:
    """Return a whole answer with one call."""
    usage = {"input_tokens": 5, "output_tokens": 20}
    if provider == "anthropic":
        block = {"type": "tool_use", "id": "t", "name": "f", "input": arguments}
        body: dict[str, Any] = {"content": [block], "stop_reason": "tool_use", "usage": usage}
    elif provider == "bedrock":
        use = {"toolUse": {"toolUseId": "t", "name": "f", "input": arguments}}
        body = {"output": {"message": {"content": [use]}}, "stopReason": "tool_use"}
    elif provider == "gemini":
        call = {"functionCall": {"name": "f", "args": arguments}}
        body = {"candidates": [{"content": {"parts": [call]}, "finishReason": "STOP"}]}
    else:
        call = {"function": {"name": "f", "arguments": arguments}}
        body = {"message": {"tool_calls": [call]}, "done": True, "done_reason": "stop"}
    return json.dumps(body).encode()


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("provider", ["anthropic", "bedrock", "gemini", "ollama"])
async def test_no_argument_is_lost(provider: str, name: str, tmp_path: Any) -> None:
    value, expected = VALUES[name]
    for operation in (Operation.CHAT, Operation.RESPONSES, Operation.MESSAGES):
        if (provider, operation) == ("anthropic", Operation.MESSAGES):
            continue
        on = once(FakeUpstreamAnswer([answer(provider, value)]))
        asked = {"model": "assistant", **ASKED[operation]}
        body = json.dumps(asked).encode()
        caught = await on.answer(body, target(provider, tmp_path), operation=operation)
        seen = json.loads(caught.body)
        if operation is Operation.MESSAGES:
            found = seen["content"][0]["input"]
            assert found == expected if isinstance(expected, dict) else found
            continue
        if operation is Operation.CHAT:
            text = seen["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
        else:
            text = seen["output"][0]["arguments"]
        assert text == expected if isinstance(expected, str) else json.loads(text) == expected
