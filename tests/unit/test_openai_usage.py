"""Usage in every spelling of the OpenAI dialect: missing is not zero, zero is not missing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from gateway.domain.tokens import TokenUsage
from gateway.wire.openai_usage import usage_from_wire
from tests.unit.test_members import values


def usage(wire: Any) -> TokenUsage | None:
    return usage_from_wire(json.dumps(wire).encode())


@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        ({"prompt_tokens": 10, "completion_tokens": 5}, TokenUsage(input_tokens=10, output_tokens=5)),
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
            {"prompt_tokens": 9, "prompt_cache_hit_tokens": 4, "prompt_cache_miss_tokens": 5, "completion_tokens": 1},
            TokenUsage(input_tokens=9, cached_input_tokens=4, output_tokens=1),
        ),
        (
            {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2},
             "output_tokens": 7, "output_tokens_details": {"reasoning_tokens": 3}},
            TokenUsage(
                input_tokens=9, cached_input_tokens=4, cache_write_tokens=2, output_tokens=7, reasoning_tokens=3
            ),
        ),
        (
            {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4, "created_cache_tokens": 2}},
            TokenUsage(input_tokens=9, cached_input_tokens=4, cache_write_tokens=2),
        ),
        ({"prompt_tokens": "10", "completion_tokens": 5.0}, None),
        ({"prompt_tokens": True, "completion_tokens": 5}, TokenUsage(output_tokens=5)),
        ({"prompt_tokens": -1, "completion_tokens": 5}, TokenUsage(input_tokens=-1, output_tokens=5)),
        ({}, None),
        (None, None),
        ([], None),
        ("10", None),
    ],
)  # fmt: skip
def test_usage_in_the_normal_form(wire: Any, expected: TokenUsage | None) -> None:
    """One normal form for all spellings; what is missing, null or no whole number stays None."""
    assert usage(wire) == expected


@given(values)
def test_any_value_is_read_or_nothing(wire: Any) -> None:
    """A provider's odd usage never breaks an answer."""
    assert usage(wire) is None or isinstance(usage(wire), TokenUsage)


def test_broken_bytes_are_no_usage() -> None:
    """The member was cut or is no JSON."""
    assert usage_from_wire(b'{"prompt_tokens":') is None
