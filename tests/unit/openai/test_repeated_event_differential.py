"""The fast path of a stream's events gives the same as the general one, for every recorded
stream.
"""

from __future__ import annotations

from itertools import product

import pytest
from msgspec.structs import asdict

from gateway.wire.openai.answer.repeated_event import RepeatedEvent, Repetition
from gateway.wire.sse import EventSplitter
from tests.answers import PricedStream, chat_stream
from tests.unit.test_golden import GOLDEN, cost

STREAMS = sorted(
    path.relative_to(GOLDEN).as_posix()
    for path in GOLDEN.glob("*/*/upstream.sse")
    if b'"choices"' in path.read_bytes()
)
FLAGS = list(product([False, True], repeat=4))
PIECES = (10**9, 1000, 7)


class _Counting(RepeatedEvent):
    """Counts how often the fast path was taken."""

    __slots__ = ("taken",)

    def __init__(self) -> None:
        super().__init__()
        self.taken = 0

    def match(self, event: bytes) -> Repetition | None:
        found = super().match(event)
        self.taken += found is not None
        return found


def streaming(repeated: RepeatedEvent, flags: tuple[bool, ...]) -> PricedStream:
    wants_usage, wants_running_usage, asked_running_usage, collects_text = flags
    stream = chat_stream(
        model="assistant",
        cost=cost,
        wants_usage=wants_usage,
        wants_running_usage=wants_running_usage,
        asked_running_usage=asked_running_usage,
        collects_text=collects_text,
    )
    stream.stream._repeated = repeated
    return stream


def answer_of(stream: PricedStream, upstream: bytes, piece_bytes: int) -> bytes:
    pieces = [upstream[at : at + piece_bytes] for at in range(0, len(upstream), piece_bytes)]
    return b"".join(map(stream.feed, pieces)) + stream.end()


def lengthened(upstream: bytes) -> bytes:
    """Return the stream with each event three times: recordings are short, and repeats are
    compared.
    """
    events = EventSplitter().feed(upstream)
    return b"".join(event if b"[DONE]" in event else event * 3 for event in events)


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_the_same_without_the_fast_path(name: str) -> None:
    """It records content, pieces, text and usage by itself: each must equal the result of
    decoding.
    """
    upstream = (GOLDEN / name).read_bytes()
    for whole, flags, piece_bytes in product((upstream, lengthened(upstream)), FLAGS, PIECES):
        fast = streaming(RepeatedEvent(), flags)
        slow = streaming(RepeatedEvent(tries=0), flags)
        assert answer_of(fast, whole, piece_bytes) == answer_of(slow, whole, piece_bytes)
        assert fast.observed.usage == slow.observed.usage
        assert fast.observed.texts == slow.observed.texts
        known = [asdict(stream.observed) for stream in (fast, slow)]
        for observed in known:
            observed["_running"] = {
                choice: bytes(raw) for choice, raw in observed["_running"].items()
            }
        assert known[0] == known[1]


def test_the_fast_path_is_taken() -> None:
    """Else the comparison above compares nothing."""
    taken = 0
    for name in STREAMS:
        upstream = lengthened((GOLDEN / name).read_bytes())
        counting = _Counting()
        answer_of(streaming(counting, (False, False, True, False)), upstream, 1000)
        taken += counting.taken
    assert taken >= len(STREAMS)
