"""An upstream of Anthropic's dialect whose figures fall: a second `message_start`, a prompt that
shrinks in `message_delta`, or a second `message_delta`, replaced the earlier counts, unflagged.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.domain.pricing.settlement import Settlement
from gateway.domain.pricing.tokens import UsageSource
from gateway.wire.anthropic.answer.messages import message_stream
from gateway.wire.anthropic.translation.upstream_reader import MessagesReader
from tests.factories import settled


def start(**usage: Any) -> dict[str, Any]:
    """Return the first event of a stream."""
    message = {"id": "m", "type": "message", "role": "assistant", "content": [], "usage": usage}
    return {"type": "message_start", "message": message}


def end(**usage: Any) -> dict[str, Any]:
    """Return the event with the usage of the whole answer."""
    return {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage}


WORD = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}}
STOP = {"type": "message_stop"}
LONG, SHORT = {"input_tokens": 1000, "output_tokens": 1}, {"input_tokens": 1, "output_tokens": 1}
CACHED = {"input_tokens": 1000, "cache_read_input_tokens": 500, "output_tokens": 1}
FALLS = {
    "two starts": ([start(**LONG), WORD, start(**SHORT), end(output_tokens=5), STOP], (1000, 5)),
    "two starts at once": ([start(**LONG), start(**SHORT), end(output_tokens=5), STOP], (1000, 5)),
    "a prompt that shrinks": (
        [start(**CACHED), WORD, end(input_tokens=1, output_tokens=5), STOP],
        (1500, 5),
    ),
    "two ends": ([start(**LONG), WORD, end(output_tokens=500), end(output_tokens=2)], (1000, 500)),
}
STAYS = {
    "as usual": ([start(**CACHED), WORD, end(output_tokens=5), STOP], (1500, 5)),
    "the same prompt in other parts": (
        [
            start(**LONG),
            WORD,
            end(input_tokens=100, cache_read_input_tokens=900, output_tokens=5),
            STOP,
        ],
        (1000, 5),
    ),
    "a prompt of 0 at first": (
        [start(input_tokens=0, output_tokens=0), WORD, end(input_tokens=9, output_tokens=5), STOP],
        (9, 5),
    ),
    "an output that begins high": (
        [start(input_tokens=9, output_tokens=8), WORD, end(output_tokens=2), STOP],
        (9, 2),
    ),
    "figures that grow": (
        [start(**LONG), WORD, end(output_tokens=2), end(output_tokens=500), STOP],
        (1000, 500),
    ),
}


def settlement(reader: str, events: list[dict[str, Any]]) -> Settlement:
    """Return the settlement of a stream, passed on or translated."""
    stream: Any = MessagesReader() if reader == "translated" else message_stream(model="m")
    for event in events:
        data = json.dumps(event)
        stream.feed(f"event: {event['type']}\ndata: {data}\n\n".encode())
    seen = stream.observed
    held_nusd = 10**9  # above every cost here
    return settled(seen.final, running=seen.running, least_output_tokens=1, held_nusd=held_nusd)


def tokens(made: Settlement) -> tuple[int | None, int | None]:
    """Return both sides of a settled usage."""
    return made.usage.input_tokens, made.usage.output_tokens


@pytest.mark.parametrize("reader", ["passed on", "translated"])
@pytest.mark.parametrize("name", FALLS)
def test_a_figure_that_falls_is_charged_at_its_highest(name: str, reader: str) -> None:
    events, expected = FALLS[name]
    made = settlement(reader, events)
    assert tokens(made) == expected
    assert made.is_suspect


@pytest.mark.parametrize("reader", ["passed on", "translated"])
@pytest.mark.parametrize("name", STAYS)
def test_figures_that_do_not_fall_are_the_provider_s(name: str, reader: str) -> None:
    events, expected = STAYS[name]
    made = settlement(reader, events)
    assert tokens(made) == expected
    assert made.source is UsageSource.PROVIDER
    assert not made.is_suspect
