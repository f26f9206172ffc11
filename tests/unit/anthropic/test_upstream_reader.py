"""An answer in Anthropic's dialect as neutral events, and its usage."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.pricing.tokens import TokenUsage
from gateway.wire.anthropic.translation.upstream_reader import (
    MAX_CALLS,
    MessagesReader,
    messages_events,
)
from gateway.wire.dialect import EventTooLarge, UnreadableAnswer
from gateway.wire.observed import Observed
from gateway.wire.translation.answer_events import (
    AnswerEvent,
    CallArguments,
    CallStarted,
    Ended,
    Failed,
    Finish,
    Finished,
    Started,
    TextPiece,
    ThoughtPiece,
    Used,
)

FIRST = {
    "input_tokens": 10,
    "cache_read_input_tokens": 1000,
    "cache_creation_input_tokens": 50,
    "cache_creation": {"ephemeral_5m_input_tokens": 20, "ephemeral_1h_input_tokens": 30},
    "output_tokens": 1,
    "service_tier": "standard",
}
LAST = {"output_tokens": 80, "output_tokens_details": {"thinking_tokens": 30}}
USAGE = TokenUsage(
    input_tokens=1060,
    cached_input_tokens=1000,
    cache_write_tokens=50,
    cache_write_1h_tokens=30,
    output_tokens=80,
    reasoning_tokens=30,
)
EVENTS: list[dict[str, Any]] = [
    {"type": "message_start", "message": {"id": "msg_1", "content": [], "usage": FIRST}},
    {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "thinking", "thinking": ""},
    },
    {"type": "ping"},
    {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "thinking_delta", "thinking": "Hm"},
    },
    {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "signature_delta", "signature": "sig"},
    },
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Hello"}},
    {
        "type": "content_block_start",
        "index": 2,
        "content_block": {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}},
    },
    {
        "type": "content_block_delta",
        "index": 2,
        "delta": {"type": "input_json_delta", "partial_json": '{"city":'},
    },
    {
        "type": "content_block_delta",
        "index": 2,
        "delta": {"type": "input_json_delta", "partial_json": '"Bonn"}'},
    },
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": LAST},
    {"type": "message_stop"},
]


def sse(*events: dict[str, Any]) -> bytes:
    """Return events as an upstream sends them."""
    return b"".join(
        f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events
    )


STREAM = sse(*EVENTS)
EXPECTED: list[AnswerEvent] = [
    Started(
        answer_id="msg_1",
        usage=TokenUsage(
            input_tokens=1060,
            cached_input_tokens=1000,
            cache_write_tokens=50,
            cache_write_1h_tokens=30,
        ),
    ),
    ThoughtPiece(text="Hm"),
    ThoughtPiece(signature="sig"),
    TextPiece(text="Hello"),
    CallStarted(call=0, call_id="toolu_1", name="weather"),
    CallArguments(call=0, text='{"city":'),
    CallArguments(call=0, text='"Bonn"}'),
    Finished(finish=Finish.TOOL_CALLS, native="tool_use"),
    Used(usage=USAGE, service_tier="standard"),
    Ended(),
]


def fed(data: bytes, piece_bytes: int = 10**9) -> tuple[list[AnswerEvent], Observed]:
    """Return the events of a stream that arrives in pieces, and the observations."""
    reader = MessagesReader()
    events: list[AnswerEvent] = []
    for at in range(0, len(data), piece_bytes):
        events += reader.feed(data[at : at + piece_bytes])
    return [*events, *reader.end()], reader.observed


@pytest.mark.parametrize("piece_bytes", [1, 7, 10**9])
def test_a_stream_becomes_events(piece_bytes: int) -> None:
    """Wherever it is cut, the events and the usage are the same."""
    events, seen = fed(STREAM, piece_bytes)
    assert events == EXPECTED
    assert seen.final == USAGE
    assert (seen.is_done, seen.finish_reason, seen.upstream_id) == (True, "tool_use", "msg_1")
    assert seen.service_tier == "standard"


def test_a_broken_stream_keeps_its_prompt() -> None:
    """The prompt's side of `message_start` stands; its output of one token does not."""
    events, seen = fed(sse(*EVENTS[:7]))
    assert events == EXPECTED[:4]
    assert not seen.is_done
    assert seen.final is None
    assert seen.running == TokenUsage(
        input_tokens=1060,
        cached_input_tokens=1000,
        cache_write_tokens=50,
        cache_write_1h_tokens=30,
    )
    assert seen.texts == ("HmHello",)


def test_an_error_ends_a_stream() -> None:
    """It keeps its kind, and nothing after it counts as an answer."""
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    events, seen = fed(sse(EVENTS[0], error, *EVENTS[6:]))
    assert events[1:] == [Failed(code="overloaded", message="Overloaded")]
    assert (seen.is_error, seen.is_done) == (True, False)


@pytest.mark.parametrize(
    ("word", "finish"),
    [
        ("end_turn", Finish.STOP),
        ("stop_sequence", Finish.STOP),
        ("pause_turn", Finish.STOP),
        ("a_new_word", Finish.STOP),
        ("max_tokens", Finish.LENGTH),
        ("model_context_window_exceeded", Finish.LENGTH),
        ("refusal", Finish.CONTENT_FILTER),
    ],
)
def test_the_end_in_openais_word(word: str, finish: Finish) -> None:
    """The provider's own word stays beside it."""
    body = {"id": "msg_1", "content": [], "stop_reason": word, "usage": FIRST}
    events = messages_events(json.dumps(body).encode(), seen := Observed())
    assert Finished(finish=finish, native=word) in events
    assert seen.finish_reason == word


def test_a_whole_answer_becomes_the_same_events() -> None:
    """Its blocks come in their order, and its usage once."""
    content = [
        {"type": "thinking", "thinking": "Hm", "signature": "sig"},
        {"type": "redacted_thinking", "data": "sealed"},
        {"type": "text", "text": "Hello"},
        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Bonn"}},
    ]
    body = {
        "id": "msg_1",
        "content": content,
        "stop_reason": "tool_use",
        "usage": {**FIRST, **LAST},
    }
    events = messages_events(json.dumps(body).encode(), seen := Observed())
    assert list(events) == [
        Started(answer_id="msg_1"),
        ThoughtPiece(text="Hm", signature="sig"),
        ThoughtPiece(sealed="sealed"),
        TextPiece(text="Hello"),
        CallStarted(call=0, call_id="toolu_1", name="weather"),
        CallArguments(call=0, text='{"city":"Bonn"}'),
        Finished(finish=Finish.TOOL_CALLS, native="tool_use"),
        Used(usage=USAGE, service_tier="standard"),
        Ended(),
    ]
    assert (seen.final, seen.is_done) == (USAGE, True)


def test_an_answer_without_usage_keeps_its_text() -> None:
    """Then the gateway counts it; unknown is never 0."""
    body = {"content": [{"type": "text", "text": "Hello"}], "stop_reason": "end_turn"}
    messages_events(json.dumps(body).encode(), seen := Observed())
    assert (seen.final, seen.texts) == (None, ("Hello",))


@pytest.mark.parametrize("body", [b"", b"<html>", b"[" * 100_000, b'"text"', b"\xff{}"])
def test_an_unreadable_answer_is_refused(body: bytes) -> None:
    """It was generated and is paid for; its size is unknown."""
    seen = Observed()
    with pytest.raises(UnreadableAnswer):
        messages_events(body, seen)
    assert (seen.has_unread, seen.output_bytes) == (True, 0)


@given(st.binary(max_size=300), st.integers(1, 50))
def test_no_bytes_break_the_reader(data: bytes, piece_bytes: int) -> None:
    """Whatever an upstream sends between two events, reading it raises nothing of its own."""
    try:
        events, _ = fed(STREAM[:400] + data + b"\n\n" + STREAM[400:], piece_bytes)
    except EventTooLarge:
        return
    assert events


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["type", "message", "usage", "delta", "index", "content_block", "input_tokens"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=15,
    ),
    st.sampled_from([event["type"] for event in EVENTS] + ["error"]),
)
def test_members_of_any_type_break_nothing(value: Any, kind: str) -> None:
    """A member of another type is as if it were absent."""
    event = {"type": kind, "index": value, "message": value, "delta": value, "usage": value}
    _, seen = fed(sse({**event, "content_block": value, "error": value or 1}))
    assert seen.final is None or seen.final != TokenUsage()


def test_a_call_may_come_with_its_input() -> None:
    """Some servers send a whole call in its first event; its arguments are billed like any."""
    block = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Bonn"}}
    start = {"type": "content_block_start", "index": 0, "content_block": block}
    events, seen = fed(sse(EVENTS[0], start))
    assert events[1:] == [
        CallStarted(call=0, call_id="toolu_1", name="weather"),
        CallArguments(call=0, text='{"city":"Bonn"}'),
    ]
    assert seen.texts == ('weather{"city":"Bonn"}',)


def test_a_server_with_one_index_for_all_blocks_makes_several_calls() -> None:
    """Else the arguments of the second call went to the first."""
    start = {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
    }
    events, _ = fed(sse(start, start))
    assert [event.call for event in events if isinstance(event, CallArguments)] == [0, 1]


def test_an_answer_has_a_bounded_number_of_calls() -> None:
    """Each call is kept until the end, so an upstream cannot fill the memory with them."""
    start = {
        "type": "content_block_start",
        "content_block": {"type": "tool_use", "id": "t", "name": "f"},
    }
    events, _ = fed(sse(*({**start, "index": at} for at in range(MAX_CALLS + 1))))
    assert sum(isinstance(event, CallStarted) for event in events) == MAX_CALLS


def test_an_empty_piece_of_arguments_is_left_out() -> None:
    """Anthropic begins each call with one; it is no content."""
    empty = {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "input_json_delta", "partial_json": ""},
    }
    events, seen = fed(sse(EVENTS[0], empty))
    assert (events, seen.has_content) == (EXPECTED[:1], False)


def test_the_usage_of_an_event_that_is_too_large_to_read_counts() -> None:
    """Its text is not translated, and its figures are still the meter's."""
    event = {"type": "message_delta", "usage": FIRST | LAST, "delta": [[]] * 30_000}
    events, seen = fed(sse(EVENTS[0], event))
    assert (events, seen.final) == (EXPECTED[:1], USAGE)
    assert seen.has_unread


def test_the_usage_of_an_answer_that_is_too_large_to_read_counts() -> None:
    """The answer is refused, and its usage is charged."""
    body = {"content": [[]] * 30_000, "usage": FIRST | LAST}
    seen = Observed()
    with pytest.raises(UnreadableAnswer):
        messages_events(json.dumps(body).encode(), seen)
    assert seen.final == USAGE


def test_an_error_in_place_of_an_answer_is_no_end() -> None:
    """A server may send it with status 200."""
    body = {"error": {"type": "overloaded_error", "message": "Later."}, "usage": FIRST | LAST}
    events = messages_events(json.dumps(body).encode(), seen := Observed())
    assert list(events) == [Started()]
    assert (seen.is_error, seen.is_done, seen.final) == (True, False, USAGE)
