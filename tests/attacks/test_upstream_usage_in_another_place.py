"""Upstreams that state their usage beside its place: a text of one word was estimated below it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway.domain.pricing.settlement import Counted, Settlement
from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from gateway.wire.anthropic.answer.messages import rewrite_message
from gateway.wire.anthropic.translation.upstream_reader import messages_events
from gateway.wire.bedrock.answer import converse_events
from gateway.wire.gemini.answer import gemini_events
from gateway.wire.observed import Observed
from gateway.wire.openai.answer.chat import rewrite_chat
from gateway.wire.openai.answer.responses import rewrite_response
from tests.attacks.streamed import Event, last, read, settlement_of, text

USAGE = {"input_tokens": 100, "output_tokens": 50}
COUNTED = Counted(usage=TokenUsage(input_tokens=9, output_tokens=1), is_exact=False)
MESSAGE_END = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
STOP = {"type": "message_stop"}
START = {"type": "message_start", "message": {"id": "m", "model": "m", "content": []}}
PROMPT = {"input_tokens": 100, "output_tokens": 1}
ANSWER = {"output_tokens": 50}
TEXT = text("messages")
PLACES: dict[str, list[Event]] = {
    "in the stop": [START, TEXT, MESSAGE_END, {**STOP, "usage": USAGE}],
    "in a message of the stop": [START, TEXT, MESSAGE_END, {**STOP, "message": {"usage": USAGE}}],
    "in the delta": [
        START,
        TEXT,
        {**MESSAGE_END, "delta": {"stop_reason": "end_turn", "usage": USAGE}},
        STOP,
    ],
    "beside the first message": [
        {**START, "usage": PROMPT},
        TEXT,
        {**MESSAGE_END, "usage": ANSWER},
        STOP,
    ],
    "in a list": [START, TEXT, {**MESSAGE_END, "usage": [USAGE]}, STOP],
}


def settled(seen: Observed) -> Settlement:
    """Return the settlement beside our own count of the one word."""
    return settlement_of(seen, counted=COUNTED)


@pytest.mark.parametrize("dialect", ["messages", "translated"])
@pytest.mark.parametrize("place", PLACES)
def test_a_usage_in_any_event_of_a_message_is_read(dialect: str, place: str) -> None:
    found = settled(read(dialect, PLACES[place]))
    assert (found.usage.input_tokens, found.usage.output_tokens) == (100, 50)
    assert (found.source, found.is_suspect) == (UsageSource.PROVIDER, False)


def _message(usage: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": "a"}]
    return {"id": "m", "model": "m", "type": "message", "content": content, "usage": usage}


def _chat(usage: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": "a"}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    return {"id": "c", "model": "m", "choices": choices, "usage": usage}


def _response(usage: Any) -> dict[str, Any]:
    output = [{"type": "message", "content": [{"type": "output_text", "text": "a"}]}]
    return {"id": "r", "model": "m", "status": "completed", "output": output, "usage": usage}


def _converse(usage: Any) -> dict[str, Any]:
    return {"output": {"message": {"content": [{"text": "a"}]}}, "usage": usage}


def _gemini(usage: Any) -> dict[str, Any]:
    candidate = {"content": {"parts": [{"text": "a"}]}, "finishReason": "STOP"}
    return {"candidates": [candidate], "usageMetadata": usage}


# The reader of a whole answer, its shape, and a usage in its names.
WHOLE: dict[str, tuple[Callable[[bytes, Observed], Any], Callable[[Any], Any], Any]] = {
    "chat": (lambda body, seen: rewrite_chat(body, seen, model="m"), _chat, USAGE),
    "responses": (lambda body, seen: rewrite_response(body, seen, model="m"), _response, USAGE),
    "messages": (lambda body, seen: rewrite_message(body, seen, model="m"), _message, USAGE),
    "translated": (messages_events, _message, USAGE),
    "bedrock": (converse_events, _converse, {"inputTokens": 100, "outputTokens": 50}),
    "gemini": (gemini_events, _gemini, {"promptTokenCount": 100, "candidatesTokenCount": 50}),
}


def whole(dialect: str, form: Callable[[Any], Any]) -> Settlement:
    """Return the settlement of a whole answer with its usage in a form."""
    reader, shape, usage = WHOLE[dialect]
    seen = Observed(is_whole=True)
    reader(json.dumps(shape(form(usage))).encode(), seen)
    return settled(seen)


@pytest.mark.parametrize("dialect", WHOLE)
@pytest.mark.parametrize("form", [lambda usage: [usage], json.dumps])
def test_a_usage_in_a_list_of_one_or_in_a_text_is_read(
    dialect: str, form: Callable[[Any], Any]
) -> None:
    found = whole(dialect, form)
    assert (found.usage.input_tokens, found.usage.output_tokens) == (100, 50)
    assert found.source is UsageSource.PROVIDER


@pytest.mark.parametrize("dialect", WHOLE)
@pytest.mark.parametrize("form", [lambda usage: [usage, usage], lambda _: "1e2", lambda _: 150])
def test_a_figure_of_another_form_is_held(dialect: str, form: Callable[[Any], Any]) -> None:
    """It states something, and no estimate may stand below that."""
    found = whole(dialect, form)
    assert (found.cost_nusd, found.is_suspect) == (None, True)


@pytest.mark.parametrize("dialect", WHOLE)
@pytest.mark.parametrize("form", [None, [], {}, "", "n/a", 0, False, [None]])
def test_a_form_without_a_figure_is_no_usage(dialect: str, form: Any) -> None:
    """The text is counted, as for an answer that states none."""
    found = whole(dialect, lambda _: form)
    assert (found.usage.output_tokens, found.source) == (1, UsageSource.ESTIMATED)


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages", "translated", "bedrock"])
def test_a_list_in_a_stream_is_read(dialect: str) -> None:
    def listed(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {k: [v] if k == "usage" else listed(v) for k, v in value.items()}

    events = [listed(one) for one in last(dialect, 100, 50)]
    found = settled(read(dialect, [text(dialect), *events]))
    assert (found.usage.input_tokens, found.usage.output_tokens) == (100, 50)


BESIDE: dict[str, dict[str, Any]] = {
    "billed units": {"meta": {"billed_units": USAGE}},
    "tokens of a meta": {"meta": {"tokens": USAGE}},
    "a usage below": {"result": {"info": {"usage": USAGE}}},
    "counts of another name": {"token_counts": USAGE},
    "counts without a name": USAGE,
}
TARGETS = ("chat", "responses", "messages", "translated")


@pytest.mark.parametrize("dialect", TARGETS)
@pytest.mark.parametrize("place", BESIDE)
def test_no_estimate_stands_below_counts_beside_the_usage(dialect: str, place: str) -> None:
    reader, shape, _ = WHOLE[dialect]
    seen = Observed(is_whole=True)
    reader(json.dumps({**shape(None), **BESIDE[place]}).encode(), seen)
    found = settled(seen)
    assert (found.usage.input_tokens, found.usage.output_tokens) == (100, 50)


@pytest.mark.parametrize(("dialect", "name"), [("bedrock", "usage"), ("gemini", "usageMetadata")])
def test_a_usage_below_another_object_is_the_least(dialect: str, name: str) -> None:
    reader, shape, usage = WHOLE[dialect]
    seen = Observed(is_whole=True)
    reader(json.dumps({**shape(None), "result": {name: usage}}).encode(), seen)
    found = settled(seen)
    assert (found.usage.input_tokens, found.usage.output_tokens) == (100, 50)


@pytest.mark.parametrize("dialect", WHOLE)
def test_counts_that_a_model_or_a_caller_wrote_are_none(dialect: str) -> None:
    """The arguments of a call may be any object, and an answer repeats the request's metadata."""
    reader, shape, usage = WHOLE[dialect]
    seen = Observed(is_whole=True)
    body = {
        **shape(None),
        "metadata": usage,
        "tools": [{"parameters": {"usage": usage, "usageMetadata": usage}}],
    }
    call = {"type": "tool_use", "input": {"usage": usage}, "args": {"usageMetadata": usage}}
    for name in ("content", "parts"):
        body[name] = [*body.get(name, []), call] if name in body else [call]
    reader(json.dumps(body).encode(), seen)
    assert seen.dearest is None


def test_billed_units_at_the_end_of_a_stream_are_the_least() -> None:
    end, _ = last("chat", 1, 1)
    assert isinstance(end, dict)
    meta = {"meta": {"billed_units": USAGE}}
    found = settled(read("chat", [text("chat"), {**end, **meta}]))
    assert (found.usage.input_tokens, found.usage.output_tokens) == (100, 50)


def test_tokens_of_a_rerank_are_its_usage() -> None:
    seen = Observed(is_whole=True)
    body = {
        "results": [{"index": 0, "relevance_score": 1}],
        "meta": {"tokens": {"input_tokens": 50}},
    }
    rewrite_chat(json.dumps(body).encode(), seen, model="m")
    assert seen.final == TokenUsage(input_tokens=50)


def test_the_usage_of_the_first_of_two_answers_is_the_least_of_both() -> None:
    """llama.cpp's plain usage counts the first one: a count of both texts stood below it."""
    message = {"role": "assistant", "content": "a"}
    choices = [{"index": n, "message": message, "finish_reason": "stop"} for n in range(2)]
    body = {
        "model": "m",
        "choices": choices,
        "usage": {"prompt_tokens": 100, "completion_tokens": 50},
        "timings": {"prompt_n": 100, "cache_n": 0, "predicted_n": 50},
    }
    seen = Observed(is_whole=True)
    rewrite_chat(json.dumps(body).encode(), seen, model="m")
    found = settled(seen)
    assert (found.usage.input_tokens, found.usage.output_tokens) == (100, 50)
    assert found.source is UsageSource.ESTIMATED
