"""Each figure of Anthropic's usage becomes one of the normal form, and what is missing stays
unknown.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.pricing.pricing import lines
from gateway.domain.pricing.tokens import UNREADABLE, UNREADABLE_USAGE, TokenUsage
from gateway.domain.request.served_tier import UNKNOWN_TIER
from gateway.wire.anthropic.usage import (
    StreamFigures,
    highest,
    note_words,
    usage_from_wire,
    usage_members,
)
from gateway.wire.observed import Observed
from tests.factories import price

# The shape of anthropic 2.13.0, types/usage.py (2026-11-24).
WHOLE = {
    "cache_creation": {"ephemeral_1h_input_tokens": 300, "ephemeral_5m_input_tokens": 200},
    "cache_creation_input_tokens": 600,  # a stream writes more than its start tells
    "cache_read_input_tokens": 1000,
    "inference_geo": "us",
    "input_tokens": 10,
    "output_tokens": 50,
    "output_tokens_details": {"thinking_tokens": 30},
    "server_tool_use": {"web_fetch_requests": 1, "web_search_requests": 2},
    "service_tier": "priority",
    "speed": "fast",
}
NORMAL = TokenUsage(
    input_tokens=1610,
    cached_input_tokens=1000,
    cache_write_tokens=600,
    cache_write_1h_tokens=300,
    unknown_cache_write_tokens=100,
    output_tokens=50,
    reasoning_tokens=30,
    web_search_calls=2,
)


def read(usage: object) -> TokenUsage | None:
    return usage_from_wire(msgspec.json.encode(usage))


def test_the_prompt_is_the_sum_of_its_three_parts() -> None:
    """Anthropic leaves cached tokens out of `input_tokens`: 1,600 of 1,610 would be lost."""
    assert read(WHOLE) == NORMAL


@pytest.mark.parametrize("name", [name for name in WHOLE if name.endswith(("tokens", "_use"))])
def test_a_missing_member_changes_the_usage(name: str) -> None:
    """Each member reaches the ledger: without it the figures differ."""
    assert read({member: value for member, value in WHOLE.items() if member != name}) != NORMAL


def test_missing_figures_are_unknown() -> None:
    """vLLM leaves the cache's figures out unless it is started with their flag."""
    assert read({"input_tokens": 7, "output_tokens": 3}) == TokenUsage(
        input_tokens=7, output_tokens=3
    )


def test_writes_without_a_total_are_the_sum_of_their_lifetimes() -> None:
    """A total that is left out is not 0."""
    usage = read({"input_tokens": 1, "cache_creation": WHOLE["cache_creation"]})
    assert usage is not None
    assert (usage.cache_write_tokens, usage.input_tokens) == (500, 501)


def test_a_compaction_is_added() -> None:
    """Its tokens are charged and stand in no top-level figure; those of a `message` do."""
    iteration = {
        "type": "compaction",
        "input_tokens": 100,
        "cache_read_input_tokens": 20,
        "cache_creation_input_tokens": 3,
        "output_tokens": 40,
    }
    usage = read(
        {
            **{name: count for name, count in iteration.items() if name != "type"},
            "iterations": [iteration, {**iteration, "type": "message"}],
        }
    )
    assert usage == TokenUsage(
        input_tokens=246, cached_input_tokens=40, cache_write_tokens=6, output_tokens=80
    )


@pytest.mark.parametrize(
    "usage",
    [
        {**WHOLE, "input_tokens": "10"},
        {**WHOLE, "input_tokens": 10.0},
        {**WHOLE, "new_member": {"deep": [1]}},
        {**WHOLE, "service_tier": 7},
        {**WHOLE, "speed": "\ud83d"},
    ],
)
def test_an_odd_member_does_not_hide_the_others(usage: dict[str, Any]) -> None:
    """A usage that cannot be decoded as a whole is read member by member."""
    text = msgspec.json.encode({**usage, "speed": "fast"})
    if usage.get("speed") != "fast":
        text = text.replace(b'"fast"', rb'"\ud83d"')
    assert usage_from_wire(text) == NORMAL


@pytest.mark.parametrize("kind", ["advisor_message", "fallback_message"])
@pytest.mark.parametrize("tokens", [10, "10"])
def test_another_models_sampling_makes_the_cost_unknown(kind: str, tokens: object) -> None:
    """It costs that model's rates: neither left out, nor charged at the rates of this one."""
    other = {"type": kind, "input_tokens": 800, "output_tokens": 600, "model": "claude-opus-5"}
    own = {"type": "message", "input_tokens": 10, "output_tokens": 5}
    usage = read({"input_tokens": tokens, "output_tokens": 5, "iterations": [own, other, other]})
    assert usage == TokenUsage(input_tokens=10, output_tokens=5, other_model_calls=2)
    with pytest.raises(ValueError, match="no price for other_model calls"):
        lines(usage, price())


def test_odd_iterations_do_not_hide_a_compaction() -> None:
    """The same holds inside the list of samplings."""
    usage = read(
        {
            "input_tokens": "10",
            "output_tokens": 5,
            "iterations": [7, {"type": "compaction", "input_tokens": 1, "output_tokens": 2.0}],
        }
    )
    assert usage == TokenUsage(input_tokens=11, output_tokens=7)


@pytest.mark.parametrize("raw", [b"null", b"{}", b"0", b'"x"', b"{", b"[" * 10_000, b"\xff"])
def test_no_bytes_raise(raw: bytes) -> None:
    """Settling depends on it."""
    assert usage_from_wire(raw) is None


@pytest.mark.parametrize("raw", [b"7", b'"7"', b"[7]", b"[{},{}, 7]"])
def test_a_figure_without_a_name_is_of_an_unknown_kind(raw: bytes) -> None:
    """A bare figure states something."""
    assert usage_from_wire(raw) == TokenUsage(unknown_units=1)


def test_a_huge_usage_is_not_read() -> None:
    """The longest real one has a kilobyte."""
    usage = {**WHOLE, "note": "x" * 70_000}
    assert read(usage) == UNREADABLE_USAGE
    assert words({**usage, "speed": "fast"}) == (None, None, {})
    assert usage_members(msgspec.json.encode(usage)) == {}


@given(st.binary(max_size=200))
def test_reading_never_raises(raw: bytes) -> None:
    """Whatever an upstream sends."""
    usage_from_wire(raw)
    usage_members(raw)
    note_words(Observed(), raw)


counts = st.integers(min_value=0, max_value=10**9)


@given(counts, counts, counts, counts, st.data())
def test_the_parts_never_exceed_their_whole(
    fresh: int, read_tokens: int, write_1h: int, output: int, data: st.DataObject
) -> None:
    """For every usage that Anthropic can mean, the normal form is plausible."""
    thinking = data.draw(st.integers(min_value=0, max_value=output))
    usage = read(
        {
            "input_tokens": fresh,
            "cache_read_input_tokens": read_tokens,
            "cache_creation_input_tokens": write_1h + 5,
            "cache_creation": {"ephemeral_1h_input_tokens": write_1h},
            "output_tokens": output,
            "output_tokens_details": {"thinking_tokens": thinking},
        }
    )
    assert usage is not None
    assert usage.is_plausible
    assert usage.input_tokens == fresh + read_tokens + write_1h + 5


def joined(first: object, last: object) -> TokenUsage | None:
    """Return the usage of a stream with these two figures."""
    figures = StreamFigures(Observed())
    figures.begin(msgspec.Raw(msgspec.json.encode(first)))
    return figures.finish(msgspec.Raw(msgspec.json.encode(last)))


def test_a_stream_joins_its_two_usages() -> None:
    """The last figure counts; the lifetimes of writes stand in the first one alone."""
    last = {
        "output_tokens": 50,
        "output_tokens_details": {"thinking_tokens": 30},
        "input_tokens": 0,
        "cache_read_input_tokens": None,
    }
    assert joined({**WHOLE, "output_tokens": 1}, last) == NORMAL


def test_the_start_of_a_stream_has_no_output_after_content() -> None:
    """A cut stream keeps the prompt that `message_start` reported."""
    observed = Observed()
    figures = StreamFigures(observed)
    figures.begin(msgspec.Raw(msgspec.json.encode(WHOLE)))
    figures.note_content()
    prompt = observed.usage
    assert prompt is not None
    assert (prompt.input_tokens, prompt.output_tokens, prompt.reasoning_tokens) == (
        1610,
        None,
        None,
    )
    assert StreamFigures(observed).begin(msgspec.Raw(b"null")) is None


def test_a_last_figure_that_says_nothing_is_none() -> None:
    assert joined(WHOLE, {}) is None
    assert joined(WHOLE, None) is None


def words(usage: object) -> tuple[str | None, str | None, dict[str, object]]:
    """The tier, the place and the detail that a usage leaves."""
    observed = Observed()
    note_words(observed, msgspec.json.encode(usage))
    return observed.service_tier, observed.stated_geo, observed.usage_detail


def test_words_of_a_usage() -> None:
    """Fast mode is a tier of the price; the place is checked against the promise; the ledger keeps
    both as they came.
    """
    fast = {**WHOLE, "service_tier": "standard"}
    assert words(fast) == ("fast", "us", {"speed": "fast", "inference_geo": "us"})
    assert words(WHOLE)[0] == UNKNOWN_TIER, "fast mode has no priority tier"
    tier, geo, detail = words({**WHOLE, "speed": "standard"})
    assert (tier, geo) == ("priority", "us")
    assert detail == {"speed": "standard", "inference_geo": "us"}
    assert words({"service_tier": "batch"}) == ("batch", None, {})


@pytest.mark.parametrize("odd", ["", None, [], {}])
def test_an_empty_value_is_no_word(odd: object) -> None:
    """Some servers write an empty value in the place of an absent one."""
    assert words({"speed": odd, "inference_geo": odd, "service_tier": odd}) == (None, None, {})


@pytest.mark.parametrize("odd", [7, ["fast"], {"type": "fast"}, "x" * 65])
def test_a_value_that_is_no_word_may_stand_for_any(odd: object) -> None:
    """A ledger row has room for short words alone."""
    for name in ("speed", "service_tier"):
        assert words({name: odd}) == (UNKNOWN_TIER, None, {})
    assert words({"inference_geo": odd}) == (None, UNKNOWN_TIER, {})


def test_words_that_came_first_stay() -> None:
    """`message_delta` of the stable API repeats none of `message_start`'s."""
    observed = Observed()
    note_words(observed, b'{"speed":"fast","inference_geo":"us","service_tier":"standard"}')
    note_words(observed, b'{"output_tokens":15}')
    assert (observed.service_tier, observed.stated_geo) == ("fast", "us")
    assert observed.usage_detail == {"speed": "fast", "inference_geo": "us"}


def encoded(**members: int) -> dict[str, msgspec.Raw]:
    """Return the members of a usage, each encoded."""
    return {name: msgspec.Raw(str(count).encode()) for name, count in members.items()}


def test_a_side_that_falls_keeps_its_highest_figures() -> None:
    """All figures of a stream are cumulative, and each side is judged by itself."""
    before = encoded(input_tokens=100, cache_read_input_tokens=5, output_tokens=50)
    now = encoded(input_tokens=7, output_tokens=60)
    assert highest(before, now) == encoded(
        input_tokens=100, cache_read_input_tokens=5, output_tokens=60
    )
    assert highest(before, encoded(input_tokens=200, output_tokens=1)) == encoded(
        input_tokens=200, output_tokens=50
    )
    assert highest(before, {}) == before
    assert highest({}, now) == now
    assert highest(encoded(output_tokens=-1), now) == now


def test_a_negative_lifetime_does_not_hide_in_a_sum() -> None:
    """A usage that cannot be true must stay so, and is not charged as it is."""
    writes = {"ephemeral_5m_input_tokens": 50, "ephemeral_1h_input_tokens": -20}
    usage = read({"input_tokens": 10, "cache_creation": writes, "output_tokens": 1})
    assert usage is not None
    assert (usage.cache_write_tokens, usage.is_plausible) == (-20, False)


@pytest.mark.parametrize(
    ("name", "units"), [("cache_creation", None), ("server_tool_use", 7), ("iterations", None)]
)
def test_a_group_of_another_type_marks_the_usage(name: str, units: int | None) -> None:
    """The figures beside it are still read, member by member."""
    assert read({"input_tokens": "10", "output_tokens": 5, name: 7}) == TokenUsage(
        input_tokens=10, output_tokens=5, unexplained_tokens=UNREADABLE, unknown_units=units
    )
