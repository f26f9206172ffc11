"""Emojis whose halves come in two pieces of an upstream's stream."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.operation import Operation
from gateway.errors import InvalidRequest
from gateway.wire.anthropic.translation.upstream_reader import MessagesReader
from gateway.wire.bedrock.answer import ConverseReader
from gateway.wire.dialect import written
from gateway.wire.gemini.answer import GeminiReader
from gateway.wire.ollama.answer import OllamaReader
from gateway.wire.surrogates import with_stand_ins, without_halves
from gateway.wire.translation.answer_events import (
    AnswerEvent,
    CallArguments,
    CallStarted,
    RefusalPiece,
    TextPiece,
    ThoughtPiece,
)
from tests import factories
from tests.event_messages import event
from tests.oracles.mixed_streams import stream_of

CALL = {"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}
DELTAS = {
    "text": lambda text: {"content": text},
    "thought": lambda text: {"reasoning_content": text},
    "refusal": lambda text: {"refusal": text},
    "arguments": lambda text: {"tool_calls": [{"index": 0, "function": {"arguments": text}}]},
}
# Private use characters are icons of terminals: they may be in the text beside a half.
TEXTS = st.text(st.sampled_from('ab😀🦊\uf015\ue8a0\\"é'), max_size=8)


def chat(*deltas: dict[str, Any]) -> bytes:
    chunks = [{"id": "c", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    text = b"".join(b"data: %b\n\n" % json.dumps(one).encode() for one in chunks)
    return text + b"data: [DONE]\n\n"


def read(sent: bytes) -> list[AnswerEvent]:
    reader = stream_of("messages").reader
    return [*reader.feed(sent), *reader.end()]


def pieces_of(events: list[AnswerEvent]) -> list[tuple[type[Any], str]]:
    return [
        (type(event), event.text)
        for event in events
        if isinstance(event, TextPiece | RefusalPiece | ThoughtPiece | CallArguments) and event.text
    ]


def cut(text: str, *, every: int) -> list[str]:
    """A text in pieces of so many UTF-16 units."""
    units = text.encode("utf-16-le")
    return [
        units[at : at + 2 * every].decode("utf-16-le", "surrogatepass")
        for at in range(0, len(units), 2 * every)
    ]


@pytest.mark.parametrize("kind", DELTAS)
@given(text=TEXTS, every=st.integers(1, 3))
def test_a_text_that_is_cut_between_units_arrives_whole(kind: str, text: str, every: int) -> None:
    """Text, thoughts, refusals and arguments of tools; an icon of a private range stays one."""
    deltas = [DELTAS[kind](piece) for piece in cut(text, every=every)]
    found = pieces_of(read(chat({"tool_calls": [CALL]} if kind == "arguments" else {}, *deltas)))
    assert "".join(one for _, one in found) == text
    for _, one in found:
        one.encode()


def ollama(text: str, kind: str) -> bytes:
    return json.dumps({"message": {"role": "assistant", kind: text}}).encode() + b"\n"


def gemini(text: str, kind: str) -> bytes:
    part = {"text": text, "thought": kind == "thinking"}
    return b"data: %b\n\n" % json.dumps({"candidates": [{"content": {"parts": [part]}}]}).encode()


def converse(text: str, kind: str) -> bytes:
    delta = {"text": text}
    block = {"reasoningContent": delta} if kind == "thinking" else delta
    return event("contentBlockDelta", {"contentBlockIndex": 0, "delta": block})


UPSTREAMS = {
    "ollama": (OllamaReader, ollama, b'{"done": true}\n'),
    "gemini": (GeminiReader, gemini, b'data: {"candidates": [{"finishReason": "STOP"}]}\n\n'),
    "bedrock": (ConverseReader, converse, event("messageStop", {"stopReason": "end_turn"})),
}


@pytest.mark.parametrize("kind", ["content", "thinking"])
@pytest.mark.parametrize("upstream", UPSTREAMS)
@given(text=TEXTS, every=st.integers(1, 3))
def test_each_upstream_has_one_rule(upstream: str, kind: str, text: str, every: int) -> None:
    """At each place of the cut; a half without its other half is U+FFFD at the text's end."""
    make_reader, piece_of, last = UPSTREAMS[upstream]
    reader = make_reader()
    pieces = [*cut(text, every=every), "\ud83d"]
    events = [one for piece in pieces for one in reader.feed(piece_of(piece, kind))]
    events += [*reader.feed(last), *reader.end()]
    found = pieces_of(events)
    assert "".join(one for _, one in found) == text + "\ufffd"
    for _, one in found:
        one.encode()


@pytest.mark.parametrize("operation", ["messages", "responses"])
def test_a_caller_gets_the_emoji(operation: str) -> None:
    """`a😀b`, in the deltas and in the whole text at the end; each half was U+FFFD."""
    stream = stream_of(operation)
    sent = chat({"content": "a\ud83d"}, {"content": "\ude00b"})
    parts = [*stream.feed(sent), *stream.end()]
    text = b"".join(written(part, lambda _: None) for part in parts)
    assert text.count("\ufffd".encode()) == 0
    assert text.count("😀b".encode()) >= 1


def test_a_half_that_nothing_completes_is_replaced_in_its_place() -> None:
    """Before the content that ends its text, and at the end of the answer."""
    half, other = {"content": "a\ud83d"}, {"reasoning_content": "b"}
    assert pieces_of(read(chat(half, other, {"content": "\ude00"}))) == [
        (TextPiece, "a"),
        (TextPiece, "\ufffd"),
        (ThoughtPiece, "b"),
        (TextPiece, "\ufffd"),
    ]
    assert pieces_of(read(chat(half)))[-1] == (TextPiece, "\ufffd")
    called = read(chat(half, {"tool_calls": [CALL]}))
    assert [type(one) for one in called[1:4]] == [TextPiece, TextPiece, CallStarted]


def test_the_arguments_of_mixed_calls_are_joined_each_for_itself() -> None:
    """Text between them does not end them."""
    calls = [{"tool_calls": [{**CALL, "index": at, "id": str(at)}]} for at in range(2)]

    def more(at: int, text: str) -> dict[str, Any]:
        return {"tool_calls": [{"index": at, "function": {"arguments": text}}]}

    sent = chat(
        *calls, more(0, '"\ud83d'), more(1, '"\ud83e'), {"content": "x"}, more(0, '\ude00"')
    )
    events = read(sent[: -len(b"data: [DONE]\n\n")] + chat(more(1, '\udd8a"')))
    for at, text in enumerate(('"😀"', '"🦊"')):
        own = [one for one in events if isinstance(one, CallArguments) and one.call == at]
        assert "".join(one.text for one in own) == text


def test_halves_in_other_places_are_replaced() -> None:
    """Names, log probabilities, and arguments that are an object."""
    function = {"name": "f\ud83d", "arguments": {"a": "\ud83d"}}
    call = {"index": 0, "id": "\ude00", "function": function}
    choice = {"delta": {"content": "a", "tool_calls": [call]}}
    logprobs = {"content": [{"token": "\ud83d"}]}
    body = {"choices": [{**choice, "logprobs": logprobs}]}
    events = read(b"data: " + json.dumps(body).encode() + b"\n\n")
    text, started, arguments = events[1:4]
    assert isinstance(text, TextPiece)
    assert msgspec.json.decode(text.logprobs) == [{"token": "\ufffd"}]
    assert started == CallStarted(call=0, call_id="\ufffd", name="f\ufffd")
    assert isinstance(arguments, CallArguments)
    assert json.loads(arguments.text) == {"a": "\ufffd"}


def test_the_proof_of_a_thought_ends_its_text() -> None:
    """The half belongs to the text before it."""
    deltas = [{"type": "thinking_delta", "thinking": "a\ud83d"}]
    deltas.append({"type": "signature_delta", "signature": "Eq="})
    deltas.append({"type": "text_delta", "text": "b\ud83d"})
    deltas.append({"type": "text_delta", "text": "\ude00"})
    reader, sent = MessagesReader(), b""
    for delta in deltas:
        event = {"type": "content_block_delta", "index": 0, "delta": delta}
        sent += b"event: content_block_delta\ndata: %b\n\n" % json.dumps(event).encode()
    assert [one for one in reader.feed(sent) if isinstance(one, ThoughtPiece | TextPiece)] == [
        ThoughtPiece(text="a"),
        ThoughtPiece(text="\ufffd", signature="Eq="),
        TextPiece(text="b"),
        TextPiece(text="😀"),
    ]


def test_without_free_stand_ins_a_half_is_replaced() -> None:
    """A text may have a character of every private range."""
    taken = b'"\\uF000\\ue900\xee\x80\x80\\ud83d"'
    assert with_stand_ins(taken) == (without_halves(taken), None)
    assert with_stand_ins(b'"\\ud83d\\ude00"') == (b'"\\ud83d\\ude00"', None)


@pytest.mark.parametrize("operation", [Operation.CHAT, Operation.RESPONSES, Operation.MESSAGES])
@pytest.mark.parametrize("text", ["\ud83d", "a\ude00b", "\ude00\ud83d", "\ud83d\ud83d\ude00"])
def test_a_half_in_a_request_is_refused_at_the_edge(operation: Operation, text: str) -> None:
    """One rule for all targets, before any of them is chosen; a whole pair passes."""
    turns = [{"role": "user", "content": text}]
    name = "input" if operation is Operation.RESPONSES else "messages"
    with pytest.raises(InvalidRequest, match="not a valid JSON object"):
        factories.read(json.dumps({"model": "m", name: turns}).encode(), operation)
    turns = [{"role": "user", "content": "\U0001f600"}]
    assert factories.read(json.dumps({"model": "m", name: turns}).encode(), operation)
