"""Answers of Anthropic's messages pass byte by byte except for the model's name and the cost."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gateway.domain.pricing.tokens import TokenUsage
from gateway.wire.anthropic.answer.messages import (
    MessageStream,
    message_stream,
    rewrite_message,
    usage_in,
)
from gateway.wire.dialect import UnreadableAnswer, written
from gateway.wire.observed import Observed

USAGE = {"input_tokens": 25, "cache_read_input_tokens": 100, "output_tokens": 1}
START = {
    "type": "message_start",
    "message": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-real",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": USAGE,
    },
}
TEXT = {
    "type": "content_block_delta",
    "index": 0,
    "delta": {"type": "text_delta", "text": "Hi you"},
}
DELTA = {
    "type": "message_delta",
    "delta": {"stop_reason": "end_turn", "stop_sequence": None},
    "usage": {"output_tokens": 15},
}
STOP = {"type": "message_stop"}
PING = {"type": "ping"}
FINAL = TokenUsage(input_tokens=125, cached_input_tokens=100, output_tokens=15)


def named(*events: dict[str, Any]) -> bytes:
    return b"".join(
        b"event: %s\ndata: %s\n\n" % (event["type"].encode(), json.dumps(event).encode())
        for event in events
    )


def cost(usage: TokenUsage) -> str | None:
    return "0.5"


def fed(stream: MessageStream, data: bytes, at: int = 0) -> bytes:
    pieces = (data[:at], data[at:]) if at else (data,)
    parts = [part for piece in pieces for part in stream.feed(piece)]
    return b"".join(written(part, cost) for part in [*parts, *stream.end()])


def whole(body: bytes) -> tuple[bytes, Observed]:
    observed = Observed()
    return written(rewrite_message(body, observed, model="assistant"), cost), observed


def test_a_stream_passes_but_for_model_and_cost() -> None:
    """Events keep their names; the cost stands where every client keeps unknown members."""
    stream = message_stream(model="assistant")
    sent = named(START, PING, TEXT, DELTA, STOP)
    got = fed(stream, b": hello\n\n" + sent)
    expected = sent.replace(b"claude-real", b"assistant").replace(
        b'{"output_tokens": 15}', b'{"output_tokens": 15,"cost_usd":0.5}'
    )
    assert got == b": hello\n\n" + expected
    observed = stream.observed
    assert observed.final == FINAL
    assert (observed.is_done, observed.is_error, observed.finish_reason) == (
        True,
        False,
        "end_turn",
    )
    assert (observed.upstream_id, observed.pieces, observed.texts) == ("msg_1", 1, ("Hi you",))


def test_a_stream_split_anywhere_reads_the_same() -> None:
    """The network cuts where it likes."""
    sent = named(START, TEXT, DELTA, STOP)
    first = fed(message_stream(model="assistant"), sent)
    for at in range(1, len(sent), 7):
        stream = message_stream(model="assistant")
        assert fed(stream, sent, at) == first
        assert stream.observed.final == FINAL


def test_the_last_usage_of_a_stream_counts() -> None:
    """The figures are cumulative, and text between them makes the first a running one."""
    stream = message_stream(model="assistant")
    fed(stream, named(START, TEXT, DELTA, TEXT))
    assert stream.observed.final is None
    fed(stream, named({**DELTA, "usage": {"output_tokens": 30}}, STOP))
    assert stream.observed.final is not None
    assert stream.observed.final.output_tokens == 30


def test_a_cut_stream_keeps_the_prompt_that_it_reported() -> None:
    """The output of `message_start` is its first token, and none of the answer."""
    stream = message_stream(model="assistant")
    fed(stream, named(START))
    assert stream.observed.usage == TokenUsage(input_tokens=125, cached_input_tokens=100)
    fed(stream, named(TEXT))
    assert stream.observed.usage == TokenUsage(input_tokens=125, cached_input_tokens=100)
    assert not stream.observed.is_done
    assert stream.observed.output_bytes == 6


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"delta": {"type": "thinking_delta", "thinking": "hm"}}, "hm"),
        ({"delta": {"type": "input_json_delta", "partial_json": '{"a"'}}, '{"a"'),
        ({"delta": {"type": "signature_delta", "signature": "EqQB"}}, ""),
    ],
)
def test_each_kind_of_piece_is_content(block: dict[str, Any], text: str) -> None:
    """A stream cut inside a tool call or a thought has written tokens."""
    stream = message_stream(model="assistant")
    sent = named({"type": "content_block_delta", "index": 0, **block})
    assert fed(stream, sent) == sent
    assert stream.observed.has_content
    assert "".join(stream.observed.texts) == text


@pytest.mark.parametrize(
    ("block", "is_content"),
    [
        ({"type": "text", "text": ""}, False),
        ({"type": "thinking", "thinking": "", "signature": ""}, False),
        ({"type": "tool_use", "id": "t1", "name": "look", "input": {}}, True),
        ({"type": "redacted_thinking", "data": "EmwK"}, True),
    ],
)
def test_the_start_of_a_block_is_content_if_something_was_written(
    block: dict[str, Any], is_content: bool
) -> None:
    """An announced block may stay empty; a tool's name was generated."""
    stream = message_stream(model="assistant")
    fed(stream, named({"type": "content_block_start", "index": 0, "content_block": block}))
    assert stream.observed.has_content is is_content


def test_an_error_event_ends_the_stream_in_our_words() -> None:
    """Anthropic's client raises it; nothing that follows is passed on."""
    stream = message_stream(model="assistant")
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    got = fed(stream, named(START, error, TEXT, DELTA))
    last = got.split(b"event: ")[-1]
    assert last.startswith(b"error\ndata: ")
    assert json.loads(last.partition(b"data: ")[2]) == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "Overloaded", "code": "overloaded"},
        "request_id": None,
    }
    assert stream.observed.is_error
    assert not stream.observed.is_done


def test_nothing_follows_the_end() -> None:
    """Some servers send `[DONE]` too, which Anthropic's clients do not know; a usage is metered."""
    stream = message_stream(model="assistant")
    got = fed(stream, named(START, TEXT, STOP) + b"data: [DONE]\n\n" + named(DELTA) + b": x\n\n")
    assert got == named(START, TEXT, STOP).replace(b"claude-real", b"assistant")
    assert stream.observed.final == FINAL


def test_a_stream_without_its_last_blank_line_is_read() -> None:
    """A server that closes right after its last line is common."""
    stream = message_stream(model="assistant")
    fed(stream, named(START, TEXT, DELTA, STOP).rstrip(b"\n"))
    assert stream.observed.is_done


def test_half_a_surrogate_pair_in_a_stream_stays_as_it_is() -> None:
    """A maximum cuts an emoji; the rest of the answer is paid for."""
    stream = message_stream(model="assistant")
    text = named(TEXT).replace(b"Hi you", rb"Hi \ud83d")
    assert fed(stream, named(START) + text + named(DELTA, STOP)).count(rb"Hi \ud83d") == 1
    assert stream.observed.final == FINAL


@pytest.mark.parametrize("payload", [b"{", b"7", b'"x"', b"[" * 5000, b"\xff", b'{"type": "x"'])
def test_an_unreadable_event_passes_and_counts(payload: bytes) -> None:
    """It was generated and is paid for."""
    stream = message_stream(model="assistant")
    event = b"event: x\ndata: " + payload + b"\n\n"
    assert fed(stream, event) == event
    assert stream.observed.has_content


def test_unknown_events_pass_unchanged() -> None:
    """Tomorrow's event works today."""
    stream = message_stream(model="assistant")
    event = named({"type": "content_block_extra", "index": 0, "note": 1.50})
    assert fed(stream, event) == event


@pytest.mark.parametrize(
    "change",
    [
        lambda event: {**event, "message": 7},
        lambda event: {**event, "message": {"usage": 7, "model": 7, "id": []}},
        lambda event: {**event, "message": {}},
    ],
)
def test_an_odd_start_does_not_stop_the_stream(
    change: Callable[[dict[str, Any]], dict[str, Any]],
) -> None:
    """What comes later is still read."""
    stream = message_stream(model="assistant")
    fed(stream, named(change(START), TEXT, DELTA, STOP))
    assert stream.observed.final == TokenUsage(output_tokens=15)
    assert stream.observed.is_done


@pytest.mark.parametrize("usage", [None, 0, "x", [], {}])
def test_a_delta_without_a_usage_has_no_cost(usage: object) -> None:
    """Then the gateway counts the text."""
    stream = message_stream(model="assistant")
    sent = named({**DELTA, "usage": usage}, STOP)
    assert fed(stream, sent) == sent
    assert stream.observed.final is None
    assert stream.observed.finish_reason == "end_turn"


MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-real",
    "content": [
        {"type": "thinking", "thinking": "hm", "signature": "EqQB+/="},
        {"type": "text", "text": "Hi"},
    ],
    "stop_reason": "refusal",
    "stop_sequence": None,
    "usage": {**USAGE, "output_tokens": 15, "service_tier": "priority", "inference_geo": "eu"},
}


def test_a_whole_answer_passes_but_for_model_and_cost() -> None:
    """Signatures of thinking are checked byte by byte when they come back."""
    body = json.dumps(MESSAGE, indent=1).encode()
    got, observed = whole(body)
    assert got == body.replace(b"claude-real", b"assistant").replace(
        b'"inference_geo": "eu"\n', b'"inference_geo": "eu","cost_usd":0.5\n'
    ).replace(b'"eu"\n ,"cost_usd"', b'"eu","cost_usd"')
    assert observed.final == FINAL
    assert (observed.finish_reason, observed.service_tier, observed.stated_geo) == (
        "refusal",
        "priority",
        "eu",
    )
    assert observed.is_done


def test_a_cost_that_the_upstream_sends_is_replaced() -> None:
    """A gateway behind a gateway: the caller gets ours, once."""
    body = json.dumps({**MESSAGE, "usage": {**USAGE, "cost_usd": 9}}).encode()
    answer = whole(body)[0]
    assert (answer.count(b'"cost_usd":0.5'), answer.count(b"cost_usd")) == (1, 1)


@pytest.mark.parametrize("content", [MESSAGE["content"], [{"type": "new", "words": "x" * 30}], "x"])
def test_an_answer_without_usage_is_counted_by_its_text(content: Sequence[object]) -> None:
    """Something was written; a text of an unknown shape has no size."""
    body = json.dumps({**MESSAGE, "content": content, "usage": None}).encode()
    _, observed = whole(body)
    assert observed.final is None
    assert observed.has_content
    assert (observed.output_bytes > 0) is not observed.has_unread
    assert observed.is_done


def test_an_answer_without_content_is_empty() -> None:
    """A refusal may have no text."""
    _, observed = whole(json.dumps({**MESSAGE, "content": [], "usage": None}).encode())
    assert (observed.has_content, observed.is_done) == (False, True)


def test_an_error_with_status_200_is_an_error() -> None:
    """Proxies send one."""
    _, observed = whole(b'{"type":"error","error":{"type":"api_error","message":"x"}}')
    assert (observed.is_error, observed.is_done, observed.has_content) == (True, False, False)


def test_half_a_surrogate_pair_in_a_whole_answer_stays() -> None:
    """As in a stream."""
    body = json.dumps(MESSAGE).encode().replace(b'"Hi"', rb'"\ud83d"')
    got, observed = whole(body)
    assert rb'"\ud83d"' in got
    assert observed.final == FINAL


@pytest.mark.parametrize("body", [b"<html>", b"{", b"\xff{}", b"[]", b""])
def test_a_body_that_is_no_object_is_no_answer(body: bytes) -> None:
    """It is paid for."""
    with pytest.raises(UnreadableAnswer):
        whole(body)


def test_an_object_of_another_shape_passes_and_counts() -> None:
    """Its usage, if it has one; its other content stays unknown."""
    got, observed = whole(b'{"object":"chat.completion","usage":{"input_tokens":1}}')
    assert got.startswith(b'{"object"')
    assert observed.final == TokenUsage(input_tokens=1)
    got, observed = whole(b'{"other":1}')
    assert got == b'{"other":1}'
    assert observed.has_unread


def test_the_usage_of_any_body() -> None:
    """An error may report work too."""
    assert usage_in(json.dumps({"type": "error", "usage": USAGE}).encode()) is not None
    assert usage_in(b"<html>") is None
    assert usage_in(b"{}") is None


def test_the_usage_of_an_event_of_an_odd_shape_is_charged() -> None:
    """The event passes as it came."""
    stream = message_stream(model="assistant")
    odd = named({"type": "message_delta", "delta": 7, "usage": {"output_tokens": 15}})
    assert fed(stream, odd) == odd
    assert stream.observed.final == TokenUsage(output_tokens=15)


def test_a_delta_without_a_reason_has_its_usage() -> None:
    """vLLM's last event may have nothing else."""
    stream = message_stream(model="assistant")
    fed(stream, named(START, TEXT, {"type": "message_delta", "usage": {"output_tokens": 15}}))
    assert (stream.observed.finish_reason, stream.observed.final) == (None, FINAL)


def test_text_that_is_no_utf_8_is_counted() -> None:
    """It passes to the caller, so a stream of it would be free if its usage never came."""
    stream = message_stream(model="assistant")
    sent = named(TEXT).replace(b"Hi you", b"Hi \xff you")
    assert fed(stream, sent) == sent
    assert (stream.observed.has_content, stream.observed.pieces) == (True, 1)
    assert stream.observed.texts == ("Hi \ufffd you",)


def test_a_call_that_comes_whole_is_counted_with_its_input() -> None:
    """Some servers send a tool call in one event."""
    stream = message_stream(model="assistant")
    block = {"type": "tool_use", "id": "t", "name": "look", "input": {"a": 1}}
    fed(stream, named(START, {"type": "content_block_start", "content_block": block}))
    assert stream.observed.texts == ('look{"a": 1}',)
