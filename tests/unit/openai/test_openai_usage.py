"""Usage in every spelling of the OpenAI dialect: missing is not zero, zero is not missing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.pricing.tokens import UNREADABLE, UNREADABLE_USAGE, TokenUsage
from gateway.domain.request.served_tier import UNKNOWN_TIER
from gateway.wire.foreign_json import MAX_USAGE_BYTES
from gateway.wire.openai.usage import (
    engine_queue_s,
    stated_geo,
    stated_tier,
    usage_from_groq,
    usage_from_wire,
    with_other_models,
    with_tool_calls,
)
from tests.unit.openai.test_members import values


def usage(wire: Any) -> TokenUsage | None:
    return usage_from_wire(json.dumps(wire).encode())


@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        (
            {"prompt_tokens": 10, "completion_tokens": 5},
            TokenUsage(input_tokens=10, output_tokens=5),
        ),
        ({"input_tokens": 10, "output_tokens": 5}, TokenUsage(input_tokens=10, output_tokens=5)),
        ({"prompt_tokens": 0, "completion_tokens": 0}, TokenUsage(input_tokens=0, output_tokens=0)),
        (
            {"prompt_tokens": 10, "prompt_tokens_details": None, "completion_tokens_details": None},
            TokenUsage(input_tokens=10),
        ),
        (
            {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 0}},
            TokenUsage(input_tokens=10, cached_input_tokens=0),
        ),
        (
            {
                "prompt_tokens": 9,
                "prompt_cache_hit_tokens": 4,
                "prompt_cache_miss_tokens": 5,
                "completion_tokens": 1,
            },
            TokenUsage(input_tokens=9, cached_input_tokens=4, output_tokens=1),
        ),
        (
            {
                "input_tokens": 9,
                "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2},
                "output_tokens": 7,
                "output_tokens_details": {"reasoning_tokens": 3},
            },
            TokenUsage(
                input_tokens=9,
                cached_input_tokens=4,
                cache_write_tokens=2,
                output_tokens=7,
                reasoning_tokens=3,
            ),
        ),
        (
            {
                "prompt_tokens": 9,
                "prompt_tokens_details": {"cached_tokens": 4, "created_cache_tokens": 2},
            },
            TokenUsage(input_tokens=9, cached_input_tokens=4, cache_write_tokens=2),
        ),
        # audio in and out, as gpt-4o-audio answers; rejected predictions are inside the completion
        # tokens
        (
            {
                "prompt_tokens": 90,
                "prompt_tokens_details": {
                    "cached_tokens": 0,
                    "audio_tokens": 60,
                    "text_tokens": 30,
                },
                "completion_tokens": 70,
                "completion_tokens_details": {
                    "audio_tokens": 40,
                    "text_tokens": 10,
                    "reasoning_tokens": 0,
                    "accepted_prediction_tokens": 2,
                    "rejected_prediction_tokens": 20,
                },
            },
            TokenUsage(
                input_tokens=90,
                cached_input_tokens=0,
                audio_input_tokens=60,
                output_tokens=70,
                reasoning_tokens=0,
                audio_output_tokens=40,
            ),
        ),
        (
            {
                "input_tokens": 900,
                "input_token_details": {"audio_tokens": 850, "text_tokens": 50},
                "output_tokens": 40,
            },
            TokenUsage(input_tokens=900, audio_input_tokens=850, output_tokens=40),
        ),
        (
            {
                "input_tokens": 500,
                "input_tokens_details": {"image_tokens": 400, "text_tokens": 100},
                "output_tokens": 1056,
                "output_tokens_details": {"image_tokens": 1056},
            },
            TokenUsage(
                input_tokens=500,
                image_input_tokens=400,
                output_tokens=1056,
                image_output_tokens=1056,
            ),
        ),
        (  # OpenAI's responses: the total and its times, inside the details or beside them
            {
                "input_tokens": 900,
                "input_tokens_details": {
                    "cached_tokens": 100,
                    "cache_write_tokens": 700,
                    "cache_write_tokens_details": {"ttl_30m_tokens": 500, "ttl_12h_tokens": 200},
                },
                "output_tokens": 1,
            },
            TokenUsage(
                input_tokens=900,
                cached_input_tokens=100,
                cache_write_tokens=700,
                cache_write_30m_tokens=500,
                cache_write_12h_tokens=200,
                output_tokens=1,
            ),
        ),
        (
            {
                "input_tokens": 900,
                "cache_write_tokens_details": {"ttl_30m_tokens": 0, "ttl_12h_tokens": 200},
            },
            TokenUsage(
                input_tokens=900,
                cache_write_tokens=200,
                cache_write_30m_tokens=0,
                cache_write_12h_tokens=200,
            ),
        ),
        (
            {
                "prompt_tokens": 900,
                "prompt_tokens_details": {
                    "cache_write_tokens_details": {
                        "ephemeral_5m_input_tokens": 300,
                        "ephemeral_1h_input_tokens": 100,
                    }
                },
            },
            TokenUsage(input_tokens=900, cache_write_tokens=400, cache_write_1h_tokens=100),
        ),
        (
            {
                "prompt_tokens": 9,
                "prompt_tokens_details": {"cache_write_tokens_details": {"ttl_30m_tokens": None}},
            },
            TokenUsage(input_tokens=9),
        ),
        (  # vLLM reports the meaning of the tokens; on a self-hosted engine they cost the same
            {"prompt_tokens": 900, "prompt_tokens_details": {"multimodal_tokens": {"image": 800}}},
            TokenUsage(input_tokens=900),
        ),
        (  # Groq, with its times; Mistral, with its seconds
            {
                "queue_time": 0.02,
                "prompt_tokens": 80,
                "prompt_time": 0.003,
                "completion_tokens": 12,
                "total_tokens": 92,
                "prompt_audio_seconds": None,
                "prompt_tokens_details": {"cached_tokens": 64},
            },
            TokenUsage(input_tokens=80, cached_input_tokens=64, output_tokens=12),
        ),
        (
            {"prompt_tokens": "10", "completion_tokens": 5.0},
            TokenUsage(input_tokens=10, output_tokens=5),
        ),
        ({"prompt_tokens": "ten", "completion_tokens": 5.5}, UNREADABLE_USAGE),
        (
            {"prompt_tokens": True, "completion_tokens": 5},
            TokenUsage(output_tokens=5, unexplained_tokens=UNREADABLE),
        ),
        (
            {"prompt_tokens": -1, "completion_tokens": 5},
            TokenUsage(input_tokens=-1, output_tokens=5),
        ),
        (  # a count that is there and cannot be read marks the usage
            {
                "prompt_tokens": 9,
                "completion_tokens": 5,
                "prompt_tokens_details": [1],
                "completion_tokens_details": {"reasoning_tokens": "x", "audio_tokens": 2},
            },
            TokenUsage(
                input_tokens=9,
                output_tokens=5,
                audio_output_tokens=2,
                unexplained_tokens=UNREADABLE,
            ),
        ),
        (  # likewise an object in place of a number
            {"prompt_tokens": 9, "completion_tokens": {"reasoning_tokens": 3}, "total_tokens": 1.5},
            TokenUsage(input_tokens=9, unexplained_tokens=UNREADABLE),
        ),
        (  # below the details that any provider reports, all tokens are of an unknown kind
            {
                "prompt_tokens": 9,
                "completion_tokens": "",
                "prompt_tokens_details": {
                    "a_details": {"b_details": {"c_details": {"d_details": 1}}}
                },
            },
            TokenUsage(input_tokens=9, unknown_input_tokens=1, unexplained_tokens=UNREADABLE),
        ),
        (  # xAI: reasoning beside the answer, as the total shows
            {
                "prompt_tokens": 207,
                "completion_tokens": 12,
                "total_tokens": 406,
                "completion_tokens_details": {"reasoning_tokens": 187},
            },
            TokenUsage(input_tokens=207, output_tokens=199, reasoning_tokens=187),
        ),
        (  # OpenAI: reasoning inside it
            {
                "prompt_tokens": 207,
                "completion_tokens": 199,
                "total_tokens": 406,
                "completion_tokens_details": {"reasoning_tokens": 187},
            },
            TokenUsage(input_tokens=207, output_tokens=199, reasoning_tokens=187),
        ),
        (  # without a prompt nothing can be told from the total
            {
                "completion_tokens": 12,
                "total_tokens": 199,
                "completion_tokens_details": {"reasoning_tokens": 187},
            },
            TokenUsage(output_tokens=12, reasoning_tokens=187, unexplained_tokens=187),
        ),
        ({}, None),
        (None, None),
        ([], None),
        ("10", TokenUsage(unknown_units=1)),
    ],
)
def test_usage_in_the_normal_form(wire: Any, expected: TokenUsage | None) -> None:
    """One normal form for all spellings; a missing or null value stays None."""
    assert usage(wire) == expected


USAGE = (
    b'{"prompt_tokens":9,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":4,'
    b'"cache_write_tokens_details":{"ttl_30m_tokens":2}},"completion_tokens_details":{"reasoning_tokens":3}}'
)
# Bytes that no encoder of Python's writes and a server may: out of range, half a pair, no UTF-8,
# too long, too deep, cut.
ODD_BYTES = (
    b"1e400",
    b"-1e999",
    b"1.5",
    b'"\\ud83d"',
    b'"\\udc00\\ud83d"',
    b'"\xff"',
    b"9" * 5000,
    b"-" + b"9" * 400,
    b"[" * 2000,
    b"[" * 2000 + b"]" * 2000,
    b'{"a":' * 1200 + b"1" + b"}" * 1200,
    b"NaN",
    b"Infinity",
    b"tru",
    b"",
    b"\x00",
    b"{",
    b'"',
    b'{"prompt_tokens":1e400}',
    b'"\\u12"',
    b"01",
    b"true",
    b"null",
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A usage with some of its bytes replaced by odd ones, and perhaps cut."""
    wire = USAGE
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(wire)))
        end = draw(st.integers(start, min(start + 12, len(wire))))
        wire = wire[:start] + draw(st.sampled_from(ODD_BYTES) | st.binary(max_size=4)) + wire[end:]
    return wire[: draw(st.integers(0, len(wire)))] if draw(st.booleans()) else wire


@given(mutated() | st.binary(max_size=200) | values.map(lambda wire: json.dumps(wire).encode()))
def test_any_bytes_are_read_or_nothing(wire: bytes) -> None:
    """A provider's odd usage never breaks an answer: running figures are read at a place that
    cannot report an error.
    """
    groq = b'{"usage":{"prompt_tokens":1},"usage_breakdown":' + wire + b"}"
    read = [
        usage_from_wire(wire),
        usage_from_groq(b'{"usage":' + wire + b"}", model=None),
        usage_from_groq(groq, model="m"),
        with_other_models(TokenUsage(input_tokens=1), wire, model="m"),
    ]
    assert all(one is None or isinstance(one, TokenUsage) for one in read)
    assert stated_geo(b'"inference_geo"' + wire) is None
    assert stated_tier(b'"service_tier"' + wire) is None
    assert engine_queue_s(wire) is None or isinstance(engine_queue_s(wire), float)
    assert isinstance(with_tool_calls(TokenUsage(), b"_call" + wire), TokenUsage)


@pytest.mark.parametrize(
    ("models", "others"),
    [
        ([], None),
        (["m"], None),
        (["m", "other", None], 2),
        (["m"] * MAX_USAGE_BYTES, 1),
    ],
)
def test_tokens_of_other_models_are_not_charged_at_this_models_price(
    models: list[str | None], others: int | None
) -> None:
    """A breakdown that is too large to read may name any model."""
    wire = json.dumps({"models": [{"model": model} for model in models]}).encode()
    known = TokenUsage(input_tokens=9, output_tokens=5)
    expected = TokenUsage(input_tokens=9, output_tokens=5, other_model_calls=others)
    assert with_other_models(known, wire, model="m") == expected


@given(
    st.sampled_from(ODD_BYTES[:8]), st.sampled_from([b"x", b"x_details", b"prompt_tokens_details"])
)
def test_an_odd_member_costs_itself_alone(odd: bytes, name: bytes) -> None:
    """The members beside it are read, and the usage is marked: its total is no number."""
    wire = (
        b'{"prompt_tokens":9,"completion_tokens":5,"total_tokens":1.5,"' + name + b'":' + odd + b"}"
    )
    assert usage_from_wire(wire) == TokenUsage(
        input_tokens=9, output_tokens=5, unexplained_tokens=UNREADABLE
    )


def test_broken_bytes_are_no_usage() -> None:
    """The member was cut or is no JSON."""
    assert usage_from_wire(b'{"prompt_tokens":') is None


def test_counts_of_any_length_cost_themselves_alone() -> None:
    """A number beyond 64 bits is no count, and could be written down nowhere."""
    for digits in (19, 3000, 5000):
        wire = b'{"prompt_tokens":7,"completion_tokens":%s}' % (b"9" * digits)
        assert usage_from_wire(wire) == TokenUsage(input_tokens=7, unexplained_tokens=UNREADABLE)
    assert usage_from_wire(b'{"prompt_tokens":-%s}' % (b"9" * 5000)) == UNREADABLE_USAGE
    assert usage_from_wire(b'{"prompt_tokens":7,"completion_tokens":5.5}') == TokenUsage(
        input_tokens=7, unexplained_tokens=UNREADABLE
    )


def test_groq_says_usage_whether_or_not_it_was_asked() -> None:
    """`x_groq` is on the last chunk always, and on the first with an id alone."""
    member = {
        "id": "req_1",
        "usage": {"prompt_tokens": 80, "completion_tokens": 12, "total_time": 0.1},
    }
    assert usage_from_groq(json.dumps(member).encode(), model="m") == TokenUsage(
        input_tokens=80, output_tokens=12
    )
    assert usage_from_groq(b'{"id":"req_1"}', model="m") is None
    assert usage_from_groq(b'{"id":', model="m") is None


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ([], {}),
        ([{"type": "message"}, {"type": "function_call"}, {"type": "mcp_call"}], {}),
        (
            [
                {"type": "web_search_call"},
                {"type": "message"},
                {"type": "web_search_call"},
                {"type": "file_search_call"},
            ],
            {"web_search_calls": 2, "file_search_calls": 1},
        ),
        ([{"type": "code_interpreter_call"}], {"code_interpreter_calls": 1}),
        (
            [{"type": "image_generation_call"}, {"type": ["x_call"]}, {"type": None}],
            {"image_generation_calls": 1},
        ),
        ({"type": "web_search_call"}, {}),
    ],
)
def test_calls_of_hosted_tools_are_counted(output: Any, expected: dict[str, int]) -> None:
    """They are charged by the call, and usage does not say how many there were."""
    observed = TokenUsage(input_tokens=1, output_tokens=1)
    assert with_tool_calls(observed, json.dumps(output).encode()) == TokenUsage(
        input_tokens=1, output_tokens=1, **expected
    )


@pytest.mark.parametrize(
    ("action", "is_charged"),
    [
        ({"action": {"type": "search", "queries": ["a", "b"]}}, True),
        ({"action": {"type": "open_page", "url": "https://example.org"}}, False),
        ({"action": {"type": "find_in_page", "pattern": "x"}}, False),
        ({"action": {"type": "of_tomorrow"}}, True),
        ({"action": {"type": ["open_page"]}}, True),
        ({"action": {}}, True),
        ({"action": "open_page"}, True),
        ({"action": None}, True),
        ({}, True),
    ],
)
def test_only_search_actions_of_a_web_search_are_charged(
    action: dict[str, Any], is_charged: bool
) -> None:
    """OpenAI's guide names a cost of these alone; an unknown action counts as one."""
    items = [{"type": "web_search_call", **action}, {"type": "file_search_call", **action}]
    found = with_tool_calls(TokenUsage(), json.dumps(items).encode())
    assert found == TokenUsage(web_search_calls=1 if is_charged else None, file_search_calls=1)


def test_xai_bills_the_calls_that_its_usage_counts() -> None:
    """Its output lists failed calls as well, and the sources that it read are free."""
    details = b'{"web_search_calls":1,"x_search_calls":2,"file_search_calls":0}'
    usage = usage_from_wire(
        b'{"input_tokens":9,"output_tokens":1,"num_sources_used":40,'
        b'"server_side_tool_usage_details":%b}' % details
    )
    expected = TokenUsage(input_tokens=9, output_tokens=1, web_search_calls=1, x_search_calls=2)
    assert usage == expected
    output = [{"type": "web_search_call"}, {"type": "web_search_call"}]
    assert with_tool_calls(expected, json.dumps(output).encode()) == expected


@pytest.mark.parametrize(
    ("raw", "tier"),
    [
        (b'{"prompt_tokens":1,"service_tier":"priority"}', "priority"),
        (b'{"service_tier":7}', UNKNOWN_TIER),
        (b'{"service_tier":""}', None),
        (b'{"service_tier":"%b"}' % (b"x" * 65), UNKNOWN_TIER),
        (rb'{"service\u005ftier":"flex"}', "flex"),
        (b'{"prompt_tokens":1}', None),
        (b'"service_tier', None),
    ],
)
def test_the_tier_that_a_usage_states(raw: bytes, tier: str | None) -> None:
    """Mistral has it there alone, and a priority answer costs more."""
    assert stated_tier(raw) == tier


def test_broken_output_counts_no_calls() -> None:
    """The answer was cut in the middle of an item."""
    observed = TokenUsage(input_tokens=1, output_tokens=1)
    assert with_tool_calls(observed, b'[{"type":"web_search_call"') == observed


@pytest.mark.parametrize(
    ("raw", "region"),
    [
        (b'{"prompt_tokens": 1}', None),
        (b'{"prompt_tokens": 1, "inference_geo": "us"}', "us"),
        (b'{"inference_geo": null}', None),
        (b'{"inference_geo": ["us"]}', UNKNOWN_TIER),
        (b'"inference_geo"', None),
        (b'{"inference_geo": ', None),
    ],
)
def test_the_reported_region_is_read_if_it_is_a_word(raw: bytes, region: str | None) -> None:
    """Somebody else's figure in an odd shape must not cost the usage beside it."""
    assert stated_geo(raw) == region
