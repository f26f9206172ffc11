"""An upstream whose answer has content in a form that the gateway does not know, and a usage of 0
tokens: the zeros were believed, because no content was seen.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from gateway.domain.pricing.tokens import UsageSource
from gateway.wire.anthropic.answer.messages import rewrite_message
from gateway.wire.anthropic.translation.upstream_reader import messages_events
from gateway.wire.bedrock.answer import converse_events
from gateway.wire.dialect import UnreadableAnswer
from gateway.wire.gemini.answer import gemini_events
from gateway.wire.observed import Observed
from gateway.wire.ollama.answer import ollama_events
from gateway.wire.openai.answer.chat import rewrite_chat
from gateway.wire.openai.answer.responses import rewrite_response
from gateway.wire.triton.answer import TritonReader, generate_events
from tests.attacks.streamed import HELD_NUSD, Event, last, read, settlement_of

SECRET = "a long answer in an unknown place"
HEAD = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
ROLE = {**HEAD, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}


def in_choice(**members: Any) -> Event:
    return {**HEAD, "choices": [{"index": 0, "delta": {}, "finish_reason": None, **members}]}


# Events of each dialect that may hold content; its ordinary ones without any.
ODD: dict[str, list[Event]] = {
    "chat": [
        {"output": SECRET},
        in_choice(content=SECRET),
        in_choice(message={"content": SECRET}),
        in_choice(finish_reason="stop", parts=[SECRET]),
        {**HEAD, "choices": {"0": SECRET}},
    ],
    "responses": [
        {"type": "response.text", "text": SECRET},
        {"type": "response.output_text.done", "text": SECRET},
        {"output": SECRET},
    ],
    "messages": [
        {"type": "completion", "completion": SECRET},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "sound", "data2": SECRET}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "x", "y": SECRET}},
    ],
    "bedrock": [
        {"contentBlockDelta": {"delta": {"image": {"source": SECRET}}}},
        {"contentChunk": {"text": SECRET}},
    ],
    "gemini": [
        {"text": SECRET},
        {"candidates": [{"index": 0, "output": SECRET}]},
        {"candidates": [{"index": 0, "content": {"parts": [{"executableCode": {"a": "b"}}]}}]},
    ],
    "ollama": [
        {"model": "m", "response": SECRET, "done": False},
        {"model": "m", "message": {"role": "assistant", "answer": SECRET}, "done": False},
    ],
}
ORDINARY: dict[str, list[Event]] = {
    "chat": [ROLE, {**HEAD, "choices": [], "prompt_filter_results": [{"index": 0}]}],
    "responses": [{"type": "response.created", "response": {"id": "r", "status": "in_progress"}}],
    "messages": [
        {"type": "ping"},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_stop", "index": 0},
    ],
    "bedrock": [{"messageStart": {"role": "assistant"}}, {"contentBlockStop": {}}],
    "gemini": [{"candidates": [{"index": 0, "content": {"parts": [{"text": ""}]}}]}],
    "ollama": [{"model": "m", "message": {"role": "assistant", "content": ""}, "done": False}],
}
ODD["translated"], ORDINARY["translated"] = ODD["messages"], ORDINARY["messages"]
EACH = [(dialect, number) for dialect, odd in ODD.items() for number in range(len(odd))]


@pytest.mark.parametrize(("dialect", "number"), EACH)
@pytest.mark.parametrize("prompt", [0, 10])
def test_zeros_beside_unknown_content_are_held(dialect: str, number: int, prompt: int) -> None:
    events = [*ORDINARY[dialect], ODD[dialect][number], *last(dialect, prompt, 0)]
    made = settlement_of(read(dialect, events))
    assert (made.cost_nusd, made.held_nusd, made.is_suspect) == (None, HELD_NUSD, True)


@pytest.mark.parametrize(("dialect", "number"), EACH)
def test_a_figure_beside_unknown_content_is_believed(dialect: str, number: int) -> None:
    """Tomorrow's members pass, and their tokens are in the usage. A picture among them is another
    question: of its rate.
    """
    seen = read(dialect, [ODD[dialect][number], *last(dialect, 10, 5)])
    made = settlement_of(seen, seen_kinds=frozenset())
    assert (made.usage.output_tokens, made.is_suspect) == (5, False)


@pytest.mark.parametrize("dialect", ODD)
def test_zeros_of_an_empty_answer_are_believed(dialect: str) -> None:
    """A refused prompt has no output."""
    made = settlement_of(read(dialect, [*ORDINARY[dialect], *last(dialect, 10, 0)]))
    assert (made.usage.output_tokens, made.is_suspect) == (0, False)


def triton(body: bytes, seen: Observed) -> Any:
    return generate_events(body, seen, answer_id="a", most_tokens=None)


ZERO = {"prompt_tokens": 0, "completion_tokens": 0}
WHOLE: dict[str, tuple[Callable[[bytes, Observed], Any], dict[str, Any]]] = {
    "chat": (lambda body, seen: rewrite_chat(body, seen, model="m"), {"usage": ZERO}),
    "vectors": (
        lambda body, seen: rewrite_chat(body, seen, model="m"),
        {"usage": {"prompt_tokens": 0}},
    ),
    "responses": (
        lambda body, seen: rewrite_response(body, seen, model="m"),
        {"status": "completed", "usage": {"input_tokens": 0, "output_tokens": 0}},
    ),
    "messages": (
        lambda body, seen: rewrite_message(body, seen, model="m"),
        {"usage": {"input_tokens": 0, "output_tokens": 0}},
    ),
    "translated": (messages_events, {"usage": {"input_tokens": 0, "output_tokens": 0}}),
    "bedrock": (converse_events, {"usage": {"inputTokens": 0, "outputTokens": 0}}),
    "gemini": (gemini_events, {"usageMetadata": {"promptTokenCount": 0}}),
    "ollama": (ollama_events, {"prompt_eval_count": 0, "eval_count": 0}),
    "triton": (triton, {"num_input_tokens": 0, "num_output_tokens": 0}),
}


@pytest.mark.parametrize("dialect", WHOLE)
@pytest.mark.parametrize("odd", [{"answer": SECRET}, {"answers": [SECRET]}, {"a": {"b": "c"}}])
def test_zeros_of_a_whole_answer_of_an_unknown_form_are_held(
    dialect: str, odd: dict[str, Any]
) -> None:
    """Vectors have no output side, so their prompt of 0 is what is not believed."""
    seen, (reader, usage) = Observed(is_whole=True), WHOLE[dialect]
    with suppress(UnreadableAnswer):  # if it has to be translated
        reader(json.dumps(usage | odd).encode(), seen)
    made = settlement_of(seen, writes_output=dialect != "vectors")
    assert (made.cost_nusd, made.held_nusd, made.is_suspect) == (None, HELD_NUSD, True)


def test_zeros_of_a_stream_of_triton_are_held() -> None:
    """Its models name their own outputs."""
    reader = TritonReader("a")
    piece = {"answer": SECRET, "num_input_tokens": 0, "num_output_tokens": 0}
    reader.feed(f"data: {json.dumps(piece)}\n\n".encode())
    reader.end()
    assert settlement_of(reader.observed).cost_nusd is None


@pytest.mark.parametrize("status", ["queued", "in_progress"])
@pytest.mark.parametrize("answered", [0, 5])
def test_a_usage_of_a_response_that_is_not_finished_is_no_whole(status: str, answered: int) -> None:
    """xAI and OpenAI go on and bill it: zeros cost nothing, with the outcome `ok`."""
    seen = Observed(is_whole=True)
    usage = {"input_tokens": answered, "output_tokens": answered}
    body = json.dumps({"id": "r", "status": status, "output": [], "usage": usage})
    rewrite_response(body.encode(), seen, model="m")
    assert (seen.is_behind, seen.final) == (True, None)
    assert seen.usage is not None
    assert seen.usage.output_tokens is None
    found = settlement_of(seen)
    assert (found.source, found.cost_nusd) == (UsageSource.UNKNOWN, None)
    assert found.usage.input_tokens == (answered or None)
