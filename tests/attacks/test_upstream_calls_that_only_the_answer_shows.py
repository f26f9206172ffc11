"""Calls of the provider's own tools that stand in an answer and not in its usage, and units that
are no tokens: they were booked at nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from gateway.domain.pricing.pricing import Price, Rate
from gateway.domain.pricing.settlement import Counted, Settlement
from gateway.domain.pricing.tokens import TokenKind, TokenUsage, UsageSource
from gateway.wire.anthropic.answer.messages import rewrite_message
from gateway.wire.anthropic.translation.upstream_reader import messages_events
from gateway.wire.observed import Observed
from gateway.wire.openai.answer.chat import rewrite_chat
from gateway.wire.openai.answer.responses import rewrite_response
from gateway.wire.openai.usage import usage_from_wire
from tests.attacks.streamed import HELD_NUSD, Event, last, read, settlement_of, text

PRICE = Price(
    provider="p",
    model="m",
    source="policy",
    rates=tuple(Rate(kind=kind, usd_per_mtok=Decimal(10)) for kind in TokenKind),
)
COUNTED = Counted(usage=TokenUsage(input_tokens=9, output_tokens=9), is_exact=False)


def settled(seen: Observed, **known: Any) -> Settlement:
    """Return the settlement of an answer with its calls."""
    return settlement_of(seen, calls=seen.calls, price=PRICE, **known)


def item(kind: str = "web_search_call", **members: Any) -> dict[str, Any]:
    """Return an item of a response's output."""
    return {"type": kind, "id": "i", **members}


def done(one: Mapping[str, Any]) -> Event:
    """Return the event of a finished item."""
    return {"type": "response.output_item.done", "output_index": 0, "item": one}


def response(*output: Mapping[str, Any], **usage: Any) -> Event:
    """Return the last event of a response."""
    (end,) = last("responses", 9, 9, **usage)
    assert not isinstance(end, bytes)
    return {**end, "response": {**end["response"], "output": output}}


SURE, FAILED = item(status="completed"), item(status="failed")
OPENED = item(status="completed", action={"type": "open_page"})
XAI = {"server_side_tool_usage_details": {"web_search_calls": 1}}
# The events, the searches that are charged, and whether two figures contradict each other.
RESPONSES: dict[str, tuple[list[Event], int | None, bool]] = {
    "in both": ([done(SURE), done(SURE), response(SURE, SURE)], 2, False),
    "in the last event alone": ([response(SURE, SURE)], 2, False),
    "in earlier events alone": ([done(SURE), done(SURE), response()], 2, False),
    "more in earlier events": ([done(SURE), done(SURE), response(SURE)], 2, True),
    "without a status": ([done(item()), done(item()), response()], 2, False),
    "failed": ([done(FAILED), response(FAILED)], None, False),
    "a page that is opened": ([done(OPENED), response(OPENED)], None, False),
    "fewer in the usage": ([done(SURE), done(SURE), response(SURE, SURE, **XAI)], 2, True),
    "failed ones beside the usage": ([done(FAILED), done(SURE), response(**XAI)], 1, False),
    "more in the usage": ([response(**XAI)], 1, False),
}


@pytest.mark.parametrize("name", RESPONSES)
def test_calls_of_a_response_are_the_most_that_is_shown(name: str) -> None:
    events, calls, is_suspect = RESPONSES[name]
    made = settled(read("responses", [text("responses"), *events]))
    assert (made.usage.web_search_calls, made.is_suspect) == (calls, is_suspect)
    assert made.source is UsageSource.PROVIDER


@pytest.mark.parametrize("kind", ["web_search", "file_search", "code_interpreter"])
def test_calls_of_a_response_without_an_end_are_charged(kind: str) -> None:
    """The text was estimated, and the calls cost nothing."""
    seen = read("responses", [text("responses"), done(item(f"{kind}_call"))])
    made = settled(seen, counted=COUNTED)
    assert getattr(made.usage, f"{kind}_calls") == 1
    assert made.source is UsageSource.ESTIMATED


def test_a_whole_response_is_read_as_its_events() -> None:
    for output, calls, is_suspect in ([[SURE, SURE], 2, True], [[item(), item()], 1, False]):
        seen = Observed(is_whole=True)
        usage = {"input_tokens": 9, "output_tokens": 9, **XAI}
        body = {"id": "r", "status": "completed", "output": output, "usage": usage}
        rewrite_response(json.dumps(body).encode(), seen, model="m")
        made = settled(seen)
        assert (made.usage.web_search_calls, made.is_suspect) == (calls, is_suspect)


USE = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"url": "u"}]}
ERROR = {
    **FOUND,
    "content": {"type": "web_search_tool_result_error", "error_code": "unavailable"},
}
WORD = {"type": "text", "text": "a"}
# The blocks, the searches in the usage, those that are charged, and the mark.
BLOCKS: dict[str, tuple[list[dict[str, Any]], int | None, int | None, bool]] = {
    "without a figure": ([USE, FOUND, USE, FOUND], None, 2, False),
    "with its figure": ([USE, FOUND, USE, FOUND], 2, 2, False),
    "a figure that is less": ([USE, FOUND, USE, FOUND], 1, 2, True),
    "a figure of 0": ([USE, FOUND], 0, 1, True),
    "one that failed": ([USE, FOUND, USE, ERROR], 1, 1, False),
    "a figure alone": ([], 2, 2, False),
    "another tool": ([{**USE, "name": "web_fetch"}], None, None, False),
}


@pytest.mark.parametrize("reader", ["messages", "translated"])
@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("name", BLOCKS)
def test_searches_of_messages_are_counted_by_their_blocks(
    name: str, is_stream: bool, reader: str
) -> None:
    blocks, stated, calls, is_suspect = BLOCKS[name]
    usage = {} if stated is None else {"server_tool_use": {"web_search_requests": stated}}
    if is_stream:
        starts = [{"type": "content_block_start", "content_block": one} for one in blocks]
        seen = read(reader, [*starts, text(reader), *last(reader, 9, 9, **usage)])
    else:
        seen = Observed(is_whole=True)
        whole = {"input_tokens": 9, "output_tokens": 9, **usage}
        body = json.dumps({"id": "m", "content": [*blocks, WORD], "usage": whole}).encode()
        if reader == "messages":
            rewrite_message(body, seen, model="m")
        else:
            messages_events(body, seen)
    made = settled(seen)
    assert (made.usage.web_search_calls, made.is_suspect) == (calls, is_suspect)


def test_searches_of_a_cut_stream_of_gemini_are_charged() -> None:
    """They were counted at its end alone."""
    found = {"index": 0, "groundingMetadata": {"webSearchQueries": ["a", "b"]}}
    seen = read("gemini", [text("gemini"), {"candidates": [found]}])
    assert settled(seen, counted=COUNTED).usage.web_search_calls == 2


UNITS: dict[str, dict[str, Any]] = {
    "seconds of sound": {"prompt_audio_seconds": 12},
    "seconds in another notation": {"prompt_audio_seconds": "1.2e1"},
    "no number": {"prompt_audio_seconds": {"value": 12}},
    "a transcription": {"type": "duration", "seconds": 9},
    "searches": {"search_units": 1},
}


@pytest.mark.parametrize("name", UNITS)
@pytest.mark.parametrize("tokens", [{}, {"prompt_tokens": 9, "completion_tokens": 9}])
def test_units_without_a_price_are_held(name: str, tokens: dict[str, int]) -> None:
    """Tokens alone are not the bill."""
    found = usage_from_wire(json.dumps(tokens | UNITS[name]).encode())
    assert found is not None
    made = settlement_of(Observed(final=found), price=PRICE)
    assert (made.cost_nusd, made.held_nusd, made.is_suspect) == (None, HELD_NUSD, True)


@pytest.mark.parametrize("none", [0, None, {}, "0", 0.0])
def test_units_of_nothing_change_nothing(none: Any) -> None:
    """Mistral states them beside every answer."""
    usage = {"prompt_tokens": 9, "completion_tokens": 9, "prompt_audio_seconds": none}
    found = usage_from_wire(json.dumps(usage).encode())
    assert found == TokenUsage(input_tokens=9, output_tokens=9)


@pytest.mark.parametrize(
    ("billed", "tokens"),
    [
        ({"search_units": 1}, None),
        ({"input_tokens": 700, "search_units": 1}, None),
        ({"input_tokens": 700}, 700),
        ({"images": 3}, None),
        ({}, 10),
        ({"search_units": 0}, 10),
    ],
)
def test_billed_units_of_a_rerank_count(billed: dict[str, int], tokens: int | None) -> None:
    """Cohere's `meta.billed_units` is the bill; the tokens beside it are not."""
    body = {
        "results": [{"index": 0, "relevance_score": 0.5}],
        "meta": {"billed_units": billed},
        "usage": {"total_tokens": 10},
    }
    seen = Observed()
    rewrite_chat(msgspec.json.encode(body), seen, model="m")
    made = settlement_of(seen, price=PRICE, writes_output=False)
    assert (made.usage.input_tokens if made.cost_nusd else None) == tokens
    assert made.is_suspect is (tokens is None)
