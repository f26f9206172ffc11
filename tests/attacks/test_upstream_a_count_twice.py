"""Upstreams whose usage has a name twice, with two values: the last one was booked, unmarked."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway.domain.pricing.settlement import Settlement
from gateway.domain.pricing.tokens import UsageSource
from gateway.wire.anthropic.answer.messages import rewrite_message
from gateway.wire.anthropic.translation.upstream_reader import messages_events
from gateway.wire.bedrock.answer import converse_events
from gateway.wire.gemini.answer import gemini_events
from gateway.wire.observed import Observed
from gateway.wire.ollama.answer import ollama_events
from gateway.wire.openai.answer.chat import rewrite_chat
from gateway.wire.openai.answer.responses import rewrite_response
from gateway.wire.triton.answer import generate_events
from tests.attacks.streamed import read as read_stream
from tests.attacks.streamed import settlement_of, text
from tests.event_messages import framed

CHAT = b'{"prompt_tokens":100,"completion_tokens":%d,"completion_tokens":%d}'
ESCAPED = rb'{"prompt_tokens":100,"completion_tokens":%d,"completion\u005ftokens":%d}'
RESPONSE = b'{"input_tokens":100,"output_tokens":%d, "output_tokens" : %d}'


def settled_of(dialect: str, usage: bytes) -> Settlement:
    return settlement_of(read(dialect, usage))


def read(dialect: str, usage: bytes) -> Observed:
    seen = Observed()
    body = (
        b'{"id":"a","model":"m","status":"completed","choices":[],"output":[],"usage":%b}' % usage
    )
    (rewrite_chat if dialect == "chat" else rewrite_response)(body, seen, model="m")
    return seen


@pytest.mark.parametrize("values", [(2000, 1), (1, 2000)])
@pytest.mark.parametrize(
    ("dialect", "usage"), [("chat", CHAT), ("chat", ESCAPED), ("responses", RESPONSE)]
)
def test_the_dearer_value_is_charged_and_flagged(
    dialect: str, usage: bytes, values: tuple[int, int]
) -> None:
    found = settled_of(dialect, usage % values)
    assert (found.usage.output_tokens, found.source) == (2000, UsageSource.PROVIDER)
    assert found.is_suspect
    assert found.reported is not None


@pytest.mark.parametrize(
    "more", [{}, {"cost": 0.5}, {"prompt_tokens_details": {"audio_tokens": 1}}]
)
def test_a_name_in_two_objects_is_no_repetition(more: dict[str, object]) -> None:
    """OpenAI's usage has `audio_tokens` in both of its details."""
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "completion_tokens_details": {"audio_tokens": 1},
        **more,
    }
    assert read("chat", json.dumps(usage).encode()).impossible is None
    same = b'{"prompt_tokens":100,"completion_tokens":20,"completion_tokens":20}'
    assert read("chat", same).impossible is None


# In each other dialect: an answer with a place for its usage, and the usage with a name twice.
ANTHROPIC = b'{"input_tokens":100,"output_tokens":%d,"output_tokens":%d}'
CONVERSE = b'{"inputTokens":100,"outputTokens":%d,"outputTokens":%d}'
GEMINI = b'{"promptTokenCount":100,"candidatesTokenCount":%d,"candidatesTokenCount":%d}'
MESSAGE = b'{"id":"m","model":"m","content":[{"type":"text","text":"a"}],"usage":%b}'
OTHERS: dict[str, tuple[Callable[[bytes, Observed], Any], bytes]] = {
    "messages": (lambda body, seen: rewrite_message(body, seen, model="m"), MESSAGE % ANTHROPIC),
    "translated": (messages_events, MESSAGE % ANTHROPIC),
    "bedrock": (
        converse_events,
        b'{"output":{"message":{"content":[{"text":"a"}]}},"usage":%b}' % CONVERSE,
    ),
    "gemini": (
        gemini_events,
        b'{"candidates":[{"content":{"parts":[{"text":"a"}]}}],"usageMetadata":%b}' % GEMINI,
    ),
    "ollama": (
        ollama_events,
        b'{"message":{"content":"a"},"prompt_eval_count":100,"eval_count":%d,"eval_count":%d}',
    ),
    "triton": (
        lambda body, seen: generate_events(body, seen, answer_id="i", most_tokens=None),
        b'{"text_output":"a","num_input_tokens":100,"num_output_tokens":%d,"num_output_tokens":%d}',
    ),
}
DELTA = b'{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":%b}'
STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
IN_STREAMS: dict[str, bytes] = {
    "messages": b"event: message_delta\ndata: " + DELTA % ANTHROPIC + b"\n\n" + STOP,
    "translated": b"event: message_delta\ndata: " + DELTA % ANTHROPIC + b"\n\n" + STOP,
    "gemini": b'data: {"candidates":[{"content":{"parts":[]},"finishReason":"STOP"}],'
    b'"usageMetadata":%b}\n\n' % GEMINI,
    "ollama": b'{"message":{"content":""},"done":true,"prompt_eval_count":100,"eval_count":%d,'
    b'"eval_count":%d}\n',
}


@pytest.mark.parametrize("values", [(2000, 1), (1, 2000), (7, 7)])
@pytest.mark.parametrize("dialect", OTHERS)
def test_the_dearer_value_is_charged_in_every_dialect(
    dialect: str, values: tuple[int, int]
) -> None:
    reader, body = OTHERS[dialect]
    seen = Observed(is_whole=True)
    reader(body % values, seen)
    found = settlement_of(seen)
    assert (found.usage.output_tokens, found.is_suspect) == (max(values), values != (7, 7))


@pytest.mark.parametrize("values", [(2000, 1), (1, 2000), (7, 7)])
@pytest.mark.parametrize("dialect", [*IN_STREAMS, "bedrock"])
def test_the_dearer_value_is_charged_in_every_stream(dialect: str, values: tuple[int, int]) -> None:
    if dialect == "bedrock":
        names = {":message-type": "event", ":event-type": "metadata"}
        last = framed(names, b'{"usage":%b}' % CONVERSE % values)
    else:
        last = IN_STREAMS[dialect] % values
    found = settlement_of(read_stream(dialect, [text(dialect), last]))
    assert (found.usage.output_tokens, found.is_suspect) == (max(values), values != (7, 7))


@pytest.mark.parametrize("dialect", ["messages", "translated"])
def test_the_dearer_prompt_of_a_start_is_charged(dialect: str) -> None:
    start = (
        b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","model":"m",'
        b'"usage":{"input_tokens":2000,"input_tokens":5,"output_tokens":1}}}\n\n'
    )
    delta = b"event: message_delta\ndata: " + DELTA % b'{"output_tokens":50}' + b"\n\n"
    found = settlement_of(read_stream(dialect, [start, text(dialect), delta, STOP]))
    assert (found.usage.input_tokens, found.usage.output_tokens) == (2000, 50)
    assert found.is_suspect
