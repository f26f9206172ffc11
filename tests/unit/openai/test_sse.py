"""Server-sent events, split anywhere: the same events, the same payloads."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.dialect import EventTooLarge
from gateway.wire.sse import MAX_EVENT_BYTES, EventSplitter, data_of, with_data

abandoned = st.sampled_from([b"\n", b"\r\n", b"\r"])
lines = st.sampled_from(
    [
        b"data: {}",
        b'data: {"a":"b c"}',
        b"data:x",
        b"data:  two",
        b"data",
        b"event: ping",
        b"id: 7",
        b": comment",
        b":",
        b"data: [DONE]",
        b"retry: 5",
        b"data: \xc3\xa9",
        b"unknown: field",
    ]
)
# One ending for a whole stream, as every real server has; `mixed` draws one for each line.
streams = st.one_of(
    abandoned.flatmap(
        lambda end: st.lists(lines | st.just(b"")).map(lambda many: b"".join(x + end for x in many))
    ),
    st.lists(st.tuples(lines | st.just(b""), abandoned)).map(
        lambda many: b"".join(x + end for x, end in many)
    ),
)


def split(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted({cut % (len(stream) + 1) for cut in cuts}), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(edges)]


def fed(pieces: list[bytes]) -> tuple[list[bytes], bytes]:
    splitter = EventSplitter()
    events = [event for piece in pieces for event in splitter.feed(piece)]
    return events, splitter.rest


def standard_payloads(stream: bytes) -> list[bytes]:
    """WHATWG §9.2.6, the slow way: lines, then fields, then dispatch at a blank line."""
    text = stream.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    found, data = [], None
    for line in text.split(b"\n")[:-1]:
        if not line:
            if data is not None:
                found.append(data)
            data = None
            continue
        name, _, value = line.partition(b":")
        if name == b"data":
            value = value.removeprefix(b" ")
            data = value if data is None else data + b"\n" + value
    return found


@given(streams, st.lists(st.integers(min_value=0, max_value=500), max_size=8))
def test_a_stream_split_anywhere_has_the_same_events(stream: bytes, cuts: list[int]) -> None:
    """The network cuts anywhere: between CR and LF, inside a letter, inside a blank line."""
    assert fed(split(stream, cuts)) == fed([stream])


@given(streams)
def test_a_stream_fed_byte_by_byte_has_the_same_events(stream: bytes) -> None:
    """The hardest split there is."""
    assert fed([stream[i : i + 1] for i in range(len(stream))]) == fed([stream])


@given(streams)
def test_no_byte_is_lost_or_added(stream: bytes) -> None:
    """Events are handed on as they came."""
    events, rest = fed([stream])
    assert b"".join(events) + rest == stream


@given(streams)
def test_payloads_are_those_of_the_standard(stream: bytes) -> None:
    """Compared with a second, slower parser.

    A CR at the very end may still become CR LF: it is waited for.
    """
    events, rest = fed([stream])
    found = [payload for payload in map(data_of, events) if payload is not None]
    expected = standard_payloads(stream)
    assert found == expected[: len(found)]
    assert len(expected) - len(found) <= (1 if rest.endswith(b"\r") else 0)


@given(streams, st.sampled_from([b"{}", b'{"new":"payload"}', b"[DONE]"]))
def test_another_payload_keeps_the_events_other_fields(stream: bytes, payload: bytes) -> None:
    """`id:` and `event:` lines belong to the caller."""
    for event in fed([stream])[0]:
        if data_of(event) is None:
            continue
        changed = with_data(event, payload)
        assert data_of(changed) == payload
        assert fed([changed]) == ([changed], b"")
        kept = [
            line
            for line in event.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
            if line
        ]
        others = [line for line in kept if line.partition(b":")[0] != b"data"]
        assert [
            line for line in changed.split(b"\n") if line and line.partition(b":")[0] != b"data"
        ] == others


@pytest.mark.parametrize(
    ("event", "payload"),
    [
        (b"data: [DONE]\n\n", b"[DONE]"),
        (b"data: [DONE]\r\n\r\n", b"[DONE]"),
        (b"data: [DONE]\r\n\n", b"[DONE]"),
        (b"data: a\rdata: b\n\n", b"a\nb"),
        (b"data: a\ndata: b\n\n", b"a\nb"),
        (b": ping\n\n", None),
        (b"event: x\n\n", None),
    ],
)
def test_the_payload_of_an_event(event: bytes, payload: bytes | None) -> None:
    """The fast way for the common form and the full way for all others agree with the standard."""
    assert data_of(event) == payload


def test_an_event_that_never_ends_is_refused() -> None:
    """An upstream must not fill our memory."""
    splitter = EventSplitter()
    for _ in range(MAX_EVENT_BYTES // 65536):
        assert splitter.feed(b"x" * 65536) == []
    with pytest.raises(EventTooLarge):
        splitter.feed(b"x")


def test_an_event_that_grows_slowly_costs_its_length_and_not_its_square() -> None:
    """65,536 pieces of one event: searched once each and joined once, or this test takes a
    minute.
    """
    splitter = EventSplitter()
    piece = b"data: 0123456789"
    for _ in range(MAX_EVENT_BYTES // len(piece)):
        assert splitter.feed(piece) == []
    with pytest.raises(EventTooLarge):
        splitter.feed(b"\r")


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r.", b"\n\r\n", b"\r\n\n"])
def test_an_ending_is_found_across_every_seam(end: bytes) -> None:
    """The pieces of a large event are not searched twice, and its ending may lie in three of
    them.
    """
    event = b"data: " + b"x" * 100 + end.rstrip(b".")
    for first in range(len(event) - 5, len(event)):
        for second in range(first, len(event) + 1):
            splitter = EventSplitter()
            found = [
                splitter.feed(piece)
                for piece in (event[:first], event[first:second], event[second:], b"data:")
            ]
            assert [each for some in found for each in some] == [event]
            assert splitter.rest == b"data:"


def test_a_payload_of_several_lines_stays_one() -> None:
    """A line without its field name is no data: the caller would read half of the JSON."""
    event = b'event: x\ndata: {"a":1,\ndata: "b":2}\n\n'
    payload = data_of(event)
    assert payload is not None
    assert with_data(event, payload) == event
