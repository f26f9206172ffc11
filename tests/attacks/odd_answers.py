"""Answers of every dialect that is translated, with one member replaced by a value of any type."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gateway.domain.ids import text_of
from gateway.domain.operation import Operation
from gateway.domain.request.request import RequestBody
from gateway.wire.anthropic.translation.upstream_reader import MessagesReader, messages_events
from gateway.wire.bedrock.answer import ConverseReader, converse_events
from gateway.wire.callers import writer_for
from gateway.wire.dialect import UpstreamRequest
from gateway.wire.gemini.answer import GeminiReader, gemini_events
from gateway.wire.observed import Observed
from gateway.wire.ollama.answer import OllamaReader, ollama_events
from gateway.wire.openai.answer.chat import chat_stream
from gateway.wire.openai.answer.complete_answer import rewrite
from gateway.wire.openai.chat_translation.completions_writer import CompletionsWriter
from gateway.wire.openai.chat_translation.reader import ChatReader, chat_events
from gateway.wire.translation.answer_events import AnswerEvent, AnswerReader, AnswerWriter
from gateway.wire.triton.answer import TritonReader, generate_events
from tests.event_messages import framed
from tests.factories import REQUEST_ID, read

ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 10**30, 2**63 - 1, 1e300, "", "500", "x\r\ny", "\ud800", "9" * 400),
    *([], [[]], [1], [{}], {}, {"a": 1}, {"type": 5}),
)
ASKED: dict[Operation, RequestBody] = {
    Operation.CHAT: read(
        b'{"model":"m","messages":[],"stream":true,"stream_options":{"include_usage":true}}'
    ),
    Operation.RESPONSES: read(b'{"model":"m","input":"x","stream":true}', Operation.RESPONSES),
    Operation.MESSAGES: read(
        b'{"model":"m","max_tokens":5,"messages":[],"stream":true}', Operation.MESSAGES
    ),
    Operation.COMPLETIONS: read(b'{"model":"m","prompt":"x","stream":true}', Operation.COMPLETIONS),
}
_USAGE = {
    "input_tokens": 5,
    "output_tokens": 9,
    "cache_creation": {"ephemeral_1h_input_tokens": 0},
    "server_tool_use": {"web_search_requests": 1},
    "output_tokens_details": {"thinking_tokens": 1},
    "iterations": [{"type": "compaction", "input_tokens": 3}],
}
_CALL = {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}
_ANTHROPIC = [
    {"type": "message_start", "message": {"id": "m", "usage": _USAGE}},
    {"type": "content_block_start", "index": 0, "content_block": _CALL},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": _USAGE},
    {"type": "message_stop"},
]
_GEMINI = [
    {
        "responseId": "r",
        "createTime": "2026-01-01T00:00:00Z",
        "candidates": [
            {
                "index": 0,
                "content": {
                    "parts": [
                        {"text": "a", "thought": True},
                        {"functionCall": {"name": "f", "args": {"x": 1}}, "thoughtSignature": "s"},
                    ]
                },
                "logprobsResult": {"chosenCandidates": [{"token": "a", "logProbability": -1}]},
                "groundingMetadata": {"webSearchQueries": ["a"]},
                "finishReason": "STOP",
            }
        ],
        "promptFeedback": {},
        "usageMetadata": {
            "promptTokenCount": 5,
            "candidatesTokenCount": 4,
            "thoughtsTokenCount": 2,
            "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 5}],
        },
    }
]
_OLLAMA = [
    {
        "created_at": "2026-01-01T00:00:00Z",
        "message": {
            "thinking": "t",
            "content": "c",
            "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}],
        },
        "logprobs": [{"token": "a", "logprob": -1, "top_logprobs": [{"token": "a"}]}],
    },
    {"done": True, "done_reason": "stop", "prompt_eval_count": 3, "eval_count": 4},
]
_TRITON = [
    {"id": "i", "text_output": "a", "num_input_tokens": 3, "num_output_tokens": 1},
    {"text_output": "b", "num_output_tokens": 1, "finish_reason": "stop"},
]
_CONVERSE_EVENTS = (
    ("messageStart", {"role": "assistant"}),
    ("contentBlockStart", {"start": {"toolUse": {"toolUseId": "t", "name": "f"}}}),
    ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"toolUse": {"input": "{}"}}}),
    ("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"reasoningContent": {"text": "x"}}}),
    ("messageStop", {"stopReason": "end_turn"}),
    ("metadata", {"usage": {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3}}),
)
_PIECE = {
    "content": "a",
    "refusal": "r",
    "reasoning_content": "t",
    "tool_calls": [{"index": 0, "id": "i", "function": {"name": "f", "arguments": "{}"}}],
}
_CHAT = [
    {
        "id": "c",
        "created": 1,
        "choices": [
            {"index": 0, "delta": _PIECE, "logprobs": {"content": [{"token": "a"}]}},
            {"index": 0, "delta": {}, "finish_reason": "stop"},
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 5},
    }
]
_CONVERSE = {
    "output": {"message": {"content": [{"text": "a"}, {"toolUse": {"name": "f", "input": {}}}]}},
    "stopReason": "end_turn",
    "usage": {"inputTokens": 1, "outputTokens": 2},
}
# The gateway's own request gives an answer the id and time that an upstream leaves out.
CALL = UpstreamRequest(
    url="http://127.0.0.1:9", headers={"x-request-id": text_of(REQUEST_ID)}, body=b""
)


def _events(objects: Sequence[bytes]) -> bytes:
    """Return objects as server-sent events."""
    return b"".join(b"data: " + one + b"\n\n" for one in objects)


def _lines(objects: Sequence[bytes]) -> bytes:
    """Return objects as lines."""
    return b"\n".join(objects)


def _messages(objects: Sequence[bytes]) -> bytes:
    """Return objects as the messages of an event stream, in the order of `_CONVERSE_EVENTS`."""
    return b"".join(
        framed({":message-type": "event", ":event-type": kind}, payload)
        for (kind, _), payload in zip(_CONVERSE_EVENTS, objects, strict=False)
    )


def _chat_reader() -> AnswerReader:
    """Return a reader of a chat's stream."""
    return ChatReader(
        chat_stream(
            model="m",
            wants_usage=True,
            wants_running_usage=False,
            asked_running_usage=False,
            cuts_timings=False,
            choices=1,
            collects_text=True,
        )
    )


def _chat_events(body: bytes, observed: Observed) -> Sequence[AnswerEvent]:
    """Return the events of a whole chat answer."""
    return chat_events(rewrite(ASKED[Operation.CHAT], body, observed), observed)


def _triton_events(body: bytes, observed: Observed) -> Sequence[AnswerEvent]:
    """Return the events of a whole answer of Triton."""
    return generate_events(body, observed, answer_id="x", most_tokens=3)


Framing = Callable[[Sequence[bytes]], bytes]
ReadWhole = Callable[[bytes, Observed], Sequence[AnswerEvent]]
STREAMS: dict[str, tuple[Callable[[], AnswerReader], list[Any], Framing]] = {
    "anthropic": (MessagesReader, _ANTHROPIC, _events),
    "bedrock": (ConverseReader, [event for _, event in _CONVERSE_EVENTS], _messages),
    "chat": (_chat_reader, _CHAT, _events),
    "gemini": (GeminiReader, _GEMINI, _events),
    "ollama": (OllamaReader, _OLLAMA, _lines),
    "triton": (lambda: TritonReader("id", most_tokens=5), _TRITON, _events),
}
WHOLE: dict[str, tuple[ReadWhole, Any]] = {
    "anthropic": (messages_events, {"id": "m", "content": [_CALL], "usage": _USAGE}),
    "bedrock": (converse_events, _CONVERSE),
    "chat": (
        _chat_events,
        {
            "choices": [{"index": 0, "message": _PIECE, "logprobs": {"content": [{"token": "a"}]}}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 5},
        },
    ),
    "gemini": (gemini_events, _GEMINI[0]),
    "ollama": (ollama_events, _OLLAMA[0] | _OLLAMA[1]),
    "triton": (_triton_events, _TRITON[0]),
}


def writers(dialect: str) -> Iterator[AnswerWriter]:
    """Yield a writer for each dialect of callers whose requests are translated to this one."""
    if dialect == "triton":
        yield CompletionsWriter(ASKED[Operation.COMPLETIONS])
        return
    for operation in (Operation.CHAT, Operation.RESPONSES, Operation.MESSAGES):
        yield writer_for(ASKED[operation], CALL)


def mutated(value: Any) -> Iterator[Any]:
    """Yield copies of a value, in each of which one member at any depth is another value."""
    yield from ODD
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in pairs:
        changes = mutated(inner) if isinstance(inner, dict | list) else ODD
        for changed in changes:
            copy = dict(value) if isinstance(value, dict) else list(value)
            copy[key] = changed
            yield copy


def encoded(value: Any) -> bytes:
    """Return a value as JSON, half surrogate pairs as escapes."""
    return json.dumps(value).encode()
