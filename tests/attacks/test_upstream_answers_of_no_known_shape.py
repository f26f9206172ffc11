"""A plain 200 of a shape that is not its dialect's (a proxy's wrapper, another API's answer, xAI's
ticket for an answer that is made later) was taken for an empty answer, and booked with 0 tokens.

The rule for every dialect: an answer is empty only in its dialect's own shape. Of another one the
usage that stands inside is read; without one it is unknown, at its hold.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from gateway.domain.operation import Operation
from gateway.domain.pricing.tokens import UsageSource
from gateway.wire.anthropic.answer.messages import rewrite_message
from gateway.wire.anthropic.translation.upstream_reader import messages_events
from gateway.wire.bedrock.answer import converse_events
from gateway.wire.dialect import UnreadableAnswer
from gateway.wire.gemini.answer import gemini_events
from gateway.wire.observed import Observed
from gateway.wire.ollama.answer import ollama_events
from gateway.wire.openai.answer.chat import rewrite_chat
from gateway.wire.openai.answer.complete_answer import rewrite
from gateway.wire.openai.answer.responses import rewrite_response
from gateway.wire.triton.answer import generate_events
from tests import factories
from tests.attacks.test_upstream_content_that_no_figure_counts import counted

WORDS = "word and another thing " * 400


def _chat(body: bytes, seen: Observed) -> Any:
    return rewrite_chat(body, seen, model="m", lists_items=False)


def _triton(body: bytes, seen: Observed) -> Any:
    return generate_events(body, seen, answer_id="a", most_tokens=None)


# The reader of each dialect, its usage of 100 and 20 tokens, and its empty answer.
DIALECTS: dict[str, tuple[Callable[[bytes, Observed], Any], dict[str, Any], dict[str, Any]]] = {
    "chat": (
        _chat,
        {"usage": {"prompt_tokens": 100, "completion_tokens": 20}},
        {"choices": [{"index": 0, "message": {"content": ""}, "finish_reason": "stop"}]},
    ),
    "responses": (
        lambda body, seen: rewrite_response(body, seen, model="m"),
        {"usage": {"input_tokens": 100, "output_tokens": 20}},
        {"status": "completed", "output": []},
    ),
    "messages": (
        lambda body, seen: rewrite_message(body, seen, model="m"),
        {"usage": {"input_tokens": 100, "output_tokens": 20}},
        {"type": "message", "content": []},
    ),
    "translated": (
        messages_events,
        {"usage": {"input_tokens": 100, "output_tokens": 20}},
        {"type": "message", "content": []},
    ),
    "bedrock": (
        converse_events,
        {"usage": {"inputTokens": 100, "outputTokens": 20}},
        {"output": {"message": {"role": "assistant", "content": []}}},
    ),
    "gemini": (
        gemini_events,
        {"usageMetadata": {"promptTokenCount": 100, "candidatesTokenCount": 20}},
        {"candidates": [{"content": {"parts": []}, "finishReason": "STOP"}]},
    ),
    "ollama": (
        ollama_events,
        {"prompt_eval_count": 100, "eval_count": 20},
        {"message": {"role": "assistant", "content": ""}},
    ),
    "triton": (
        _triton,
        {"num_input_tokens": 100, "num_output_tokens": 20},
        {"text_output": ""},
    ),
}
UNKNOWN: list[dict[str, Any]] = [
    {},
    {"request_id": "f1d2"},
    {"code": 0, "msg": "ok"},
    {"object": "error", "message": "x", "code": 400},
    {"id": "x", "result": WORDS, "is_truncated": False},
    {"code": 0, "data": {"choices": [{"message": {"content": WORDS}}]}},
    {"data": [{"text": WORDS}]},
]


def seen_in(dialect: str, body: dict[str, Any]) -> Observed:
    """Return the observations of a whole answer."""
    seen = Observed(is_whole=True)
    with suppress(UnreadableAnswer):  # a translated one is refused after it is metered
        DIALECTS[dialect][0](json.dumps(body).encode(), seen)
    return seen


@pytest.mark.parametrize("number", range(len(UNKNOWN)))
@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_answer_of_no_known_shape_is_held(dialect: str, number: int) -> None:
    made = counted(seen_in(dialect, UNKNOWN[number]))
    assert (made.source, made.cost_nusd) == (UsageSource.UNKNOWN, None)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_usage_inside_is_read(dialect: str) -> None:
    _, usage, empty = DIALECTS[dialect]
    for body in (
        {"code": 0, "data": usage | empty},
        {"data": {"answers": [usage | {"text": WORDS}]}},
        {"results": [{"response": {"body": usage}}]},
    ):
        made = counted(seen_in(dialect, body))
        assert (made.source, made.usage.output_tokens) == (UsageSource.PROVIDER, 20)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_empty_answer_of_its_own_shape_is_empty(dialect: str) -> None:
    seen = seen_in(dialect, DIALECTS[dialect][2])
    assert seen.is_empty
    assert counted(seen).usage.output_tokens == 0


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_answer_of_thousands_of_objects_is_held(dialect: str) -> None:
    """Only the first ones are looked at: an upstream may send millions."""
    _, usage, _ = DIALECTS[dialect]
    body = {"list": [{"a": {"b": {"c": {"d": n}}}} for n in range(3000)], "last": [[[[[usage]]]]]}
    assert counted(seen_in(dialect, body)).cost_nusd is None


@pytest.mark.parametrize(
    ("operation", "prompt"),
    [
        (Operation.CHAT, {"messages": []}),
        (Operation.COMPLETIONS, {"prompt": "a"}),
        (Operation.RESPONSES, {"input": "a"}),
    ],
)
def test_an_unknown_answer_passes_as_it_came(operation: Operation, prompt: dict[str, Any]) -> None:
    """The caller may know it: xAI's ticket, for one."""
    body, seen = b'{"request_id":"f1d2"}', Observed(is_whole=True)
    sent = factories.read(json.dumps({"model": "assistant", **prompt}).encode(), operation)
    assert rewrite(sent, body, seen) == body
    assert not seen.is_countable
