"""An upstream whose answer has a member of another type, at any depth. Two of them were exceptions:
log probabilities that are no list, for a caller of responses, and parts of Anthropic's usage that
are numbers, for which the hold was booked and the caller got 500.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from gateway.wire.anthropic.usage import usage_from_wire
from gateway.wire.dialect import EventTooLarge, UnreadableAnswer, written
from gateway.wire.observed import Observed
from gateway.wire.translation.translated_stream import TranslatedStream
from tests.attacks.odd_answers import STREAMS, WHOLE, encoded, mutated, writers

MOST_PARTS = 1000  # a stream that never ends has more


@pytest.mark.parametrize("dialect", STREAMS)
def test_a_stream_is_read_whatever_its_members_are(dialect: str) -> None:
    reader, events, framed = STREAMS[dialect]
    for changed in mutated(events):
        if not isinstance(changed, list):
            continue
        for writer in writers(dialect):
            stream = TranslatedStream(reader(), writer)
            with suppress(EventTooLarge):
                parts = list(stream.feed(framed([encoded(one) for one in changed])))
                while more := stream.end():
                    parts += more
                    assert len(parts) < MOST_PARTS
                for part in parts:
                    written(part, lambda _: "0.1")


@pytest.mark.parametrize("dialect", WHOLE)
def test_a_whole_answer_is_read_whatever_its_members_are(dialect: str) -> None:
    read, answer = WHOLE[dialect]
    for changed in mutated(answer):
        for writer in writers(dialect):
            observed = Observed()
            with suppress(UnreadableAnswer):
                events = read(encoded(changed), observed)
                if not observed.is_error:
                    written(writer.whole(events), lambda _: "0.1")


@pytest.mark.parametrize(
    "odd", [{"cache_creation": 0}, {"server_tool_use": 1}, {"iterations": 5}, {"iterations": [5]}]
)
def test_the_other_counts_of_a_usage_are_still_read(odd: dict[str, Any]) -> None:
    usage = usage_from_wire(encoded({"input_tokens": 7, "output_tokens": 2} | odd))
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens) == (7, 2)
