"""Streams of every dialect that an upstream may answer in, read by the gateway's readers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.domain.pricing.settlement import Settlement, fee_of_shown
from gateway.domain.pricing.tokens import OUTPUT_KINDS
from gateway.wire.anthropic.answer.messages import message_stream
from gateway.wire.anthropic.translation.upstream_reader import MessagesReader
from gateway.wire.bedrock.answer import ConverseReader
from gateway.wire.gemini.answer import GeminiReader
from gateway.wire.observed import Observed
from gateway.wire.ollama.answer import OllamaReader
from gateway.wire.openai.answer.chat import chat_stream
from gateway.wire.openai.answer.responses import response_stream
from tests.event_messages import event as event_message
from tests.factories import settled

Event = Mapping[str, Any] | bytes
DIALECTS = ("chat", "responses", "messages", "translated", "bedrock", "gemini", "ollama")
HELD_NUSD = 10**12  # above every cost of these tests
# A piece of text, the usage of the whole answer, and the end of it, in each dialect.
TEXT: Mapping[str, Event] = {
    "chat": {"model": "m", "choices": [{"index": 0, "delta": {"content": "a"}}]},
    "responses": {"type": "response.output_text.delta", "delta": "a"},
    "messages": {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": "a"},
    },
    "bedrock": {"contentBlockDelta": {"delta": {"text": "a"}}},
    "gemini": {"candidates": [{"index": 0, "content": {"parts": [{"text": "a"}]}}]},
    "ollama": {"model": "m", "message": {"content": "a"}, "done": False},
}


def text(dialect: str) -> Event:
    """Return a piece of text."""
    return TEXT["messages" if dialect == "translated" else dialect]


def last(dialect: str, prompt: int, answer: int, **members: Any) -> list[Event]:
    """Return the events that end an answer with a usage; `members` are more of it."""
    if dialect == "chat":
        usage = {"prompt_tokens": prompt, "completion_tokens": answer, **members}
        end = {"index": 0, "delta": {}, "finish_reason": "stop"}
        return [{"model": "m", "choices": [end]}, {"model": "m", "choices": [], "usage": usage}]
    if dialect == "responses":
        usage = {"input_tokens": prompt, "output_tokens": answer, **members}
        response = {"id": "r", "model": "m", "status": "completed", "usage": usage}
        return [{"type": "response.completed", "response": response}]
    if dialect == "bedrock":
        usage = {"inputTokens": prompt, "outputTokens": answer, **members}
        return [{"messageStop": {"stopReason": "end_turn"}}, {"metadata": {"usage": usage}}]
    if dialect == "gemini":
        usage = {"promptTokenCount": prompt, "candidatesTokenCount": answer, **members}
        finish = {"index": 0, "content": {"parts": []}, "finishReason": "STOP"}
        return [{"candidates": [finish], "usageMetadata": usage}]
    if dialect == "ollama":
        counts = {"prompt_eval_count": prompt, "eval_count": answer, **members}
        return [{"model": "m", "done": True, "done_reason": "stop", **counts}]
    usage = {"input_tokens": prompt, "output_tokens": answer, **members}
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage}
    return [end, {"type": "message_stop"}]


def read(dialect: str, events: Sequence[Event]) -> Observed:
    """Return the observations of a stream of these events; one of bytes is sent as it is."""
    stream: Any
    if dialect == "chat":
        stream = chat_stream(
            model="m",
            wants_usage=True,
            wants_running_usage=False,
            asked_running_usage=False,
            collects_text=True,
        )
    elif dialect == "responses":
        stream = response_stream(model="m", collects_text=True)
    elif dialect == "messages":
        stream = message_stream(model="m")
    elif dialect == "translated":
        stream = MessagesReader()
    elif dialect == "bedrock":
        stream = ConverseReader()
    else:
        stream = GeminiReader() if dialect == "gemini" else OllamaReader()
    for one in events:
        stream.feed(one if isinstance(one, bytes) else _framed(dialect, one))
    stream.end()
    observed: Observed = stream.observed
    return observed


def settlement(dialect: str, events: Sequence[Event], **known: Any) -> Settlement:
    """Return the settlement of a stream of these events."""
    return settlement_of(read(dialect, events), **known)


def settlement_of(seen: Observed, **known: Any) -> Settlement:
    """Return the settlement of the observations of an answer."""
    members = {
        "running": seen.running,
        "dearest": seen.dearest,
        "impossible": seen.impossible,
        "is_behind": seen.is_behind,
        "is_cut": seen.is_cut,
        "least_output_tokens": seen.least_output_tokens,
        "seen_kinds": OUTPUT_KINDS & seen.shown,
        "fee": fee_of_shown(seen.shown),
        "held_nusd": HELD_NUSD,
    }
    return settled(seen.final, **(members | known))


def _framed(dialect: str, one: Mapping[str, Any]) -> bytes:
    """Return an event in the framing of its dialect."""
    if dialect == "bedrock":
        ((kind, payload),) = one.items()
        return event_message(kind, payload)
    if dialect == "ollama":
        return json.dumps(one).encode() + b"\n"
    name = f"event: {one['type']}\n" if "type" in one else ""
    return f"{name}data: {json.dumps(one)}\n\n".encode()
