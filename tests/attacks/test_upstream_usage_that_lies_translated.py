"""Upstreams of the translated dialects that lie about usage: negative counts in a sum, figures that
fall, content after the last figure, and counts that are left out after content.
"""

from __future__ import annotations

from typing import Any

from gateway.wire.anthropic.usage import usage_from_wire
from gateway.wire.gemini.answer import GeminiReader
from gateway.wire.observed import Observed
from gateway.wire.ollama.answer import OllamaReader
from gateway.wire.translation.answer_events import AnswerReader
from gateway.wire.triton.answer import TritonReader
from tests.attacks.odd_answers import encoded
from tests.factories import settled

SECOND = "an answer of some more words"


def fed(reader: AnswerReader, *events: dict[str, Any], lines: bool = False) -> Observed:
    """Return the observations of a stream of these events."""
    for event in events:
        framed = encoded(event) + b"\n" if lines else b"data: " + encoded(event) + b"\n\n"
        reader.feed(framed)
    reader.end()
    return reader.observed


def piece(text: str, finish: str = "", **usage: int) -> dict[str, Any]:
    """Return an event of Gemini."""
    event: dict[str, Any] = {"candidates": [{"content": {"parts": [{"text": text}]}}]}
    if finish:
        event["candidates"][0]["finishReason"] = finish
    return event | ({"usageMetadata": usage} if usage else {})


def test_a_negative_count_does_not_hide_in_tritons_sum() -> None:
    seen = fed(
        TritonReader("id"),
        {"text_output": "a", "num_input_tokens": 5, "num_output_tokens": 100},
        {"text_output": "b", "num_output_tokens": -99},
        {"text_output": "c", "num_output_tokens": 100},
    )
    assert seen.final is not None
    assert not seen.final.is_plausible
    assert settled(seen.final).is_suspect


def test_a_negative_count_does_not_hide_in_gemini_s_prompt() -> None:
    counts = {"promptTokenCount": 900, "toolUsePromptTokenCount": -899, "candidatesTokenCount": 1}
    seen = fed(GeminiReader(), piece("a", "STOP", **counts))
    assert seen.final is not None
    assert not seen.final.is_plausible


def test_a_negative_count_does_not_hide_in_anthropic_s_iterations() -> None:
    usage = {"input_tokens": 900, "output_tokens": 1}
    usage_in = usage | {"iterations": [{"type": "compaction", "input_tokens": -899}]}
    read = usage_from_wire(encoded(usage_in))
    assert read is not None
    assert not read.is_plausible


def test_a_figure_that_falls_is_charged_at_its_highest() -> None:
    seen = fed(
        GeminiReader(),
        piece("a", promptTokenCount=1000, candidatesTokenCount=30),
        piece("b", "STOP", promptTokenCount=1, candidatesTokenCount=1),
    )
    made = settled(seen.final, running=seen.running, least_output_tokens=1)
    assert (made.usage.input_tokens, made.usage.output_tokens) == (1000, 30)
    assert made.is_suspect


def test_a_figure_that_content_follows_is_no_last_word() -> None:
    seen = fed(
        GeminiReader(),
        piece("a", promptTokenCount=1000, candidatesTokenCount=1),
        piece(SECOND, "STOP"),
    )
    assert seen.is_done
    assert seen.is_behind
    assert seen.usage is not None
    assert (seen.usage.input_tokens, seen.usage.output_tokens) == (1000, None)
    assert seen.texts == ("a" + SECOND,)


def test_counts_that_are_left_out_after_content_are_unknown() -> None:
    """They are left out when they are 0, and this answer has some."""
    words = {"message": {"content": "hello"}}
    none = fed(OllamaReader(), words, {"done": True}, lines=True)
    assert none.is_done
    assert none.final is None
    prompt_alone = fed(
        OllamaReader(), words, {"done": True, "prompt_eval_count": 7}, lines=True
    ).final
    assert prompt_alone is not None
    assert (prompt_alone.input_tokens, prompt_alone.output_tokens) == (7, None)
    empty = fed(OllamaReader(), {"done": True, "prompt_eval_count": 7}, lines=True).final
    assert empty is not None
    assert empty.output_tokens == 0
