"""Upstreams that state a part of their usage once, and leave it out of the figure that comes last:
the part was dropped, and searches, sounds and pictures were billed as nothing or as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from gateway.domain.pricing.pricing import Rate
from gateway.domain.pricing.settlement import Settlement
from gateway.domain.pricing.tokens import CALL_KINDS, TokenKind, UsageSource
from tests.attacks.streamed import DIALECTS, Event, last, settlement, text
from tests.factories import price

PRICE = replace(
    price(),
    rates=tuple(
        Rate(kind=kind, usd_per_mtok=Decimal(10_000 if kind in CALL_KINDS else 10 + place))
        for place, kind in enumerate(TokenKind)
    ),
)
# A part of a usage in each dialect's own members, and the count that it states.
OPENAI = {"prompt_tokens_details": {"audio_tokens": 60}}
OF_RESPONSES = {"input_tokens_details": {"audio_tokens": 60}}
OF_MESSAGES = {
    "cache_creation_input_tokens": 60,
    "cache_creation": {"ephemeral_1h_input_tokens": 60},
}
OF_GEMINI = {"promptTokensDetails": [{"modality": "AUDIO", "tokenCount": 60}]}
PARTS: dict[str, list[tuple[dict[str, Any], str, int]]] = {
    "chat": [
        (OPENAI, "audio_input_tokens", 60),
        ({"num_search_queries": 3}, "web_search_calls", 3),
    ],
    "responses": [
        (OF_RESPONSES, "audio_input_tokens", 60),
        ({"server_tool_use": {"web_search_requests": 3}}, "web_search_calls", 3),
    ],
    "messages": [
        (OF_MESSAGES, "cache_write_1h_tokens", 60),
        ({"server_tool_use": {"web_search_requests": 3}}, "web_search_calls", 3),
    ],
    "gemini": [
        (OF_GEMINI, "audio_input_tokens", 60),
        (
            {"candidatesTokensDetails": [{"modality": "IMAGE", "tokenCount": 15}]},
            "image_output_tokens",
            15,
        ),
    ],
}
PARTS["translated"] = PARTS["messages"]
CASES = [(dialect, *case) for dialect, cases in PARTS.items() for case in cases]


def settle(dialect: str, events: Sequence[Event]) -> Settlement:
    return settlement(dialect, events, price=PRICE)


def with_usage(dialect: str, answer: int, **members: Any) -> list[Event]:
    """Return the events of an answer's end up to its usage, without those behind it."""
    ended = last(dialect, 100, answer, **members)
    return ended[:1] if dialect in ("messages", "translated") else ended


@pytest.mark.parametrize(("dialect", "part", "name", "count"), CASES)
def test_a_part_of_the_first_of_two_last_figures_is_charged(
    dialect: str, part: dict[str, Any], name: str, count: int
) -> None:
    first, second = with_usage(dialect, 20, **part), last(dialect, 100, 20)
    found = settle(dialect, [text(dialect), *first, *second])
    if dialect == "gemini":
        found = settle(dialect, [text(dialect), *running_of("gemini", 20, part), *second])
    assert getattr(found.usage, name) == count
    assert (found.source, found.is_suspect) == (UsageSource.PROVIDER, False)


def running_of(dialect: str, answer: int, part: dict[str, Any]) -> list[Event]:
    """Return a piece of the answer with the usage so far."""
    if dialect == "gemini":
        usage = {"promptTokenCount": 100, "candidatesTokenCount": answer, **part}
        piece = {"index": 0, "content": {"parts": [{"text": "a"}]}}
        return [{"candidates": [piece], "usageMetadata": usage}]
    usage = {"prompt_tokens": 100, "completion_tokens": answer, **part}
    choice = {"index": 0, "delta": {"content": "a"}}
    return [{"model": "m", "choices": [choice], "usage": usage}]


@pytest.mark.parametrize(
    ("dialect", "part", "name", "count"), [one for one in CASES if one[0] in ("chat", "gemini")]
)
@pytest.mark.parametrize("ends", [True, False])
def test_a_part_of_any_running_figure_is_charged(
    dialect: str, part: dict[str, Any], name: str, count: int, ends: bool
) -> None:
    """Only the last running figure was kept, and of it only prompt and answer were compared."""
    events = [text(dialect)]
    for answer, stated in ((15, {}), (16, part), (17, {}), (18, {})):
        events += running_of(dialect, answer, stated)
    found = settle(dialect, [*events, *last(dialect, 100, 20)] if ends else events)
    assert getattr(found.usage, name) == count
    assert found.source is (UsageSource.PROVIDER if ends else UsageSource.DERIVED)
    assert not found.is_suspect


@pytest.mark.parametrize("dialect", ["messages", "translated"])
def test_writes_whose_lifetime_changes_are_the_dearer_ones(dialect: str) -> None:
    """`message_start` states writes for an hour, and the end the same ones for five minutes."""
    long, short = (
        {f"ephemeral_{one}_input_tokens": n for one, n in (("1h", hour), ("5m", 60 - hour))}
        for hour in (60, 0)
    )
    usage = {"input_tokens": 40, "cache_creation_input_tokens": 60, "cache_creation": long}
    start = {"type": "message_start", "message": {"id": "m", "usage": usage}}
    end = {"cache_creation_input_tokens": 60, "cache_creation": short}
    found = settle(dialect, [start, text(dialect), *last(dialect, 40, 20, **end)])
    assert (found.usage.input_tokens, found.usage.cache_write_1h_tokens) == (100, 60)
    assert found.is_suspect
    same = settle(dialect, [start, text(dialect), *last(dialect, 40, 20)])
    assert (same.usage.cache_write_1h_tokens, same.is_suspect) == (60, False)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_figure_that_is_repeated_is_not_flagged(dialect: str) -> None:
    first, second = with_usage(dialect, 20), last(dialect, 100, 20)
    found = settle(dialect, [text(dialect), *first, *second])
    assert (found.source, found.is_suspect) == (UsageSource.PROVIDER, False)
    assert found.reported is None
