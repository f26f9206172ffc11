"""An answer of Converse as neutral events, its framing and its usage."""

from __future__ import annotations

import json
import struct
from binascii import crc32
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.pricing.tokens import TokenUsage
from gateway.wire.bedrock.answer import ConverseReader, converse_events, usage_in
from gateway.wire.bedrock.event_stream import (
    MAX_MESSAGE_BYTES,
    MAX_PARTS,
    BrokenStream,
    MessageSplitter,
    StreamMessage,
)
from gateway.wire.bedrock.usage import usage_from_wire
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
    Omitted,
    Picture,
    Started,
    TextPiece,
    ThoughtPiece,
    Used,
)
from tests.event_messages import event, exception, framed

WIRE = {
    "inputTokens": 10,
    "outputTokens": 80,
    "totalTokens": 1140,
    "cacheReadInputTokens": 1000,
    "cacheWriteInputTokens": 50,
    "cacheDetails": [{"ttl": "1h", "inputTokens": 30}, {"ttl": "5m", "inputTokens": 20}],
}
USAGE = TokenUsage(
    input_tokens=1060,
    cached_input_tokens=1000,
    cache_write_tokens=50,
    cache_write_1h_tokens=30,
    output_tokens=80,
)
PARTS = [
    event("messageStart", {"role": "assistant", "p": "abc"}),
    event(
        "contentBlockDelta",
        {"contentBlockIndex": 0, "delta": {"reasoningContent": {"text": "Hm"}}},
    ),
    event(
        "contentBlockDelta",
        {"contentBlockIndex": 0, "delta": {"reasoningContent": {"signature": "sig"}}},
    ),
    event("contentBlockStop", {"contentBlockIndex": 0}),
    event("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"text": "Hello"}}),
    event(
        "contentBlockStart",
        {"contentBlockIndex": 2, "start": {"toolUse": {"toolUseId": "t-1", "name": "weather"}}},
    ),
    event(
        "contentBlockDelta",
        {"contentBlockIndex": 2, "delta": {"toolUse": {"input": '{"city":"Bonn"}'}}},
    ),
    event("messageStop", {"stopReason": "tool_use"}),
    event(
        "metadata",
        {"usage": WIRE, "metrics": {"latencyMs": 5}, "serviceTier": {"type": "priority"}},
    ),
]
EXPECTED: list[AnswerEvent] = [
    Started(),
    ThoughtPiece(text="Hm"),
    ThoughtPiece(signature="sig"),
    TextPiece(text="Hello"),
    CallStarted(call=0, call_id="t-1", name="weather"),
    CallArguments(call=0, text='{"city":"Bonn"}'),
    Finished(finish=Finish.TOOL_CALLS, native="tool_use"),
    Used(usage=USAGE, service_tier="priority"),
    Ended(),
]


def fed(data: bytes, piece_bytes: int = 10**9) -> tuple[list[AnswerEvent], Observed]:
    """Return the events of a stream that arrives in pieces, and the observations."""
    reader = ConverseReader()
    events: list[AnswerEvent] = []
    for at in range(0, len(data), piece_bytes):
        events += reader.feed(data[at : at + piece_bytes])
    return [*events, *reader.end()], reader.observed


@pytest.mark.parametrize("piece_bytes", [1, 7, 100, 10**9])
def test_a_stream_becomes_events(piece_bytes: int) -> None:
    """Wherever it is cut, the events and the usage are the same."""
    events, seen = fed(b"".join(PARTS), piece_bytes)
    assert events == EXPECTED
    assert seen.final == USAGE
    assert (seen.is_done, seen.finish_reason, seen.service_tier) == (True, "tool_use", "priority")


def test_a_stream_with_one_index_for_all_blocks_has_several_calls() -> None:
    """Else the arguments of the second call went to the first."""
    use, place = {"toolUse": {"toolUseId": "t", "name": "f"}}, {"contentBlockIndex": 0}
    start = event("contentBlockStart", {**place, "start": use})
    more = event("contentBlockDelta", {**place, "delta": {"toolUse": {"input": "{}"}}})
    events, _ = fed(b"".join([start, more, start, more]))
    assert [one.call for one in events if isinstance(one, CallArguments)] == [0, 1]


def test_a_broken_stream_has_no_usage() -> None:
    """Usage comes last, so a cut stream's text is kept to be counted."""
    events, seen = fed(b"".join(PARTS[:5]))
    assert events == EXPECTED[:4]
    assert (seen.is_done, seen.final, seen.texts) == (False, None, ("HmHello",))


def test_a_stopped_stream_without_its_usage_is_complete() -> None:
    """Its text is counted."""
    events, seen = fed(b"".join(PARTS[:-1]))
    assert events[-2:] == [Finished(finish=Finish.TOOL_CALLS, native="tool_use"), Ended()]
    assert (seen.is_done, seen.final) == (True, None)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("throttlingException", "rate_limited"),
        ("serviceUnavailableException", "overloaded"),
        ("modelStreamErrorException", "upstream_error"),
    ],
)
def test_an_exception_ends_a_stream(kind: str, code: str) -> None:
    """It comes with status 200; nothing after it counts as an answer."""
    events, seen = fed(PARTS[0] + exception(kind, "Sorry.") + b"".join(PARTS[4:]))
    assert events == [Started(), Failed(code=code, message="Sorry.")]
    assert (seen.is_error, seen.is_done) == (True, False)


def test_an_error_message_of_the_framing_ends_a_stream() -> None:
    """Its text stands in a header."""
    headers = {":message-type": "error", ":error-code": "500", ":error-message": "Broken."}
    events, seen = fed(framed(headers, b""))
    assert events == [Failed(code="upstream_error", message="Broken.")]
    assert seen.is_error


@pytest.mark.parametrize(
    ("word", "finish"),
    [
        ("end_turn", Finish.STOP),
        ("stop_sequence", Finish.STOP),
        ("malformed_tool_use", Finish.STOP),
        ("max_tokens", Finish.LENGTH),
        ("model_context_window_exceeded", Finish.LENGTH),
        ("guardrail_intervened", Finish.CONTENT_FILTER),
        ("content_filtered", Finish.CONTENT_FILTER),
        ("refusal", Finish.CONTENT_FILTER),
    ],
)
def test_the_end_in_openais_word(word: str, finish: Finish) -> None:
    """The provider's own word stays beside it."""
    events = converse_events(
        json.dumps({"output": {"message": {}}, "stopReason": word}).encode(), seen := Observed()
    )
    assert Finished(finish=finish, native=word) in events
    assert seen.finish_reason == word


def test_a_whole_answer_becomes_the_same_events() -> None:
    """Its blocks come in their order, and its usage once."""
    content = [
        {"reasoningContent": {"reasoningText": {"text": "Hm", "signature": "sig"}}},
        {"reasoningContent": {"redactedContent": "c2VhbGVk"}},
        {"text": "Hello"},
        {"toolUse": {"toolUseId": "t-1", "name": "weather", "input": {"city": "Bonn"}}},
    ]
    body = {
        "output": {"message": {"role": "assistant", "content": content}},
        "stopReason": "tool_use",
        "usage": WIRE,
        "metrics": {"latencyMs": 5},
    }
    encoded = json.dumps(body).encode()
    assert list(converse_events(encoded, seen := Observed())) == [
        Started(),
        ThoughtPiece(text="Hm", signature="sig"),
        ThoughtPiece(sealed="c2VhbGVk"),
        TextPiece(text="Hello"),
        CallStarted(call=0, call_id="t-1", name="weather"),
        CallArguments(call=0, text='{"city":"Bonn"}'),
        Finished(finish=Finish.TOOL_CALLS, native="tool_use"),
        Used(usage=USAGE),
        Ended(),
    ]
    assert seen.final == usage_in(encoded) == USAGE


@pytest.mark.parametrize("body", [b"", b"<html>", b"[" * 100_000, b'"text"', b"\xff{}"])
def test_an_unreadable_answer_is_refused(body: bytes) -> None:
    """It was generated and is paid for; its size is unknown."""
    seen = Observed()
    with pytest.raises(UnreadableAnswer):
        converse_events(body, seen)
    assert (seen.has_unread, seen.output_bytes) == (True, 0)


@pytest.mark.parametrize("member", [*WIRE])
def test_each_member_of_a_usage_counts(member: str) -> None:
    """Without any one of them the usage is another one; the total only checks the others."""
    less = {name: value for name, value in WIRE.items() if name != member}
    assert (usage_from_wire(less) == USAGE) == (member == "totalTokens")


def test_counts_of_the_cache_are_0_or_unknown() -> None:
    """They are left out when nothing was cached; if the total says more, nothing is charged."""
    plain = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}
    assert usage_from_wire(plain) == TokenUsage(
        input_tokens=10, cached_input_tokens=0, cache_write_tokens=0, output_tokens=5
    )
    assert usage_from_wire({**plain, "totalTokens": 99}) == TokenUsage(
        input_tokens=10, output_tokens=5, unexplained_tokens=84
    )
    assert usage_from_wire({"totalTokens": 99}) == TokenUsage(unexplained_tokens=99)


COUNTS = st.integers(0, 10**9)


@given(COUNTS, COUNTS, COUNTS, COUNTS, COUNTS)
def test_parts_of_a_usage_add_up(new: int, read: int, hour: int, short: int, output: int) -> None:
    """Uncached, read and written tokens are the whole prompt."""
    usage = usage_from_wire(
        {
            "inputTokens": new,
            "outputTokens": output,
            "totalTokens": new + read + hour + short + output,
            "cacheReadInputTokens": read,
            "cacheWriteInputTokens": hour + short,
            "cacheDetails": [{"ttl": "1h", "inputTokens": hour}],
        }
    )
    assert usage is not None
    assert usage.is_plausible
    assert usage.input_tokens == new + read + hour + short
    assert (usage.cache_write_1h_tokens, usage.output_tokens) == (hour, output)


OTHER_VALUES = [
    (0, b""),
    (1, b""),
    (2, b"1"),
    (3, b"12"),
    (4, b"1234"),
    (5, b"12345678"),
    (6, b"\x00\x02ab"),
    (8, b"12345678"),
    (9, b"1" * 16),
]


def test_headers_of_other_types_are_skipped() -> None:
    """Only texts are read; each other type has its own length."""
    values = b"".join(b"\x01n" + bytes((kind,)) + value for kind, value in OTHER_VALUES)
    plain = framed({":event-type": "x"}, b"{}")
    assert MessageSplitter().feed(_with_headers(values, plain)) == [
        StreamMessage({":event-type": "x"}, b"{}")
    ]


def _with_headers(values: bytes, message: bytes) -> bytes:
    """Return a message with more headers before its own."""
    own = struct.unpack_from("!I", message, 4)[0]
    headers, payload = values + message[12 : 12 + own], message[12 + own : -4]
    prelude = struct.pack("!II", 16 + len(headers) + len(payload), len(headers))
    whole = prelude + struct.pack("!I", crc32(prelude)) + headers + payload
    return whole + struct.pack("!I", crc32(whole))


@pytest.mark.parametrize("at", [0, 4, 8, 14, 30, -5, -1])
def test_a_changed_byte_breaks_a_stream(at: int) -> None:
    """Both sums are checked: a changed figure would be billed."""
    broken = bytearray(PARTS[-1])
    broken[at] ^= 1
    with pytest.raises(EventTooLarge):
        fed(bytes(broken))


@pytest.mark.parametrize("values", [b"\x01n\x63", b"\x05n", b"\x01n\x07\xff\xff"])
def test_broken_headers_break_a_stream(values: bytes) -> None:
    """The sums are right, and the headers still mean nothing."""
    message = _with_headers(values, framed({}, b"{}"))
    with pytest.raises(BrokenStream):
        MessageSplitter().feed(message)


def test_a_message_that_never_ends_is_refused() -> None:
    """Its length stands at its beginning, so nothing is kept."""
    prelude = struct.pack("!II", MAX_MESSAGE_BYTES + 1, 0)
    with pytest.raises(EventTooLarge, match="more than"):
        MessageSplitter().feed(prelude + struct.pack("!I", crc32(prelude)))


@given(st.binary(max_size=200), st.integers(1, 50))
def test_no_bytes_break_the_reader(data: bytes, piece_bytes: int) -> None:
    """Whatever an upstream sends, reading it raises nothing but a broken framing."""
    stream = b"".join(PARTS[:3]) + framed({":event-type": "contentBlockDelta"}, data)
    events, seen = fed(stream + b"".join(PARTS[4:]), piece_bytes)
    assert events[-1] == Ended()
    assert seen.final == USAGE
    try:
        fed(PARTS[0] + data, piece_bytes)
    except EventTooLarge:
        pass


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["usage", "delta", "toolUse", "text"]), inner)
        ),
        max_leaves=10,
    ),
    st.sampled_from(["contentBlockStart", "contentBlockDelta", "messageStop", "metadata"]),
)
def test_members_of_any_type_break_nothing(value: Any, kind: str) -> None:
    """A member of another type is as if it were absent."""
    names = ("contentBlockIndex", "start", "delta", "stopReason", "usage", "serviceTier")
    _, seen = fed(event(kind, dict.fromkeys(names, value)))
    assert seen.final is None


def test_a_body_that_is_no_event_stream_is_charged() -> None:
    """A proxy may answer a stream's request with a whole answer: it was generated."""
    body = json.dumps({"usage": WIRE, "serviceTier": {"type": "priority"}}).encode()
    events, seen = fed(body, piece_bytes=10)
    assert events == []
    assert (seen.final, seen.service_tier) == (USAGE, "priority")
    assert (seen.has_unread, seen.is_whole, seen.is_done) == (True, True, False)


def test_a_body_that_is_no_event_stream_is_kept_up_to_a_bound() -> None:
    """It must not fill the memory."""
    reader = ConverseReader()
    reader.feed(b"x" * MAX_MESSAGE_BYTES)
    with pytest.raises(EventTooLarge, match="more than"):
        reader.feed(b"x")


def test_a_message_of_many_pieces_is_joined() -> None:
    """A bytes object costs 33 bytes, so single bytes would take 34 times their memory."""
    message = event("contentBlockDelta", {"delta": {"text": "x" * 2 * MAX_PARTS}})
    splitter = MessageSplitter()
    found = [one for byte in message for one in splitter.feed(bytes((byte,)))]
    assert [len(json.loads(one.payload)["delta"]["text"]) for one in found] == [2 * MAX_PARTS]


def test_headers_that_are_longer_than_their_message_break_a_stream() -> None:
    """The sum of the prelude is right."""
    prelude = struct.pack("!II", 20, 10)
    with pytest.raises(BrokenStream, match="longer than it"):
        MessageSplitter().feed(prelude + struct.pack("!I", crc32(prelude)))


def test_a_whole_answer_without_usage_keeps_its_text() -> None:
    """Then the gateway counts it."""
    content = [{"text": "Hello"}, {"toolUse": {"toolUseId": "t", "name": "f", "input": {}}}]
    body = {"output": {"message": {"content": content}}, "stopReason": "end_turn"}
    converse_events(json.dumps(body).encode(), seen := Observed())
    assert (seen.final, seen.texts) == (None, ("Hellof{}",))


def pictured(*pieces: dict[str, Any], starts: bool = True) -> list[AnswerEvent]:
    """Return the events of a stream with one picture, without its start and end."""
    place = {"contentBlockIndex": 0}
    parts = [event("messageStart", {"role": "assistant"})]
    if starts:
        parts.append(event("contentBlockStart", {**place, "start": {"image": {"format": "png"}}}))
    deltas = ({**place, "delta": {"image": piece}} for piece in pieces)
    parts += (event("contentBlockDelta", delta) for delta in deltas)
    parts += [event("contentBlockStop", place), event("messageStop", {"stopReason": "end_turn"})]
    return fed(b"".join(parts))[0][1:-2]


@pytest.mark.parametrize(
    ("pieces", "starts", "expected"),
    [
        (["iVBO", "Rw=="], True, Picture(media_type="image/png", data="iVBORw==")),
        (["iVBORw==", "iVA="], True, Picture(media_type="image/png", data="iVBOR4lQ")),
        ([], True, Omitted(name="image")),
        (["a"], True, Omitted(name="image")),
        (["iVBORw=="], False, Omitted(name="image/")),
    ],
)
def test_a_picture_may_come_in_pieces(
    pieces: list[str], starts: bool, expected: AnswerEvent
) -> None:
    """Each is base64 of its own; what gives no picture is named."""
    assert pictured(*({"source": {"bytes": one}} for one in pieces), starts=starts) == [expected]


def test_a_picture_by_an_address_is_named() -> None:
    """A caller cannot read the operator's bucket."""
    source = {"s3Location": {"uri": "s3://a/b.png"}}
    assert pictured({"source": source}) == [Omitted(name="image")]
    block = {"image": {"format": "png", "source": source}}
    body = {"output": {"message": {"content": [block]}}, "stopReason": "end_turn"}
    assert converse_events(json.dumps(body).encode(), Observed())[1] == Omitted(name="image")


def test_a_picture_larger_than_an_answer_is_named() -> None:
    """It is kept until its end, so there is a bound."""
    piece = {"source": {"bytes": "A" * 1_000_000}}
    assert pictured(*[piece] * 34) == [Omitted(name="image")]
