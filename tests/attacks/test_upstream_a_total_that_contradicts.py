"""Usages whose total is not the sum of their parts were charged by the parts, unmarked: thinking
models for a fraction.
"""

from __future__ import annotations

from typing import Any

import pytest

from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from gateway.wire.anthropic import usage as anthropic
from gateway.wire.bedrock import usage as bedrock
from gateway.wire.gemini.answer import GeminiReader
from gateway.wire.gemini.usage import usage_of as gemini_usage
from gateway.wire.observed import Observed
from gateway.wire.openai.chat_translation.usage_members import chat_usage, responses_usage
from gateway.wire.openai.usage import usage_from_wire, usage_of_choices, usage_of_embeddings
from tests.answers import chat_stream, rewrite_chat
from tests.attacks.odd_answers import encoded
from tests.factories import facts, price, settled

LIES = [623, 60, 0, 219, 217]  # of 20 + 198


def cost(usage: TokenUsage) -> str | None:
    """Any price."""
    return "0.1"


def read_chat(total: int) -> TokenUsage | None:
    return usage_from_wire(
        encoded({"prompt_tokens": 20, "completion_tokens": 198, "total_tokens": total})
    )


def read_response(total: int) -> TokenUsage | None:
    return usage_from_wire(
        encoded({"input_tokens": 20, "output_tokens": 198, "total_tokens": total})
    )


def read_gemini(total: int) -> TokenUsage | None:
    return gemini_usage(
        {
            "promptTokenCount": 15,
            "toolUsePromptTokenCount": 5,
            "candidatesTokenCount": 98,
            "thoughtsTokenCount": 100,
            "totalTokenCount": total,
        }
    )


def read_bedrock(total: int) -> TokenUsage | None:
    return bedrock.usage_from_wire({"inputTokens": 20, "outputTokens": 198, "totalTokens": total})


READERS = {
    "chat": read_chat,
    "responses": read_response,
    "gemini": read_gemini,
    "bedrock": read_bedrock,
}


@pytest.mark.parametrize("total", LIES)
@pytest.mark.parametrize("dialect", READERS)
def test_a_total_that_its_parts_do_not_make_is_held(dialect: str, total: int) -> None:
    """Never charged below its own total unmarked, and neither above it."""
    usage = READERS[dialect](total)
    assert usage is not None
    assert usage.unexplained_tokens == total - 218
    made = settled(usage)
    assert (made.source, made.cost_nusd, made.is_suspect) == (UsageSource.UNKNOWN, None, True)
    assert made.reported == usage


@pytest.mark.parametrize("dialect", READERS)
def test_a_total_of_its_parts_is_charged(dialect: str) -> None:
    usage = READERS[dialect](218)
    assert usage is not None
    assert usage.unexplained_tokens is None
    assert settled(usage).source is UsageSource.PROVIDER


@pytest.mark.parametrize(
    ("members", "output", "prompt"),
    [
        ({"completion_tokens_details": {"reasoning_tokens": 405}, "total_tokens": 623}, 603, 20),
        ({"reasoning_tokens": 405, "total_tokens": 623}, 603, 20),
        ({"cache_read_input_tokens": 900, "total_tokens": 1118}, 198, 920),
        ({"prompt_tokens_details": {"cached_tokens": 9}, "total_tokens": 218}, 198, 20),
        (
            {
                "cache_read_input_tokens": 900,
                "cache_creation_input_tokens": 100,
                "completion_tokens_details": {"reasoning_tokens": 5},
                "total_tokens": 1223,
            },
            203,
            1020,
        ),
    ],
    ids=["reasoning beside", "at the top", "cache beside", "cache inside", "both beside"],
)
def test_a_total_shows_what_stands_beside_the_parts(
    members: dict[str, Any], output: int, prompt: int
) -> None:
    """xAI's reasoning and Portkey's cache are counted beside."""
    usage = usage_from_wire(encoded({"prompt_tokens": 20, "completion_tokens": 198} | members))
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens) == (prompt, output)
    assert usage.is_plausible


CONTRADICTIONS: dict[str, dict[str, Any]] = {
    "cached without a prompt": {"prompt_tokens_details": {"cached_tokens": 5}},
    "reasoning without an answer": {"completion_tokens_details": {"reasoning_tokens": 5}},
    "text beyond the prompt": {"prompt_tokens": 4, "prompt_tokens_details": {"text_tokens": 5}},
    "video beyond the prompt": {
        "prompt_tokens": 9,
        "prompt_tokens_details": {"text_tokens": 5, "video_tokens": 5},
    },
    "text beyond the answer": {
        "completion_tokens": 4,
        "completion_tokens_details": {"text_tokens": 3, "audio_tokens": 2},
    },
    "writes beyond their total": {
        "prompt_tokens": 500,
        "cache_creation_input_tokens": 100,
        "cache_creation": {"ephemeral_5m_input_tokens": 200},
    },
    "a total alone": {"total_tokens": 623},
    "a total beside a prompt": {"prompt_tokens": 20, "total_tokens": 623},
}


@pytest.mark.parametrize("members", CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_details_that_contradict_their_whole_are_no_truth(members: dict[str, Any]) -> None:
    """Whichever of the two is missing or too small."""
    usage = usage_from_wire(encoded(members))
    assert usage is not None
    assert not usage.is_plausible


def test_modalities_beyond_gemini_s_count_are_no_truth() -> None:
    details = [{"modality": "TEXT", "tokenCount": 30}]
    usage = gemini_usage({"promptTokenCount": 20, "promptTokensDetails": details})
    assert usage is not None
    assert usage.unexplained_tokens == -10


def test_lifetimes_beyond_anthropic_s_writes_are_no_truth() -> None:
    usage = anthropic.usage_from_wire(
        encoded(
            {
                "input_tokens": 5,
                "output_tokens": 1,
                "cache_creation_input_tokens": 100,
                "cache_creation": {"ephemeral_5m_input_tokens": 300},
            }
        )
    )
    assert usage is not None
    assert not usage.is_plausible


def test_a_total_of_embeddings_beyond_their_prompt_is_no_truth() -> None:
    usage = usage_of_embeddings(encoded({"prompt_tokens": 7, "total_tokens": 4000}))
    assert usage is not None
    assert not usage.is_plausible


def test_a_running_figure_that_contradicts_itself_is_not_charged() -> None:
    """A stream that broke off was charged by it."""
    stream = chat_stream(
        model="a",
        cost=cost,
        wants_usage=False,
        wants_running_usage=False,
        asked_running_usage=True,
    )
    lie = {"prompt_tokens": 20, "completion_tokens": 1, "total_tokens": 400}
    choice = {"index": 0, "delta": {"content": "a"}}
    stream.feed(b"data: " + encoded({"choices": [choice], "usage": lie}) + b"\n\n")
    made = settled(running=stream.observed.running)
    assert (made.source, made.is_suspect) == (UsageSource.UNKNOWN, True)


def test_a_contradiction_of_one_choice_is_one_of_the_answer() -> None:
    """Each choice of llama.cpp has its own usage."""
    true, lie = TokenUsage(input_tokens=5, output_tokens=1), read_chat(623)
    assert lie is not None
    assert not usage_of_choices([true, lie], choices=2).is_plausible


def test_gemini_s_stream_with_hidden_thoughts_is_held() -> None:
    """50 + 10 of 260 were charged, and the caller got a total of 60."""
    reader = GeminiReader()
    usage = {"promptTokenCount": 50, "candidatesTokenCount": 10, "totalTokenCount": 260}
    event = {
        "candidates": [{"content": {"parts": [{"text": "a"}]}, "finishReason": "STOP"}],
        "usageMetadata": usage,
    }
    reader.feed(b"data: " + encoded(event) + b"\n\n")
    reader.end()
    final = reader.observed.final
    assert final is not None
    assert settled(final).is_suspect
    shown = responses_usage(final)
    assert shown is not None
    assert (chat_usage(final, facts(), text_bytes=1)["total_tokens"], shown["total_tokens"]) == (
        260,
        260,
    )


def test_no_cost_is_shown_beside_a_contradiction() -> None:
    """The caller reads a figure only if it is booked."""
    observed = Observed()
    usage = {"prompt_tokens": 20, "completion_tokens": 198, "total_tokens": 623}
    rewrite_chat(
        encoded({"choices": [{"message": {"content": "ok"}}], "usage": usage}),
        observed,
        model="a",
        cost=cost,
    )
    assert observed.final is not None
    assert settled(observed.final, price=price()).cost_nusd is None
