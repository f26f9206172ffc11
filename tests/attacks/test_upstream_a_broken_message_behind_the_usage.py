"""A broken message of an event stream, in the same piece as the usage before it: all messages of
the piece were dropped, so the answer was booked as unknown, or estimated, by how it was cut. A body
that is no event stream at all was bought three times, each unknown at its hold.
"""

from __future__ import annotations

import json
from binascii import crc32
from struct import pack
from typing import Any

import pytest

from gateway.wire.bedrock.answer import ConverseReader
from gateway.wire.dialect import EventTooLarge
from gateway.wire.translation.answer_events import TextPiece


def message(kind: str, event: dict[str, Any]) -> bytes:
    """Return one message of an event stream."""
    names = {":event-type": kind, ":message-type": "event"}
    headers = b"".join(
        pack("!B", len(name)) + name.encode() + b"\x07" + pack("!H", len(value)) + value.encode()
        for name, value in names.items()
    )
    payload = json.dumps(event).encode()
    prelude = pack("!II", len(headers) + len(payload) + 16, len(headers))
    whole = prelude + pack("!I", crc32(prelude)) + headers + payload
    return whole + pack("!I", crc32(whole))


TEXT = message("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "a"}})
END = message("messageStop", {"stopReason": "end_turn"}) + message(
    "metadata", {"usage": {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}}
)
BROKEN = {
    "prelude": b"\0" * 16,
    "sum": TEXT[:-1] + bytes([TEXT[-1] ^ 1]),
    "length": pack("!III", 2**31, 0, crc32(pack("!II", 2**31, 0))),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_the_messages_before_a_broken_one_count(broken: str) -> None:
    reader = ConverseReader()
    with pytest.raises(EventTooLarge) as raised:
        reader.feed(TEXT + BROKEN[broken] + END)
    events, rest = raised.value.before, raised.value.rest
    assert [event.text for event in events if isinstance(event, TextPiece)] == ["a"]
    with pytest.raises(EventTooLarge):
        reader.feed(rest)
    assert not reader.observed.is_done


@pytest.mark.parametrize("broken", BROKEN)
def test_the_usage_before_a_broken_message_counts(broken: str) -> None:
    reader = ConverseReader()
    with pytest.raises(EventTooLarge):
        reader.feed(TEXT + END + BROKEN[broken])
    assert reader.observed.is_done
    assert reader.observed.final is not None
    assert reader.observed.final.output_tokens == 5


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_body_that_is_no_event_stream_is_bought_once(size: int) -> None:
    """`is_whole` says that it is not asked again; its own usage is charged."""
    usage = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}
    body = json.dumps({"output": {"message": {}}, "usage": usage}).encode()
    reader = ConverseReader()
    for at in range(0, len(body), size):
        assert not reader.feed(body[at : at + size])
    assert not reader.end()
    assert reader.observed.is_whole
    assert reader.observed.final is not None
    assert reader.observed.final.output_tokens == 5
    assert reader.observed.has_unread


def test_a_body_without_end_ends() -> None:
    reader = ConverseReader()
    for _ in range(1024):
        reader.feed(b"x" * 1024)
    with pytest.raises(EventTooLarge):
        reader.feed(b"x")
