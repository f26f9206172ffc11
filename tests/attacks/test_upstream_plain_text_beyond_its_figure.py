"""Plain answers whose text is longer than their output tokens can be: 200 kB for three tokens were
booked at the three. The same text in a stream was held.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.operation import Operation
from gateway.domain.pricing.settlement import Settlement
from gateway.domain.pricing.tokens import UsageSource
from gateway.wire.anthropic.answer.messages import rewrite_message
from gateway.wire.anthropic.translation.upstream_reader import messages_events
from gateway.wire.bedrock.answer import converse_events
from gateway.wire.gemini.answer import gemini_events
from gateway.wire.observed import MOST_BYTES_PER_TOKEN, Observed
from gateway.wire.ollama.answer import ollama_events
from gateway.wire.openai.answer.complete_answer import rewrite
from gateway.wire.openai.answer.responses import rewrite_response
from gateway.wire.triton.answer import generate_events
from tests.attacks.streamed import read as read_stream
from tests.attacks.streamed import settlement_of
from tests.factories import read as request_of

CHAT = request_of(b'{"model":"m","messages":[]}')
COMPLETION = request_of(b'{"model":"m","prompt":"x"}', Operation.COMPLETIONS)
ECHO = request_of(b'{"model":"m","prompt":"x","echo":true}', Operation.COMPLETIONS)


def chat_of(message: dict[str, Any], tokens: int) -> dict[str, Any]:
    counts = {"prompt_tokens": 9, "completion_tokens": tokens}
    return {"model": "m", "choices": [{"index": 0, "message": message}], "usage": counts}


def response_of(item: dict[str, Any], tokens: int) -> dict[str, Any]:
    counts = {"input_tokens": 9, "output_tokens": tokens}
    return {"id": "r", "model": "m", "status": "completed", "output": [item], "usage": counts}


def message_of(block: dict[str, Any], tokens: int) -> dict[str, Any]:
    counts = {"input_tokens": 9, "output_tokens": tokens}
    return {"id": "m", "model": "m", "content": [block], "usage": counts}


def gemini_of(part: dict[str, Any], tokens: int) -> dict[str, Any]:
    counts = {"promptTokenCount": 9, "candidatesTokenCount": tokens}
    return {"candidates": [{"content": {"parts": [part]}}], "usageMetadata": counts}


def converse_of(block: dict[str, Any], tokens: int) -> dict[str, Any]:
    counts = {"inputTokens": 9, "outputTokens": tokens}
    return {"output": {"message": {"content": [block]}}, "usage": counts}


Body = Callable[[str, int], dict[str, Any]]
Reader = Callable[[bytes, Observed], Any]


def chat(body: bytes, seen: Observed) -> None:
    rewrite(CHAT, body, seen)


def responses(body: bytes, seen: Observed) -> None:
    rewrite_response(body, seen, model="m")


def messages(body: bytes, seen: Observed) -> None:
    rewrite_message(body, seen, model="m")


# Of each dialect: its reader, and answers that hold a text in each place of a model's own text.
PLACES: dict[str, tuple[Reader, Body]] = {
    "chat": (chat, lambda t, n: chat_of({"content": t}, n)),
    "chat, parts": (chat, lambda t, n: chat_of({"content": [{"type": "text", "text": t}]}, n)),
    "chat, a thought": (chat, lambda t, n: chat_of({"reasoning_content": t}, n)),
    "chat, a call": (
        chat,
        lambda t, n: chat_of({"tool_calls": [{"function": {"name": "", "arguments": t}}]}, n),
    ),
    "completions": (
        lambda body, seen: rewrite(COMPLETION, body, seen),
        lambda t, n: {**chat_of({}, n), "choices": [{"index": 0, "text": t}]},
    ),
    "responses": (
        responses,
        lambda t, n: response_of(
            {"type": "message", "content": [{"type": "output_text", "text": t}]}, n
        ),
    ),
    "responses, a call": (
        responses,
        lambda t, n: response_of({"type": "function_call", "name": "", "arguments": t}, n),
    ),
    "messages": (messages, lambda t, n: message_of({"type": "text", "text": t}, n)),
    "messages, a thought": (
        messages,
        lambda t, n: message_of({"type": "thinking", "thinking": t}, n),
    ),
    "translated": (messages_events, lambda t, n: message_of({"type": "text", "text": t}, n)),
    "bedrock": (converse_events, lambda t, n: converse_of({"text": t}, n)),
    "gemini": (gemini_events, lambda t, n: gemini_of({"text": t}, n)),
    "ollama": (
        ollama_events,
        lambda t, n: {"message": {"content": t}, "prompt_eval_count": 9, "eval_count": n},
    ),
    "triton": (
        lambda body, seen: generate_events(body, seen, answer_id="i", most_tokens=None),
        lambda t, n: {"text_output": t, "num_input_tokens": 9, "num_output_tokens": n},
    ),
}


def settled(reader: Reader, body: dict[str, Any]) -> Settlement:
    seen = Observed(is_whole=True)
    reader(json.dumps(body, ensure_ascii=False).encode(), seen)
    return settlement_of(seen)


@pytest.mark.parametrize("place", PLACES)
@settings(max_examples=12)
@given(tokens=st.integers(1, 300), more=st.integers(-2000, 2000), letter=st.sampled_from("aé\n"))
def test_a_text_is_held_exactly_above_the_most_bytes_of_its_tokens(
    place: str, tokens: int, more: int, letter: str
) -> None:
    reader, body_of = PLACES[place]
    size = max(1, tokens * MOST_BYTES_PER_TOKEN + more)
    text = letter * (size // len(letter.encode()))
    made = settled(reader, body_of(text, tokens))
    is_too_long = len(text.encode()) > tokens * MOST_BYTES_PER_TOKEN
    assert made.source is (UsageSource.UNKNOWN if is_too_long else UsageSource.PROVIDER)
    assert made.is_suspect is is_too_long


@pytest.mark.parametrize("place", PLACES)
def test_a_text_of_megabytes_is_held_too(place: str) -> None:
    reader, body_of = PLACES[place]
    made = settled(reader, body_of("a " * 2**20, 3))
    assert (made.source, made.usage.output_tokens) == (UsageSource.UNKNOWN, None)


def test_a_plain_answer_and_a_stream_have_one_floor() -> None:
    events = [
        {"model": "m", "choices": [{"index": 0, "delta": {"content": "a" * 1000}}]}
        for _ in range(200)
    ]
    usage = {"prompt_tokens": 9, "completion_tokens": 3}
    end = {"model": "m", "choices": [{"delta": {}, "finish_reason": "stop"}], "usage": usage}
    streamed = settlement_of(read_stream("chat", [*events, end, b"data: [DONE]\n\n"]))
    reader, body_of = PLACES["chat"]
    assert settled(reader, body_of("a" * 200_000, 3)) == streamed


# Long parts of a plain answer that no output token was spent on.
NO_TEXT: dict[str, tuple[Reader, dict[str, Any]]] = {
    "logprobs": (chat, chat_of({"content": "a"}, 3) | {"prompt_logprobs": ["a" * 9000]}),
    "a sound": (chat, chat_of({"audio": {"data": "a" * 9000, "transcript": "a"}}, 3)),
    "a picture in a text": (
        chat,
        chat_of({"content": f"![a](data:image/png;base64,{'ab+/' * 9000})"}, 3),
    ),
    "a repeated prompt": (
        lambda body, seen: rewrite(ECHO, body, seen),
        chat_of({}, 3) | {"choices": [{"index": 0, "text": "a" * 9000}]},
    ),
    "instructions": (
        responses,
        response_of({"type": "message", "content": [{"type": "output_text", "text": "a"}]}, 3)
        | {"instructions": "a" * 9000},
    ),
    "a result of a search": (
        messages,
        message_of(
            {
                "type": "web_search_tool_result",
                "content": [{"type": "web_search_result", "encrypted_content": "a" * 9000}],
            },
            3,
        ),
    ),
}


@pytest.mark.parametrize("name", NO_TEXT)
def test_bytes_that_are_no_text_of_the_model_change_nothing(name: str) -> None:
    reader, body = NO_TEXT[name]
    seen = Observed(is_whole=True)
    reader(json.dumps(body).encode(), seen)
    made = settlement_of(seen, seen_kinds=frozenset())
    assert (made.source, made.is_suspect) == (UsageSource.PROVIDER, False)
