"""Sealed thoughts in a chat or a response were held as text: a translation hands them on to
Anthropic, whose model reads the text inside.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.domain.operation import Operation
from tests.factories import read

SEALED = "A" * 10_000


def as_chat(sealed: str) -> bytes:
    """Return a chat with a sealed thought."""
    block = {"type": "redacted_thinking", "data": sealed}
    turn = {"role": "assistant", "content": "x", "thinking_blocks": [block]}
    return json.dumps({"model": "m", "messages": [turn]}).encode()


def as_response(sealed: str) -> bytes:
    """Return a request of responses with a sealed thought."""
    item: dict[str, Any] = {"type": "reasoning", "summary": [], "encrypted_content": sealed}
    return json.dumps({"model": "m", "input": [item]}).encode()


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        (Operation.CHAT, as_chat(SEALED)),
        (Operation.RESPONSES, as_response("tollgate.sealed." + SEALED)),
        (
            Operation.RESPONSES,
            as_response("tollgate.sealed." + SEALED).replace(b'"tollgate', b'"\\u0074ollgate'),
        ),
    ],
    ids=["chat", "response", "an escape"],
)
def test_sealed_thoughts_count_as_in_messages(operation: Operation, body: bytes) -> None:
    """The bound of messages counts four tokens a byte."""
    expansion_tokens = read(body, operation).facts.expansion_tokens
    assert expansion_tokens is not None
    assert expansion_tokens >= 3 * len(SEALED)


def test_a_provider_s_own_encryption_is_its_text() -> None:
    """OpenAI's own is no translation's, and is as long as the text inside."""
    assert read(as_response("gAAAA" + SEALED), Operation.RESPONSES).facts.expansion_tokens == 0
