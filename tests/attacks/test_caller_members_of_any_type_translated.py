"""Bodies with a member of any type at any depth, translated for every dialect: the answer is a
request, or a 400 that names the member. For Gemini and Ollama a broken call had no name.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import FieldLoss
from gateway.domain.providers.table import PROVIDERS
from gateway.errors import InvalidRequest, RequestError, UpstreamAuth
from gateway.providers.registry import build_providers
from tests.attacks.odd_answers import encoded, mutated
from tests.factories import deployment, read, request

ADAPTERS = build_providers(salt_key=bytes(32))
PLACES = [
    deployment(
        provider=name,
        model=model,
        base_url=url,
        native=PROVIDERS[name].native - {Operation.CHAT},
        untranslatable=FieldLoss.DROP,
    )
    for name, model, url in (
        ("anthropic", "claude-opus-4-1", "http://127.0.0.1:9/v1"),
        ("bedrock", "anthropic.claude-opus-4-1-v1:0", "http://127.0.0.1:9"),
        ("gemini", "gemini-2.5-pro", "http://127.0.0.1:9/v1beta"),
        ("ollama", "llama", "http://127.0.0.1:9"),
        ("openai_compatible", "m", "http://127.0.0.1:9/v1"),
    )
]
PICTURE = "iVBORw0KGgo="
SCHEMA = {"type": "object"}
FUNCTION = {"name": "f", "parameters": SCHEMA, "strict": True}
CALL = {"id": "c__thought__YWJj", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "s"}]},
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}},
                {"type": "file", "file": {"file_data": "JVBERi0=", "filename": "a"}},
            ],
        },
        {
            "role": "assistant",
            "content": "c",
            "thinking_blocks": [{"thinking": "t", "signature": "s"}],
            "tool_calls": [CALL],
        },
        {"role": "tool", "tool_call_id": "c", "content": "x"},
    ],
    "tools": [{"type": "function", "function": FUNCTION}],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
    "thinking": {"type": "enabled", "budget_tokens": 2000},
    "stop": ["a"],
    "top_logprobs": 2,
}
RESPONSES: dict[str, Any] = {
    "model": "m",
    "input": [
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "a"}],
        },
        {"type": "reasoning", "summary": [{"text": "t"}], "encrypted_content": "tollgate.sealed.a"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "o"},
    ],
    "tools": [{"type": "function"} | FUNCTION],
    "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
    "reasoning": {"effort": "high", "summary": "auto"},
    "include": ["message.output_text.logprobs"],
}
MESSAGES: dict[str, Any] = {
    "model": "m",
    "max_tokens": 4000,
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {
            "role": "user",
            "content": [
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/png", "data": PICTURE},
                }
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": "s"},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [], "is_error": True}
            ],
        },
    ],
    "tools": [{"name": "f", "input_schema": SCHEMA}],
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 2000},
    "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    "metadata": {"user_id": "u"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
}


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        (Operation.CHAT, CHAT),
        (Operation.RESPONSES, RESPONSES),
        (Operation.MESSAGES, MESSAGES),
    ],
)
def test_a_request_is_translated_or_refused_by_a_name(
    operation: Operation, body: dict[str, Any]
) -> None:
    sent, nameless = 0, []
    for changed in mutated(body):
        try:
            asked = read(encoded(changed), operation)
        except RequestError:
            continue  # refused by the reader of its own dialect, which other tests attack
        for place in PLACES:
            adapter = ADAPTERS[place.provider]
            try:
                translation = adapter.translate(place, asked)
                assert translation is not None or operation in place.native
                call = adapter.call(
                    place, request(asked), output_cap_tokens=50, translation=translation
                )
                json.loads(asyncio.run(call).body)
                sent += 1
            except UpstreamAuth:  # there is no key here
                sent += 1
            except InvalidRequest as refused:
                nameless += [] if refused.param else [str(refused)]
    assert nameless == []
    assert sent > 100
