"""Generated answers of every pair before the published schemas of the caller's dialect, whole and event
by event, and before the types of the official SDKs.
"""  # noqa: E501

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import llm_comply
import pytest
from anthropic.types import Message
from anthropic.types.raw_message_stream_event import RawMessageStreamEvent
from llm_comply.schema import SSE_EVENT_TO_SCHEMA, SpecLoader
from openai.lib.streaming._deltas import accumulate_delta
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.oracles.foreign_answers import PAIRS, TARGETS, assembled, payloads, translated
from tests.oracles.outside_shapes import known

SEEDS = range(200)
SPECS = Path(llm_comply.__path__[0]) / "specs"
TYPES = {
    "chat": (ChatCompletion, ChatCompletionChunk),
    "messages": (Message, RawMessageStreamEvent),
    "responses": (Response, ResponseStreamEvent),
}
FILES = {
    "chat": "openai_chat.json",
    "messages": "anthropic.json",
    "responses": "openresponses.json",
}
MESSAGE_EVENTS = {
    "message_start": "MessageStartEvent",
    "message_delta": "MessageDeltaEvent",
    "message_stop": "MessageStopEvent",
    "content_block_start": "ContentBlockStartEvent",
    "content_block_delta": "ContentBlockDeltaEvent",
    "content_block_stop": "ContentBlockStopEvent",
}
# The table of llm-comply has other names for two events than its description.
SUMMARY_EVENTS = {
    f"response.reasoning_summary_text.{end}": f"ResponseReasoningSummary{end.title()}StreamingEvent"
    for end in ("delta", "done")
}
# Events of a picture are no part of Open Responses; OpenAI's own types judge them.
PICTURE = "image_generation_call"


@cache
def spec(caller: str) -> SpecLoader:
    """Return the description of a caller's dialect. OpenAI's is of 3.1 and has 3.0's `nullable`."""
    described = json.loads((SPECS / FILES[caller]).read_text())
    with NamedTemporaryFile("w", suffix=".json") as patched:
        json.dump(with_nulls(described), patched)
        patched.flush()
        return SpecLoader(patched.name)


def with_nulls(schema: Any) -> Any:
    """Return a description in which `nullable` stands as a choice of null."""
    if isinstance(schema, list):
        return [with_nulls(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: with_nulls(one) for name, one in schema.items()}
    if found.pop("nullable", False) is True:
        return {"anyOf": [found, {"type": "null"}]}
    return found


@cache
def adapter(caller: str, *, is_event: bool) -> TypeAdapter[Any]:
    return TypeAdapter(TYPES[caller][is_event])


def faults(caller: str, answer: Any, schema: str, *, is_event: bool = False) -> list[str]:
    """Return the rules that an answer breaks."""
    adapter(caller, is_event=is_event).validate_json(json.dumps(answer), strict=True)
    if PICTURE in json.dumps(answer):
        return []
    return spec(caller).validate(answer, schema)


@pytest.mark.parametrize(("caller", "target"), PAIRS)
def test_each_answer_is_complete_by_the_published_schema(caller: str, target: str) -> None:
    """A count that no upstream stated is null, against some schemas; nothing else may differ."""
    whole = {
        "chat": "CreateChatCompletionResponse",
        "messages": "Message",
        "responses": "ResponseResource",
    }[caller]
    for seed in SEEDS:
        plain, stream = translated(caller, TARGETS[target], seed, step=10**6)
        assert faults(caller, known(plain), whole) == [], seed
        for one in map(known, payloads(stream)):
            kind = one.get("type", "")
            schema = {
                "chat": "CreateChatCompletionStreamResponse",
                "messages": MESSAGE_EVENTS.get(kind, ""),
                "responses": SUMMARY_EVENTS.get(kind) or SSE_EVENT_TO_SCHEMA.get(kind, ""),
            }[caller]
            assert faults(caller, one, schema, is_event=True) == [], (seed, one)


@pytest.mark.parametrize("target", sorted(TARGETS.keys() - {"chat"}))
def test_the_openai_helper_joins_each_chat(target: str) -> None:
    """It raises for a second list of objects without an index."""
    for seed in SEEDS:
        _, stream = translated("chat", TARGETS[target], seed, step=10**6)
        joined: dict[object, object] = {}
        for chunk in payloads(stream):
            for choice in chunk["choices"]:
                joined = accumulate_delta(joined, choice["delta"])
        message = assembled("chat", stream)["choices"][0]["message"]
        assert without_numbers(joined) == message, seed


def without_numbers(value: Any) -> Any:
    """Return a value without the numbers of list items in deltas."""
    if isinstance(value, list):
        return [without_numbers(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {name: without_numbers(one) for name, one in value.items() if name != "index"}
