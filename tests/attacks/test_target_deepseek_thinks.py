"""DeepSeek answered 400 to the second turn of each tool loop of messages and responses: its
thoughts were not sent back. It refuses an effort of `none`, a forced call while it thinks, a schema
of the answer, and the role `developer`, too; each was sent.

The rule: a provider's row states the differences, and a request has a form that the row allows.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import FieldLoss
from gateway.errors import Untranslatable
from gateway.providers.registry import build_providers
from tests import factories
from tests.answers import at_once

ADAPTERS = build_providers(salt_key=bytes(32))
HI = {"role": "user", "content": "Hi"}
TOOL = {"name": "f", "input_schema": {"type": "object", "properties": {}}}
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
SCHEMA = {"type": "object", "properties": {}, "additionalProperties": False}


def sent(
    operation: Operation, *, provider: str = "deepseek", drops: bool = False, **body: Any
) -> Any:
    """Return the body that a deployment is sent."""
    at = factories.deployment(
        provider=provider,
        native=frozenset({Operation.CHAT}),
        untranslatable=FieldLoss.DROP if drops else FieldLoss.REFUSE,
    )
    least = {"max_tokens": 4000} if operation is Operation.MESSAGES else {}
    read = factories.read(json.dumps({"model": "m", **least, **body}).encode(), operation)
    made = ADAPTERS[provider].translate(at, read)
    call = at_once(ADAPTERS[provider].call(at, factories.request(read), translation=made))
    return json.loads(call.body)


def looped(operation: Operation, *thoughts: dict[str, Any]) -> dict[str, Any]:
    """Return the second turn of a tool loop whose model had these thoughts."""
    if operation is Operation.RESPONSES:
        call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
        result = {"type": "function_call_output", "call_id": "c", "output": "r"}
        return {"input": [HI, *thoughts, call, result], "store": False, "tools": [FUNCTION]}
    use = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    results = [{"type": "tool_result", "tool_use_id": "c", "content": "r"}]
    turns = [
        {"role": "assistant", "content": [*thoughts, use]},
        {"role": "user", "content": results},
    ]
    return {"messages": [HI, *turns], "tools": [TOOL]}


def summary(text: str, **more: Any) -> dict[str, Any]:
    """Return a thought in a response."""
    return {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}], **more}


def thinking(text: str, signature: str = "") -> dict[str, Any]:
    """Return a thought in a message."""
    return {"type": "thinking", "thinking": text, "signature": signature}


@pytest.mark.parametrize(
    ("operation", "thoughts", "expected"),
    [
        (Operation.MESSAGES, [thinking("I need f.")], "I need f."),
        (Operation.MESSAGES, [], ""),
        (Operation.MESSAGES, [thinking("Another model's.", "c2ln")], ""),
        (Operation.RESPONSES, [summary("I need f.")], "I need f."),
        (Operation.RESPONSES, [summary("a"), summary("b")], "a\nb"),
        (Operation.RESPONSES, [summary("x", encrypted_content="tollgate.signature.c2ln")], ""),
    ],
)
def test_a_turn_with_calls_has_its_thoughts(
    operation: Operation, thoughts: list[dict[str, Any]], expected: str
) -> None:
    """The member is there without a thought too: its absence is the error. No other provider has
    it, and the thoughts of another model stay away.
    """
    body = looped(operation, *thoughts)
    assert sent(operation, **body)["messages"][1]["reasoning_content"] == expected
    other = sent(operation, provider="groq", **body)
    assert "reasoning_content" not in other["messages"][1]


DISABLED = {"thinking": {"type": "disabled"}}


@pytest.mark.parametrize(
    ("operation", "asked", "expected"),
    [
        (Operation.MESSAGES, DISABLED, DISABLED),
        (Operation.RESPONSES, {"reasoning": {"effort": "none"}}, DISABLED),
        (Operation.RESPONSES, {"reasoning": {"effort": "low"}}, {"reasoning_effort": "low"}),
        (Operation.MESSAGES, {"tools": [TOOL], "tool_choice": {"type": "any"}}, DISABLED),
        (Operation.MESSAGES, {"tools": [TOOL], "tool_choice": {"type": "auto"}}, {}),
        (Operation.RESPONSES, {"tools": [FUNCTION], "tool_choice": "required"}, DISABLED),
    ],
)
def test_thinking_ends_by_its_switch(
    operation: Operation, asked: dict[str, Any], expected: dict[str, Any]
) -> None:
    """No effort ends it, and a forced call needs its end, as at Claude."""
    turns = {"input": "Hi"} if operation is Operation.RESPONSES else {"messages": [HI]}
    body = sent(operation, **turns, **asked)
    assert {
        name: body[name] for name in ("thinking", "reasoning_effort") if name in body
    } == expected


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        (
            {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
            "output_config.format",
        ),
        (
            {
                "thinking": {"type": "enabled", "budget_tokens": 2000},
                "tools": [TOOL],
                "tool_choice": {"type": "tool", "name": "f"},
            },
            "thinking",
        ),
    ],
)
def test_what_it_refuses_is_lost_by_name(asked: dict[str, Any], name: str) -> None:
    """Before anything is sent; with `untranslatable: drop` the rest is served."""
    with pytest.raises(Untranslatable) as refused:
        sent(Operation.MESSAGES, messages=[HI], **asked)
    assert refused.value.param == name
    body = sent(Operation.MESSAGES, drops=True, messages=[HI], **asked)
    assert "response_format" not in body
    assert "reasoning_effort" not in body


def test_a_developer_is_the_system_there() -> None:
    """Also in a chat, which is its own dialect and goes as it is but for the role."""
    told = {"role": "developer", "content": "Be brief."}
    body = sent(Operation.CHAT, messages=[told, HI], reasoning_effort="none")
    assert [one["role"] for one in body["messages"]] == ["system", "user"]
    assert body["reasoning_effort"] == "none"
