"""Streams of chat upstreams with text, thoughts and calls in any order, and their translations.

A seed makes one stream: the pieces of its calls are mixed, with text between them, and told apart
by index, by id or by their order alone.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

from gateway.domain.operation import Operation
from gateway.wire.anthropic.request.read import read_request as read_messages
from gateway.wire.anthropic.translation.caller_writer import MessagesWriter
from gateway.wire.dialect import AnswerPart, written
from gateway.wire.openai.answer.chat import chat_stream
from gateway.wire.openai.chat_translation.reader import ChatReader
from gateway.wire.openai.request.read import read_request as read_responses
from gateway.wire.openai.responses_translation.writer import ResponsesWriter
from gateway.wire.translation.answer_events import AnswerWriter, Started
from gateway.wire.translation.translated_stream import TranslatedStream

_TEXTS = ("Hi ", "", "{", '"', "\\", "a}b", "ö😀", "\n\n", " [1] ")
_VALUES: tuple[Any, ...] = (
    1,
    1.5,
    None,
    True,
    "",
    '"',
    "\\",
    "}{",
    "]",
    "😀\n",
    [],
    {},
    [{"b": "{"}],
)
_STYLES = ("index", "mixed index", "no ids", "one id", "same index", "bare", "no index")


@dataclass(kw_only=True)
class SentCall:
    """A call that the upstream made: its name, the id that it stated and its arguments."""

    name: str
    call_id: str
    arguments: str


@dataclass(kw_only=True)
class MixedStream:
    """An upstream's stream: its bytes, and the content that every caller has to get."""

    sent: bytes = b""
    text: str = ""
    thought: str = ""
    calls: list[SentCall] = field(default_factory=list)


def mixed_stream(seed: int) -> MixedStream:
    """Return the stream of a seed."""
    chance = random.Random(seed)
    stream, deltas = MixedStream(), []
    for delta in _deltas(chance, stream):
        deltas.append(delta)
        if "tool_calls" not in delta:
            stream.text += delta.get("content", "")
            stream.thought += delta.get("reasoning_content", "")
    usage = {
        "prompt_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "completion_tokens": 9,
        "completion_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 18,
    }
    chunks: list[dict[str, Any]] = [_chunk(delta) for delta in deltas]
    chunks.append(_chunk({}, "tool_calls" if stream.calls else "stop"))
    chunks.append({**_chunk({}), "choices": [], "usage": usage})
    stream.sent = b"".join(b"data: %b\n\n" % json.dumps(one).encode() for one in chunks)
    stream.sent += b"data: [DONE]\n\n"
    return stream


def _deltas(chance: random.Random, stream: MixedStream) -> list[dict[str, Any]]:
    """Return the deltas of a stream in a possible order, and note its calls in the order of their
    starts.
    """
    style = chance.choice(_STYLES)
    queues = [_call(chance, at, style) for at in range(chance.randrange(4))]
    is_mixed = style == "mixed index"
    found: list[dict[str, Any]] = []
    running: list[list[dict[str, Any]]] = []
    while queues or running:
        if chance.random() < 0.3:
            found.append({chance.choice(("content", "reasoning_content")): chance.choice(_TEXTS)})
        elif queues and (not running or (is_mixed and chance.random() < 0.5)):
            call, pieces = queues.pop(0)
            stream.calls.append(call)
            running.append(pieces)
            found.append({"tool_calls": [running[-1].pop(0)]})
        else:
            pieces = chance.choice(running)
            if pieces:
                found.append({"tool_calls": [pieces.pop(0)]})
            if not pieces:
                running.remove(pieces)
    found.append({"content": chance.choice(_TEXTS)})
    return found


def _call(chance: random.Random, at: int, style: str) -> tuple[SentCall, list[dict[str, Any]]]:
    """Return one call and its pieces."""
    arguments = json.dumps(
        {
            chance.choice("abc") + str(at): chance.choice(_VALUES)
            for _ in range(chance.randrange(3))
        },
        ensure_ascii=chance.random() < 0.5,
    )
    if chance.random() < 0.1 and style in ("index", "mixed index"):
        arguments = ""
    call_id = {"no ids": "", "bare": "", "one id": "call_0"}.get(
        style, f"call_{chance.randrange(10**9)}"
    )
    call = SentCall(name=f"tool_{at}", call_id=call_id, arguments=arguments)
    index = {} if style == "no index" else {"index": 0 if style in ("same index", "bare") else at}
    cuts = sorted(
        chance.sample(range(len(arguments) + 1), min(chance.randrange(4), len(arguments)))
    )
    texts = [arguments[a:b] for a, b in zip([0, *cuts], [*cuts, len(arguments)], strict=True)]
    head = {"type": "function"} | ({"id": call_id} if call_id or chance.random() < 0.5 else {})
    first = {**index, **head, "function": {"name": call.name, "arguments": texts[0]}}
    return call, [first, *({**index, "function": {"arguments": text}} for text in texts[1:])]


def _chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 5, "model": "m"}
    return {**head, "choices": [choice]}


def translated(sent: bytes, operation: str, *, step: int) -> tuple[bytes, bytes]:
    """Return the caller's stream of an upstream's one, read in steps, and the plain answer of the
    same events.
    """
    stream = stream_of(operation)
    parts: list[AnswerPart] = []
    for at in range(0, len(sent), step):
        parts += stream.feed(sent[at : at + step])
    parts += stream.end()
    assert not stream.observed.is_error
    once = stream_of(operation)
    events = [*once.reader.feed(sent), *once.reader.end()]
    text = b"".join(written(part, lambda _: "1.0") for part in parts)
    return text, written(once.writer.whole(events), lambda _: "1.0")


def stream_of(operation: str) -> TranslatedStream:
    """Return a stream of a chat upstream for a caller of messages or of responses."""
    body: dict[str, Any] = {"model": "assistant", "stream": True}
    own = Started(answer_id="0" * 32, created_s=5)
    writer: AnswerWriter
    if operation == "messages":
        ask = json.dumps({**body, "max_tokens": 50, "messages": []}).encode()
        writer = MessagesWriter(read_messages(ask), own)
    else:
        ask = json.dumps({**body, "input": "Hi"}).encode()
        writer = ResponsesWriter(read_responses(Operation.RESPONSES, ask), own)
    return TranslatedStream(_reader(), writer)


def _reader() -> ChatReader:
    """Return a reader as an adapter makes it."""
    asked = {"wants_usage": False, "wants_running_usage": False, "asked_running_usage": False}
    return ChatReader(chat_stream(model="assistant", collects_text=True, **asked))
