"""Writes the response object of `/v1/responses`, with the request's own members repeated in it."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.domain.request.request import RequestBody

# The members of a request that its answer repeats, and their values for one that lacks them.
_REPEATED: dict[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": None,
    "safety_identifier": None,
    "temperature": 1.0,
    "text": None,
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
}
_REASONING = {"effort": None, "summary": None}
_TEXT = {"format": {"type": "text"}}
_FUNCTION = {"description": None, "parameters": None, "strict": None}

_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_tools = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode


def repeated_members(read: RequestBody) -> dict[str, Any]:
    """Return the request's members that its answer repeats."""
    members = {name: _repeated(read, name, default) for name, default in _REPEATED.items()}
    user = _repeated(read, "user", None)
    if user is not None:  # OpenAI's description has no null for it
        members["user"] = user
    return members | {
        "background": False,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "store": False,
    }


def _repeated(read: RequestBody, name: str, default: Any) -> Any:
    """Return one member as it was sent, completed as OpenAI's answers have it."""
    place = read.members.get(name)
    sent = read.body[place.start : place.end] if place is not None else b"null"
    sent = msgspec.json.format(sent, indent=-1)  # an event's data is one line
    is_sent = sent != b"null"
    if name == "reasoning":
        return _REASONING | (_decode_members(sent) if is_sent else {})
    if name == "text":
        return _TEXT | (_decode_members(sent) if is_sent else {})
    if name == "tools" and is_sent:
        return [_tool(tool) for tool in _decode_tools(sent)]
    return msgspec.Raw(sent) if is_sent else default


def _tool(tool: dict[str, msgspec.Raw]) -> dict[str, Any]:
    """Return a tool; OpenAI's answers have every member of a function."""
    return _FUNCTION | tool if bytes(tool.get("type", b"")) == b'"function"' else tool
