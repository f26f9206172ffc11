"""The backend's answers in the words of three dialects: chat completions, responses and messages.

Pure. The backend answers a request that offers a known tool, and whose last message asks for it,
with a call of that tool; every other request with `TEXT`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tests.canary import COMPLETION

TEXT = f"{COMPLETION} Hello from the backend."
WISH = "Use your tool"  # in the last message of a caller: asks the backend to call a tool
COMMAND = "echo tollgate"
CREATED = 1_764_000_000
# The tools that the clients offer, by name, and the arguments that the backend sends to them.
KNOWN_TOOLS: dict[str, dict[str, Any]] = {
    "get_weather": {"city": "Paris"},
    "exec_command": {"cmd": COMMAND},
    "shell_command": {"command": COMMAND},
    "shell": {"command": ["bash", "-lc", COMMAND]},
    "Bash": {"command": COMMAND, "description": "Print a word"},
    "bash": {"command": COMMAND, "description": "Print a word"},
}


class Dialect(StrEnum):
    """A dialect of the inference APIs, by the operation's name in a policy."""

    CHAT = "chat"
    RESPONSES = "responses"
    MESSAGES = "messages"


PATHS = {
    "/v1/chat/completions": Dialect.CHAT,
    "/v1/responses": Dialect.RESPONSES,
    "/v1/messages": Dialect.MESSAGES,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The tokens of one answer. `input_tokens` contains those from and to the prompt cache."""

    input_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    output_tokens: int
    reasoning_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer: a text, or the call of a tool."""

    number: int
    model: str
    usage: Usage
    tool: str | None = None

    @property
    def arguments(self) -> str:
        """Return the arguments of the call as JSON."""
        return json.dumps(KNOWN_TOOLS[self.tool or ""])

    @property
    def words(self) -> list[str]:
        """Return the pieces of the text as they are streamed."""
        first, *others = TEXT.split(" ")
        return [first, *(f" {word}" for word in others)]

    @property
    def fragments(self) -> list[str]:
        """Return the pieces of the arguments as they are streamed."""
        middle = len(self.arguments) // 2
        return [self.arguments[:middle], self.arguments[middle:]]


def reply_to(dialect: Dialect, asked: dict[str, Any], *, number: int, body_bytes: int) -> Reply:
    """Return the answer to a request. Its tokens follow from the size of the body, so that each
    request has others, and stay below what a gateway can hold for that size.
    """
    tool = _wanted_tool(dialect, asked)
    total = 20 + body_bytes // 8
    output = len(TEXT.split(" ")) + 3 if tool is None else 9
    usage = Usage(
        input_tokens=total,
        cached_tokens=total // 4,
        cache_write_tokens=total // 5,
        output_tokens=output,
        reasoning_tokens=2,
    )
    return Reply(number=number, model=str(asked.get("model", "")), usage=usage, tool=tool)


def _wanted_tool(dialect: Dialect, asked: dict[str, Any]) -> str | None:
    """Return the known tool that the request offers and asks for, None if it does neither or brings
    the tool's result.
    """
    turns = asked.get("input" if dialect is Dialect.RESPONSES else "messages") or []
    last = turns if isinstance(turns, str) else json.dumps(_last_turn(turns))
    if WISH not in last:
        return None
    offered = {
        tool.get("name") or (tool.get("function") or {}).get("name")
        for tool in asked.get("tools") or ()
    }
    return next((name for name in KNOWN_TOOLS if name in offered), None)


def _last_turn(turns: list[Any]) -> Any:
    """Return the last message or item that is not the client's own instruction; Claude Code appends
    one. A tool's result has no wish in it.
    """
    spoken = [turn for turn in turns if turn.get("role") not in ("system", "developer")]
    last = spoken[-1] if spoken else {}
    content = last.get("content")
    if isinstance(content, list) and any(part.get("type") == "tool_result" for part in content):
        return {}
    return last


def whole(dialect: Dialect, reply: Reply) -> dict[str, Any]:
    """Return the answer as one JSON object."""
    return {
        Dialect.CHAT: _chat,
        Dialect.RESPONSES: _response,
        Dialect.MESSAGES: _message,
    }[dialect](reply)


def events(dialect: Dialect, reply: Reply, *, asked: dict[str, Any]) -> Iterator[bytes]:
    """Yield the events of the answer as a stream."""
    if dialect is Dialect.CHAT:
        options = asked.get("stream_options") or {}
        yield from _chat_events(reply, shows_usage=bool(options.get("include_usage")))
    elif dialect is Dialect.RESPONSES:
        yield from _response_events(reply)
    else:
        yield from _message_events(reply)


# ---- chat completions


def _chat_usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _chat_frame(reply: Reply, name: str, choices: list[Any]) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{reply.number}",
        "object": name,
        "created": CREATED,
        "model": reply.model,
        "choices": choices,
    }


def _chat(reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": TEXT, "refusal": None}
    if reply.tool is not None:
        call = {"name": reply.tool, "arguments": reply.arguments}
        message["content"] = None
        message["tool_calls"] = [
            {"id": f"call_{reply.number}", "type": "function", "function": call}
        ]
    reason = "stop" if reply.tool is None else "tool_calls"
    choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
    frame = _chat_frame(reply, "chat.completion", [choice])
    return {**frame, "usage": _chat_usage(reply.usage)}


def _chat_events(reply: Reply, *, shows_usage: bool) -> Iterator[bytes]:
    def chunk(delta: dict[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
        return _data(_chat_frame(reply, "chat.completion.chunk", [choice]))

    yield chunk({"role": "assistant", "content": "" if reply.tool is None else None})
    if reply.tool is None:
        for word in reply.words:
            yield chunk({"content": word})
        yield chunk({}, "stop")
    else:
        call = {"name": reply.tool, "arguments": ""}
        opened = {"index": 0, "id": f"call_{reply.number}", "type": "function", "function": call}
        yield chunk({"tool_calls": [opened]})
        for fragment in reply.fragments:
            yield chunk({"tool_calls": [{"index": 0, "function": {"arguments": fragment}}]})
        yield chunk({}, "tool_calls")
    if shows_usage:
        frame = _chat_frame(reply, "chat.completion.chunk", [])
        yield _data({**frame, "usage": _chat_usage(reply.usage)})
    yield b"data: [DONE]\n\n"


# ---- responses


def _response_usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def _item(reply: Reply) -> dict[str, Any]:
    """Return the finished item of the answer: a message or a call."""
    if reply.tool is not None:
        return {
            "type": "function_call",
            "id": f"fc_{reply.number}",
            "call_id": f"call_{reply.number}",
            "name": reply.tool,
            "arguments": reply.arguments,
            "status": "completed",
        }
    return {
        "type": "message",
        "id": f"msg_{reply.number}",
        "role": "assistant",
        "status": "completed",
        "content": [_text_part(TEXT)],
    }


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _response(reply: Reply, *, is_done: bool = True) -> dict[str, Any]:
    return {
        "id": f"resp_{reply.number}",
        "object": "response",
        "created_at": CREATED,
        "status": "completed" if is_done else "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": reply.model,
        "output": [_item(reply)] if is_done else [],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "store": False,
        "usage": _response_usage(reply.usage) if is_done else None,
    }


def _response_events(reply: Reply) -> Iterator[bytes]:
    """Yield named events with their sequence numbers."""
    for number, (kind, members) in enumerate(_response_steps(reply)):
        yield _event(kind, {"type": kind, "sequence_number": number, **members})


def _response_steps(reply: Reply) -> Iterator[tuple[str, dict[str, Any]]]:
    begun = _response(reply, is_done=False)
    yield "response.created", {"response": begun}
    yield "response.in_progress", {"response": begun}
    item = _item(reply)
    place = {"item_id": item["id"], "output_index": 0}
    opened = {**item, "status": "in_progress"}
    if reply.tool is None:
        part = {**place, "content_index": 0}
        yield "response.output_item.added", {"output_index": 0, "item": {**opened, "content": []}}
        yield "response.content_part.added", {**part, "part": _text_part("")}
        for word in reply.words:
            yield "response.output_text.delta", {**part, "delta": word, "logprobs": []}
        yield "response.output_text.done", {**part, "text": TEXT, "logprobs": []}
        yield "response.content_part.done", {**part, "part": _text_part(TEXT)}
    else:
        yield "response.output_item.added", {"output_index": 0, "item": {**opened, "arguments": ""}}
        for fragment in reply.fragments:
            yield "response.function_call_arguments.delta", {**place, "delta": fragment}
        done = {**place, "arguments": reply.arguments, "name": reply.tool}
        yield "response.function_call_arguments.done", done
    yield "response.output_item.done", {"output_index": 0, "item": item}
    yield "response.completed", {"response": _response(reply)}


# ---- messages


def _message_usage(usage: Usage) -> dict[str, Any]:
    """Return the usage; its input is without the tokens from and to the cache."""
    written = usage.cache_write_tokens
    return {
        "input_tokens": usage.input_tokens - usage.cached_tokens - written,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": written,
        "cache_creation": {"ephemeral_5m_input_tokens": written, "ephemeral_1h_input_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        "service_tier": "standard",
    }


def _block(reply: Reply) -> dict[str, Any]:
    """Return the finished block of the answer."""
    if reply.tool is None:
        return {"type": "text", "text": TEXT, "citations": None}
    return {
        "type": "tool_use",
        "id": f"toolu_{reply.number}",
        "name": reply.tool,
        "input": KNOWN_TOOLS[reply.tool],
    }


def _message(reply: Reply, *, is_done: bool = True) -> dict[str, Any]:
    usage = _message_usage(reply.usage)
    reason = "end_turn" if reply.tool is None else "tool_use"
    return {
        "id": f"msg_{reply.number}",
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": [_block(reply)] if is_done else [],
        "stop_reason": reason if is_done else None,
        "stop_sequence": None,
        "usage": usage if is_done else {**usage, "output_tokens": 1},
    }


def _message_events(reply: Reply) -> Iterator[bytes]:
    """Yield the named events of a message."""
    for kind, members in _message_steps(reply):
        yield _event(kind, {"type": kind, **members})


def _message_steps(reply: Reply) -> Iterator[tuple[str, dict[str, Any]]]:
    done = _message(reply)
    yield "message_start", {"message": _message(reply, is_done=False)}
    if reply.tool is None:
        opened: dict[str, Any] = {"type": "text", "text": ""}
        deltas = [{"type": "text_delta", "text": word} for word in reply.words]
    else:
        opened = {**_block(reply), "input": {}}
        deltas = [
            {"type": "input_json_delta", "partial_json": fragment} for fragment in reply.fragments
        ]
    yield "content_block_start", {"index": 0, "content_block": opened}
    yield "ping", {}
    for delta in deltas:
        yield "content_block_delta", {"index": 0, "delta": delta}
    yield "content_block_stop", {"index": 0}
    ending = {"stop_reason": done["stop_reason"], "stop_sequence": None}
    yield "message_delta", {"delta": ending, "usage": done["usage"]}
    yield "message_stop", {}


def _data(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def _event(kind: str, value: Any) -> bytes:
    return b"event: " + kind.encode() + b"\n" + _data(value)
