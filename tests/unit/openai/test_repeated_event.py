"""Repeating events: they are only compared with the one before, with an identical result."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.pricing.tokens import TokenUsage
from gateway.wire.openai.answer.repeated_event import MAX_TRIES, RepeatedEvent
from tests.answers import PricedStream, chat_stream

texts = st.sampled_from(
    ["", " a", "é", 'a"b', "a\\b", "\n", '{"delta"', '"delta":{}', "]}"]
) | st.text(max_size=4)
deltas = st.one_of(
    texts.map(lambda text: {"content": text}),
    texts.map(lambda text: {"reasoning_content": text}),
    texts.map(lambda text: {"role": "assistant", "content": text}),
    st.sampled_from(
        [
            {},
            {"role": "assistant"},
            {"content": None},
            {"content": "a", "refusal": "b"},
            {"content": 1},
            None,
            "text",
            {"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
        ]
    ),
)
usages: st.SearchStrategy[Any] = st.sampled_from(
    [
        None,
        {},
        "none",
        {"prompt_tokens": 1, "completion_tokens": 2},
        {"prompt_tokens": 1, "completion_tokens": 30},
        {"prompt_tokens": 10, "total_tokens": 13, "completion_tokens": 3},
        {"prompt_tokens": -1},
        {"prompt_tokens": 1.5},
        {"prompt_tokens": 1, "prompt_tokens_details": None},
        {"prompt_tokens": {"completion_tokens": 2}},
    ]
)
oddities: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {},
        {"x_groq": {"usage": {"prompt_tokens": 5}}},
        {"error": {"message": "x"}},
        {"error": None},
        {"id": "c-2"},
        {"service_tier": "flex"},
        {"model": "m-2"},
        {"model": 'm"delta"'},
        {"choices": []},
        {"usage": None},
        {"delta": {"content": "not here"}},
    ]
)
LAST = [b"data: [DONE]\n\n"]


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """Events of one form with other texts, and among them events of any form."""
    separators, ascii_only = draw(st.sampled_from([(",", ":"), (", ", ": ")])), draw(st.booleans())
    has_usage, is_completion = draw(st.booleans()), draw(st.booleans())
    finish_reason = draw(st.sampled_from([None, None, "stop"]))
    found = []
    for _ in range(draw(st.integers(1, 12))):
        is_usual = draw(st.integers(0, 4)) > 0
        delta = (
            {"content": draw(st.sampled_from(["a", " b", "ça", ""]))} if is_usual else draw(deltas)
        )
        choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        if is_completion:
            choice["text"] = choice.pop("delta")
        if not is_usual:
            choice |= draw(
                st.sampled_from(
                    [{"finish_reason": "stop"}, {"index": 1}, {"index": "x"}, {"text": "t"}]
                )
            )
        members: dict[str, Any] = {"id": "c-1", "model": "m-1", "choices": [choice]}
        if has_usage:
            members["usage"] = draw(usages)
        if not is_usual:
            members |= draw(oddities)
        payload = json.dumps(members, separators=separators, ensure_ascii=ascii_only).encode(
            "utf-8", "surrogatepass"
        )
        form = (
            b"data: %b\n\n"
            if is_usual
            else draw(st.sampled_from([b"data:%b\r\n\r\n", b"event: x\ndata: %b\n\n"]))
        )
        found.append(form % payload)
    return found + draw(
        st.sampled_from([[], LAST, [b": ping\n\n", *found[-1:]], [*LAST, *found[-1:]]])
    )


def stream(
    *, wants: tuple[bool, bool] = (False, False), asked: bool = True, collects_text: bool = False
) -> PricedStream:
    return chat_stream(
        model="assistant",
        cost=lambda usage: f"0.{usage.output_tokens or 0:03d}",
        wants_usage=wants[0],
        wants_running_usage=wants[1],
        asked_running_usage=asked,
        collects_text=collects_text,
    )


def without_comparing(**changes: Any) -> PricedStream:
    """The same stream, decoding every event."""
    made = stream(**changes)
    made.stream._repeated = RepeatedEvent(tries=0)
    return made


@given(streams(), st.tuples(st.booleans(), st.booleans()), st.booleans(), st.booleans())
def test_a_compared_event_equals_a_decoded_event(
    events: list[bytes], wants: tuple[bool, bool], asked: bool, collects_text: bool
) -> None:
    """The short way costs less and differs in nothing else: not for the caller, not for the
    meter.
    """
    short = stream(wants=wants, asked=asked, collects_text=collects_text)
    general = without_comparing(wants=wants, asked=asked, collects_text=collects_text)
    for event in events:
        assert short.feed(event) == general.feed(event)
        assert short.observed == general.observed
        assert short.observed.running == general.observed.running


def word(text: str, output_tokens: int | None = None, **members: Any) -> bytes:
    """An event as vLLM writes it."""
    usage = (
        {"usage": {"prompt_tokens": 10, "completion_tokens": output_tokens}}
        if output_tokens is not None
        else {}
    )
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    chunk = {"id": "c-1", "model": "m-1", "choices": [choice], **usage, **members}
    return (
        b"data: " + json.dumps(chunk, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"
    )


def test_the_next_event_is_compared_and_metered() -> None:
    """Text and running usage are new, and both are recorded; the caller gets its own name and no
    usage.
    """
    fed = stream(collects_text=True)
    fed.feed(word("a", 1))
    assert fed._repeated.match(word("é", 2)) is not None
    assert fed.feed(word("é", 2)) == word("é", model="assistant")
    assert (fed.observed.texts, fed.observed.running) == (
        ("aé",),
        TokenUsage(input_tokens=10, output_tokens=2),
    )


@pytest.mark.parametrize(
    "other",
    [
        word('a"b', 2),
        word("a\\b", 2),
        word("a\nb", 2),
        word("a", 2, id="c-2"),
        word("a"),
        word("a", 2, error="x"),
        word("a", 2).replace(b":2}", b":02}"),
        word("a", 2).replace(b":2}", b":2.0}"),
        word("a", 2) + b"\n",
        word("\x80", 2).replace(b"\xc2", b""),
        word("a", 2).replace(b"data: ", b"data:"),
        word("a", 2).replace(b"null", b'"stop"'),
        word("a", 2).replace(b'"delta"', b'"d"'),
    ],
)
def test_a_differing_event_is_decoded(other: bytes) -> None:
    """Each of these says something that only decoding tells, or cannot be decoded at all."""
    fed = stream()
    fed.feed(word("a", 1))
    assert fed._repeated.match(word("b", 1)) is not None
    assert fed._repeated.match(other) is None


def test_another_event_between_is_compared_with_from_then_on() -> None:
    """An event may only be compared with the one right before it, whose parts may differ."""
    fed = stream()
    fed.feed(word("a", 1))
    fed.feed(word("a", 1, id="c-2", model="assistant"))
    assert fed._repeated.match(word("b", 2)) is None
    fed.feed(word("b", 2))
    assert fed.observed.upstream_id == "c-1"


def test_a_stream_that_never_repeats_is_soon_left_alone() -> None:
    """To learn an event costs as much as to decode it: not for every event of a stream of many
    choices.
    """
    fed = stream()
    for number in range(MAX_TRIES + 1):
        fed.feed(word("a", 1, id=f"c-{number}"))
    assert fed._repeated.match(word("a", 1, id=f"c-{MAX_TRIES}")) is None
