"""Running usage of engines: llama.cpp's timings, and the usage of each choice of an answer."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.domain.pricing.tokens import TokenUsage
from gateway.wire.openai.usage import usage_of_choices, usage_on_the_way
from tests.answers import chat_stream


@pytest.mark.parametrize(
    ("raw", "usage"),
    [
        (b'{"prompt_n":1,"cache_n":236,"predicted_n":35}', (237, 236, 35)),
        (b'{"prompt_n":1,"predicted_n":35}', (None, None, 35)),
        (b'{"cache_n":236,"predicted_n":35}', (None, 236, 35)),
        (b'{"prompt_n":1,"cache_n":0}', (1, 0, None)),
        (b'{"prompt_tokens":7,"completion_tokens":2}', (7, None, 2)),
    ],
)
def test_a_running_figure_is_read_in_both_shapes(raw: bytes, usage: tuple[int | None, ...]) -> None:
    """A reused prompt is part of the prompt; where its size is not known, the prompt is not."""
    found = usage_on_the_way(raw)
    assert found is not None
    assert (found.input_tokens, found.cached_input_tokens, found.output_tokens) == usage


@pytest.mark.parametrize(
    "raw",
    [
        b"{}",
        b"[]",
        b'{"prompt_n":1}',
        b'{"prompt_tokens":0,"completion_tokens":0}',
        b'{"predicted_n":"x"}',
        b'{"predicted_n":1' + b" " * 2**17,
    ],
)
def test_an_unreadable_figure_is_none(raw: bytes) -> None:
    """Nothing raises, and nothing becomes 0."""
    assert usage_on_the_way(raw) is None


def test_choices_share_their_prompt() -> None:
    """Two prompts with two answers each: four usages, each with the whole prompt."""
    ended = [
        TokenUsage(input_tokens=prompt, cached_input_tokens=0, output_tokens=output)
        for prompt, output in ((10, 1), (20, 2), (10, 3), (20, 4))
    ]
    assert usage_of_choices(ended, choices=2) == TokenUsage(
        input_tokens=30, cached_input_tokens=0, output_tokens=10
    )
    unknown = [TokenUsage(output_tokens=1), TokenUsage(input_tokens=3)]
    assert usage_of_choices(unknown, choices=2) == TokenUsage()


def engine_stream(**settings: Any) -> Any:
    return chat_stream(
        model="m",
        cost=lambda usage: None,
        wants_usage=True,
        wants_running_usage=False,
        **{"asked_running_usage": True} | settings,
    )


TIMED = (
    b'data: {"choices":[{"index":0,"delta":{"content":"a"}}],'
    b'"timings":{"prompt_n":9,"cache_n":0,"predicted_n":1},"model":"m"}\n\n'
)


def test_timings_that_nobody_asked_for_are_passed_on_and_not_metered() -> None:
    """Another server's `timings` may count anything."""
    stream = engine_stream(asked_running_usage=False)
    assert stream.feed(TIMED) == TIMED
    assert stream.observed.running is None


def test_timings_are_cut_wherever_they_stand() -> None:
    """Between other members too, and only there: the rest stays byte for byte."""
    stream = engine_stream(cuts_timings=True)
    assert stream.feed(TIMED) == (
        b'data: {"choices":[{"index":0,"delta":{"content":"a"}}],"model":"m"}\n\n'
    )
    assert stream.observed.running == TokenUsage(
        input_tokens=9, cached_input_tokens=0, output_tokens=1
    )
