"""Upstreams of OpenAI's dialect that report a count under another name or one level higher: cached
prompts were charged at the full rate.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.pricing.repeated_usage import DISCOUNTED
from gateway.domain.pricing.tokens import TokenUsage
from gateway.wire.anthropic.translation.caller_usage import messages_usage
from gateway.wire.observed import Observed
from gateway.wire.openai.usage import usage_from_wire, usage_on_the_way
from gateway.wire.openai.usage_names import HARMLESS_PATHS, MOST_SHAPE_BYTES, PLACES, CountPlace
from gateway.wire.translation.answer_events import Used
from tests import factories
from tests.answers import chat_stream, rewrite_chat
from tests.attacks.odd_answers import encoded

NAMES = Path(__file__).parents[2] / "docs" / "lab" / "names_of_counts.tsv"
KEPT = frozenset(TokenUsage.__struct_fields__)
WHOLES = {"input_tokens": 1000, "output_tokens": 1000}
KIMI = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100, "cached_tokens": 900}
KIMI_READ = TokenUsage(input_tokens=1000, cached_input_tokens=900, output_tokens=100)


def cost(usage: TokenUsage) -> str | None:
    """Any price."""
    return "0.1"


def at(place: CountPlace, count: int) -> dict[str, Any]:
    """Return a usage with a count at one place."""
    held: Any = count
    for name in reversed(place.path):
        held = {name: held}
    found: dict[str, Any] = held
    return found


def together(*usages: dict[str, Any]) -> dict[str, Any]:
    """Return one usage with the members of all."""
    joined: dict[str, Any] = {}
    for usage in usages:
        for name, value in usage.items():
            is_object = isinstance(value, dict) and isinstance(joined.get(name), dict)
            joined[name] = together(joined[name], value) if is_object else value
    return joined


@pytest.mark.parametrize("filler", [0, MOST_SHAPE_BYTES], ids=["short", "long"])
@pytest.mark.parametrize("place", PLACES, ids=lambda place: ".".join(place.path))
def test_a_count_is_read_at_each_place(place: CountPlace, filler: int) -> None:
    """Beside nothing else, and the same for a usage whose shape is not remembered."""
    usage = usage_from_wire(encoded(at(place, 7) | {"x": "x" * filler}))
    if place.name in KEPT:
        assert usage is not None
        assert getattr(usage, place.name) == 7
    elif place.name == "cache_write_5m_tokens":
        assert usage == TokenUsage(cache_write_tokens=7, cache_write_1h_tokens=0)


@pytest.mark.parametrize("name", sorted({place.name for place in PLACES}))
def test_the_dearer_of_two_places_counts(name: str) -> None:
    """Fewer cached tokens and more of all others; places that disagree mark the usage."""
    places = [place for place in PLACES if place.name == name]
    usage = together(*(at(place, 10 + number) for number, place in enumerate(places)))
    read = usage_from_wire(encoded(usage))
    dearer = 10 if name in DISCOUNTED else 9 + len(places)
    assert read is None or getattr(read, name, dearer) == dearer
    assert len(places) == 1 or (read is not None and not read.is_plausible)


def test_the_list_of_names_has_each_one_with_its_source() -> None:
    """A name that is dropped from the table is missed by the list."""
    listed = {line.split("\t")[0] for line in NAMES.read_text().splitlines()[1:]}
    harmless = {path[-1] for path in HARMLESS_PATHS}
    assert listed == harmless | {place.path[-1] for place in PLACES}


def test_cached_tokens_beside_the_prompt_are_read_plain() -> None:
    observed = Observed()
    message = {"message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
    rewrite_chat(encoded({"choices": [message], "usage": KIMI}), observed, model="a", cost=cost)
    assert observed.final == KIMI_READ


@pytest.mark.parametrize("is_in_choice", [True, False], ids=["in the choice", "at the top"])
def test_cached_tokens_beside_the_prompt_are_read_in_streams(is_in_choice: bool) -> None:
    """Moonshot puts the usage into the last choice of a stream."""
    stream = chat_stream(
        model="a",
        cost=cost,
        wants_usage=True,
        wants_running_usage=False,
        asked_running_usage=False,
        collects_text=True,
    )
    last: dict[str, Any] = {"index": 0, "delta": {}, "finish_reason": "stop"}
    events: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": {"content": "ok"}}]}]
    if is_in_choice:
        events.append({"choices": [last | {"usage": KIMI}]})
    else:
        events.append({"choices": [last], "usage": KIMI})
    for event in events:
        stream.feed(b"data: " + encoded(event) + b"\n\n")
    stream.feed(b"data: [DONE]\n\n")
    assert stream.observed.final == KIMI_READ


def test_a_caller_of_messages_sees_the_cached_tokens() -> None:
    """Beside the fresh ones, as its dialect counts them."""
    usage = messages_usage(Used(usage=KIMI_READ), factories.facts(), text_bytes=0)
    assert {name: count for name, count in usage.items() if count is not None} == {
        "input_tokens": 100,
        "cache_read_input_tokens": 900,
        "output_tokens": 100,
    }


def test_a_usage_in_the_choices_of_a_plain_answer_is_read() -> None:
    """The answers of two choices share their prompt."""
    observed = Observed()
    choices = [
        {"index": number, "message": {"content": "ok"}, "usage": KIMI} for number in range(2)
    ]
    rewrite_chat(encoded({"choices": choices}), observed, model="a", cost=cost)
    assert observed.final == TokenUsage(
        input_tokens=1000, cached_input_tokens=900, output_tokens=200
    )


def test_a_usage_of_some_choices_is_none_of_the_answer() -> None:
    """The text is counted then."""
    observed = Observed()
    choices = [{"message": {"content": "ok"}, "usage": KIMI}, {"message": {"content": "no"}}]
    rewrite_chat(encoded({"choices": choices}), observed, model="a", cost=cost)
    assert (observed.final, observed.texts) == (None, ("okno",))


def test_a_null_detail_hides_no_count_at_the_top() -> None:
    """The places of a usage's shape are read at once, and one of them has no object."""
    usage = KIMI | {"prompt_tokens_details": None, "completion_tokens_details": {}}
    assert usage_from_wire(encoded(usage)) == KIMI_READ


def test_names_that_differ_in_digits_alone_are_told_apart() -> None:
    """Usages of one shape share the places that are looked at."""
    assert usage_from_wire(b'{"prompt_tokens1":5,"completion_tokens":1}') == TokenUsage(
        output_tokens=1, unknown_units=5
    )
    assert usage_from_wire(b'{"prompt_tokens":5,"completion_tokens":1}') == TokenUsage(
        input_tokens=5, output_tokens=1
    )


COUNT = st.integers(-5, 10**12) | st.none()


@given(
    *(st.integers(-5, 10**12) for _ in range(2)),
    st.fixed_dictionaries({}, optional={"cached_tokens": COUNT, "audio_tokens": COUNT}) | st.none(),
    st.fixed_dictionaries({}, optional={"reasoning_tokens": COUNT, "audio_tokens": COUNT})
    | st.none(),
    st.integers(-5, 5),
)
def test_openai_s_own_usage_is_read_as_the_table_says(
    prompt: int, answer: int, read: Any, written: Any, more: int
) -> None:
    """It has a shorter way, as nearly all usages have its form; one member more takes the other."""
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer + more,
        "prompt_tokens_details": read,
        "completion_tokens_details": written,
    }
    assert usage_from_wire(encoded(usage)) == usage_from_wire(encoded(usage | {"x": 1}))


def test_an_escaped_name_is_read() -> None:
    """JSON may spell a name with escapes."""
    read = usage_on_the_way(msgspec.Raw(b'{"prompt_tokens":9,"c\\u0061ched_tokens":5}'))
    assert read == TokenUsage(input_tokens=9, cached_input_tokens=5)


def test_a_count_as_a_text_is_read_at_the_top_too() -> None:
    usage = json.dumps(KIMI | {"cached_tokens": "900"}).encode()
    assert usage_from_wire(usage) == KIMI_READ
