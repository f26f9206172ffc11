"""An answer that ended at its maximum and states no usage: thinking that is not shown was booked as
the few tokens of its text.
"""

from __future__ import annotations

from typing import Any

import pytest

from gateway.domain.pricing.settlement import Counted
from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from gateway.wire.observed import Observed
from tests.attacks.streamed import (
    DIALECTS,
    HELD_NUSD,
    Event,
    last,
    read,
    settlement,
    settlement_of,
    text,
)

MOST = 1000
COUNTED = Counted(usage=TokenUsage(input_tokens=12, output_tokens=1), is_exact=False)
START: Event = {
    "type": "message_start",
    "message": {"id": "m", "model": "m", "usage": {"input_tokens": 12, "output_tokens": 1}},
}


def end(dialect: str, *, is_cut: bool) -> list[Event]:
    """Return the events that end an answer without a usage."""
    if dialect == "chat":
        word = "length" if is_cut else "stop"
        return [{"model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": word}]}]
    if dialect == "responses":
        kind = "incomplete" if is_cut else "completed"
        response = {"id": "r", "model": "m", "status": kind, "output": []}
        return [{"type": f"response.{kind}", "response": response}]
    if dialect == "bedrock":
        return [{"messageStop": {"stopReason": "max_tokens" if is_cut else "end_turn"}}]
    if dialect == "gemini":
        word = "MAX_TOKENS" if is_cut else "STOP"
        return [{"candidates": [{"index": 0, "content": {"parts": []}, "finishReason": word}]}]
    if dialect == "ollama":
        return [{"model": "m", "done": True, "done_reason": "length" if is_cut else "stop"}]
    word = "max_tokens" if is_cut else "end_turn"
    return [
        {"type": "message_delta", "delta": {"stop_reason": word}},
        {"type": "message_stop"},
    ]


@pytest.mark.parametrize(
    ("dialect", "has_start"),
    [*((one, False) for one in DIALECTS), ("messages", True), ("translated", True)],
)
def test_a_cut_answer_has_as_many_tokens_as_it_may(dialect: str, has_start: bool) -> None:
    """Its text shows a few of them."""
    events = [*([START] if has_start else []), text(dialect), *end(dialect, is_cut=True)]
    known: dict[str, Any] = {"counted": COUNTED, "held_nusd": HELD_NUSD}
    sent = settlement(dialect, events, sent_output_tokens=MOST, **known)
    assert (sent.source, sent.usage.output_tokens) == (UsageSource.ESTIMATED, MOST)
    asked = settlement(dialect, events, asked_output_tokens=MOST, **known)
    assert (asked.source, asked.usage.output_tokens) == (UsageSource.ESTIMATED, MOST)
    nothing = settlement(dialect, events, **known)
    assert (nothing.source, nothing.cost_nusd) == (UsageSource.UNKNOWN, None)
    assert nothing.held_nusd == HELD_NUSD


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_answer_that_ended_by_itself_counts_its_text(dialect: str) -> None:
    """Its maximum says nothing about it."""
    events = [text(dialect), *end(dialect, is_cut=False)]
    found = settlement(dialect, events, counted=COUNTED, sent_output_tokens=MOST)
    assert (found.source, found.usage) == (UsageSource.ESTIMATED, COUNTED.usage)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_usage_of_a_cut_answer_is_charged_as_it_is(dialect: str) -> None:
    """A context window may end an answer below its maximum."""
    seen = read(dialect, [text(dialect), *last(dialect, 12, 7)])
    found = settlement_of(seen, is_cut=True, counted=COUNTED, sent_output_tokens=MOST)
    assert (found.source, found.usage) == (UsageSource.PROVIDER, seen.final)


def test_one_cut_choice_of_several_counts() -> None:
    """The reasons of the others do not hide it."""
    observed = Observed()
    for reason in ("length", "stop", None):
        observed.note_finish(reason)
    assert (observed.finish_reason, observed.is_cut) == ("length", True)
    assert not Observed().is_cut


def test_a_count_of_ours_that_reaches_the_maximum_is_not_raised() -> None:
    """It is whole."""
    long = Counted(usage=TokenUsage(input_tokens=12, output_tokens=MOST), is_exact=True)
    events = [text("chat"), *end("chat", is_cut=True)]
    found = settlement("chat", events, counted=long, sent_output_tokens=MOST)
    assert (found.usage.output_tokens, found.is_suspect) == (MOST, False)
