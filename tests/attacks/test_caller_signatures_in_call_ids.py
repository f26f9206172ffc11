"""Gemini's sealed thoughts of tool calls travel inside the calls' ids, or in Google's own member:
they were held as one or two tokens a byte, other sealed thoughts as four.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.domain.operation import Operation
from gateway.wire.openai.request.size import EXPANDED_TOKENS_PER_BYTE, TOOL_PREFACE_TOKENS
from gateway.wire.openai.tool_call_ids import MARK, with_signature
from tests.factories import read

SIGNATURE = "A" * 10_000
SIGNED_ID = with_signature("call_1", SIGNATURE)
IN_A_MEMBER = {"google": {"thought_signature": SIGNATURE}}


def chat(call_id: str, **more: Any) -> bytes:
    """Return a chat with an earlier call of a tool; its result is not sent yet."""
    call = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}, **more}
    turn = {"role": "assistant", "content": None, "tool_calls": [call]}
    return json.dumps({"model": "m", "messages": [turn]}).encode()


def response(call_id: str) -> bytes:
    """Return a request of responses with the same call."""
    item = {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"}
    return json.dumps({"model": "m", "input": [item]}).encode()


def message(call_id: str) -> bytes:
    """Return a request of messages with the same call."""
    block = {"type": "tool_use", "id": call_id, "name": "f", "input": {}}
    turn = {"role": "assistant", "content": [block]}
    return json.dumps({"model": "m", "max_tokens": 9, "messages": [turn]}).encode()


def escaped(body: bytes, letter: str) -> bytes:
    """Return the body with a JSON escape in the mark or the member that shows a signature."""
    for word in (MARK, "extra_content"):
        other = word.replace(letter, f"\\u{ord(letter):04x}")
        body = body.replace(word.encode(), other.encode())
    return body


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        (Operation.CHAT, chat(SIGNED_ID)),
        (Operation.CHAT, escaped(chat(SIGNED_ID), "t")),
        (Operation.CHAT, chat("call_1", extra_content=IN_A_MEMBER)),
        (Operation.CHAT, escaped(chat("call_1", extra_content=IN_A_MEMBER), "x")),
        (Operation.RESPONSES, response(SIGNED_ID)),
        (Operation.RESPONSES, escaped(response(SIGNED_ID), "t")),
        (Operation.MESSAGES, message(SIGNED_ID)),
        (Operation.MESSAGES, escaped(message(SIGNED_ID), "t")),
    ],
    ids=[
        *("chat", "escaped", "member", "escaped member", "response", "escaped response"),
        *("message", "escaped message"),
    ],
)
def test_a_signature_of_a_call_counts_as_other_sealed_thoughts(
    operation: Operation, body: bytes
) -> None:
    """The model reads the thought inside, as that of `thinking_blocks`."""
    facts = read(body, operation).facts
    assert facts.expansion_tokens is not None
    held = facts.body_bytes + facts.expansion_tokens
    assert held >= EXPANDED_TOKENS_PER_BYTE * len(SIGNATURE)


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        (Operation.CHAT, chat("call_1")),
        (Operation.RESPONSES, response("call_1")),
        (Operation.MESSAGES, message("call_1")),
    ],
    ids=["chat", "response", "message"],
)
def test_a_call_without_a_signature_is_held_as_before(operation: Operation, body: bytes) -> None:
    facts = read(body, operation).facts
    assert facts.expansion_tokens is not None
    assert facts.expansion_tokens < len(body) + TOOL_PREFACE_TOKENS
