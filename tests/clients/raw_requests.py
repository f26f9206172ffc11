"""Bodies and answers of clients without a library: curl, and Open WebUI's requests replayed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tests.clients.matrix import Call
from tests.clients.sessions import PROMPTS, Answer
from tests.clients.wording import PATHS, Dialect

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
NAMED = {"name": "get_weather", "description": "Return the weather of a city"}
TOOL: dict[Dialect, dict[str, Any]] = {
    Dialect.CHAT: {"type": "function", "function": {**NAMED, "parameters": WEATHER}},
    Dialect.RESPONSES: {"type": "function", **NAMED, "parameters": WEATHER, "strict": False},
    Dialect.MESSAGES: {**NAMED, "input_schema": WEATHER},
}
RESULT = "sunny"


def path_of(dialect: Dialect) -> str:
    """Return the endpoint of a dialect."""
    return next(path for path, served in PATHS.items() if served is dialect)


def body(dialect: Dialect, call: Call, *, model: str) -> dict[str, Any]:
    """Return the body of a call's first request."""
    turns: list[Any] = [{"role": "user", "content": PROMPTS[call]}]
    asked: dict[str, Any] = {"model": model, _turns_in(dialect): turns}
    if dialect is Dialect.MESSAGES:
        asked["max_tokens"] = 200
    if call is Call.TOOLS:
        asked["tools"] = [TOOL[dialect]]
    if call is Call.STREAM:
        asked["stream"] = True
        if dialect is Dialect.CHAT:
            asked["stream_options"] = {"include_usage": True}
    return asked


def with_results(dialect: Dialect, asked: dict[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """Return the request that brings the results of the tools that an answer calls."""
    added: list[Any]
    if dialect is Dialect.CHAT:
        message = made["choices"][0]["message"]
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": RESULT}
            for call in message["tool_calls"]
        ]
        kept = ("role", "content", "tool_calls")
        added = [{name: message[name] for name in kept}, *results]
    elif dialect is Dialect.RESPONSES:
        added = []
        for item in made["output"]:
            if item["type"] == "function_call":
                result = {"type": "function_call_output", "call_id": item["call_id"]}
                added += [item, {**result, "output": RESULT}]
    else:
        blocks = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": RESULT}
            for block in made["content"]
            if block["type"] == "tool_use"
        ]
        added = [
            {"role": "assistant", "content": made["content"]},
            {"role": "user", "content": blocks},
        ]
    name = _turns_in(dialect)
    return {**asked, name: [*asked[name], *added]}


def tools_in(dialect: Dialect, made: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return the tools that an answer calls, each with its arguments."""
    if dialect is Dialect.CHAT:
        calls = made["choices"][0]["message"].get("tool_calls") or ()
        called = [call["function"] for call in calls]
        return tuple((one["name"], json.loads(one["arguments"])) for one in called)
    if dialect is Dialect.RESPONSES:
        items = [item for item in made["output"] if item["type"] == "function_call"]
        return tuple((item["name"], json.loads(item["arguments"])) for item in items)
    blocks = [block for block in made["content"] if block["type"] == "tool_use"]
    return tuple((block["name"], block["input"]) for block in blocks)


def plain_answer(
    dialect: Dialect, made: dict[str, Any], *, tools: tuple[tuple[str, Any], ...] = ()
) -> Answer:
    """Return a whole answer as the tests read it."""
    if made.get("error"):
        return Answer(failure=json.dumps(made["error"]))
    usage = made["usage"]
    if dialect is Dialect.CHAT:
        text = made["choices"][0]["message"]["content"] or ""
        return Answer(text=text, tools=tools, output_tokens=usage["completion_tokens"])
    parts = made["content"] if dialect is Dialect.MESSAGES else _parts(made)
    text = "".join(part["text"] for part in parts if "text" in part)
    return Answer(text=text, tools=tools, output_tokens=usage["output_tokens"])


def streamed_answer(dialect: Dialect, lines: Iterable[str]) -> Answer:
    """Return a streamed answer as the tests read it; a stream without its end is a failure."""
    events = [
        json.loads(line.removeprefix("data: "))
        for line in lines
        if line.startswith("data: ") and line != "data: [DONE]"
    ]
    failed = next((event for event in events if event.get("error")), None)
    if failed is not None or not events:
        return Answer(failure=json.dumps(failed) if failed else "the stream has no event")
    if dialect is Dialect.CHAT:
        deltas = [choice["delta"] for event in events for choice in event["choices"]]
        used = next(event["usage"] for event in events if event.get("usage"))
        text = "".join(delta.get("content") or "" for delta in deltas)
        return Answer(text=text, output_tokens=used["completion_tokens"])
    if dialect is Dialect.RESPONSES:
        numbers = [event["sequence_number"] for event in events]
        assert numbers == list(range(len(events))), f"sequence numbers {numbers}"
        assert events[-1]["type"] == "response.completed", events[-1]["type"]
        return plain_answer(dialect, events[-1]["response"])
    assert events[-1]["type"] == "message_stop", events[-1]["type"]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    used = next(event["usage"] for event in events if event["type"] == "message_delta")
    text = "".join(delta.get("text", "") for delta in deltas)
    return Answer(text=text, output_tokens=used["output_tokens"])


def _turns_in(dialect: Dialect) -> str:
    return "input" if dialect is Dialect.RESPONSES else "messages"


def _parts(made: dict[str, Any]) -> list[dict[str, Any]]:
    return [part for item in made["output"] for part in item.get("content", ())]
