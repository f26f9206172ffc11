"""Writes a neutral conversation as a request to `/api/chat`.

Left out without a loss are labels that no model reads: the name and description of a schema, and a
file's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from gateway.wire.translation.alternating_turns import FILLER, paired
from gateway.wire.translation.conversation import (
    NO_JSON,
    Conversation,
    ConversationTurn,
    Media,
    Role,
    TextPart,
    Thought,
    ToolMode,
    ToolResult,
    ToolSpec,
)
from gateway.wire.translation.declared_tools import EMPTY_SCHEMA, arguments_of
from gateway.wire.translation.losses import Losses, require_short_name

OPTIONS = "options"
MAXIMUM = "num_predict"
WINDOW = "num_ctx"
_NO_PLACE = ("logit_bias", "user", "cache_key", "verbosity")
_EFFORTS: Mapping[str, bool | str] = {
    "none": False,
    "low": "low",
    "medium": "medium",
    "high": "high",
}
_STANDARD_TIERS = ("auto", "default")


def write_ollama_request(conversation: Conversation, losses: Losses) -> dict[str, Any]:
    """Return a conversation as the members of a request to `/api/chat`, without the model and the
    maximum. Raises `Untranslatable`, also for calls that mean
    nothing here.
    """
    losses.lose_others(conversation)
    losses.lose_values(conversation, *_NO_PLACE)
    _lose_wishes(conversation, losses)
    system = [
        {"role": "system", "content": text.text}
        for text in conversation.system
        if _keeps(text.cache_control, losses)
    ]
    messages = [*system, *_messages(conversation, losses)]
    body: dict[str, Any] = {
        # Without any the server loads the model, and answers nothing.
        "messages": messages or [{"role": "user", "content": FILLER}],
        "stream": conversation.is_stream,
        OPTIONS: _options(conversation),
    }
    choice = conversation.tool_choice
    if conversation.tools and (choice is None or choice.mode is not ToolMode.NONE):
        body["tools"] = [_tool(one, conversation, losses) for one in conversation.tools]
    if conversation.output_format is not None:
        schema = conversation.output_format.schema
        body["format"] = "json" if schema is NO_JSON else schema
    think = _think(conversation, losses)
    if think is not None:
        body["think"] = think
    if conversation.sampling.top_logprobs is not None:
        body["logprobs"] = True
        body["top_logprobs"] = conversation.sampling.top_logprobs
    return body


def _lose_wishes(conversation: Conversation, losses: Losses) -> None:
    """Lose the wishes about calls, number and tier that the server ignores."""
    choice = conversation.tool_choice
    if choice is not None and choice.mode in (ToolMode.REQUIRED, ToolMode.NAMED):
        losses.lose(conversation.name_of("tool_choice"), why="it calls tools as it likes")
    if conversation.has_parallel_calls is False and conversation.tools:
        losses.lose(conversation.name_of("has_parallel_calls"))
    if conversation.choices > 1:
        losses.lose(conversation.name_of("choices"), why="it gives one answer")
    tier = conversation.service_tier
    if tier is not None and tier not in _STANDARD_TIERS:
        losses.lose(conversation.name_of("service_tier"))


def _options(conversation: Conversation) -> dict[str, Any]:
    """Return the options of sampling."""
    sampling = conversation.sampling
    options: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "seed": sampling.seed,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "stop": list(sampling.stop) or None,
    }
    return {name: value for name, value in options.items() if value is not None}


def _think(conversation: Conversation, losses: Losses) -> bool | str | None:
    """Return the wish about thinking; None without one."""
    wish = conversation.reasoning
    if wish is None:
        return None
    if wish.budget_tokens is not None:
        losses.lose(conversation.name_of("reasoning"), why="it takes no budget")
    elif wish.effort is not None and wish.effort not in _EFFORTS:
        losses.lose(conversation.name_of("reasoning"), why=f"no effort {wish.effort[:32]}")
    elif wish.effort is not None:
        return _EFFORTS[wish.effort]
    return True if wish.is_adaptive or wish.is_shown else None


def _tool(tool: ToolSpec, conversation: Conversation, losses: Losses) -> dict[str, Any]:
    """Return the declaration of one function."""
    _keeps(tool.cache_control, losses)
    if tool.is_strict:
        losses.lose("strict", why="it validates no arguments")
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    if tool.parameters is not NO_JSON:
        function["parameters"] = _parameters(tool, conversation, losses)
    return {"type": "function", "function": function}


def _messages(conversation: Conversation, losses: Losses) -> Iterator[dict[str, Any]]:
    """Yield the messages of all turns: results of tools as messages of their own."""
    for turn in paired(conversation, losses, legal_id=str):
        if turn.name:
            losses.lose(conversation.name_of("name"), why="its messages have no names")
        for part in turn.parts:
            if isinstance(part, ToolResult):
                yield _result(part, conversation, losses)
        message = _message(turn, conversation, losses)
        if message is not None:
            yield message


def _message(
    turn: ConversationTurn, conversation: Conversation, losses: Losses
) -> dict[str, Any] | None:
    """Return the message of a turn's own parts; None if it has only results of tools."""
    parts = [part for part in turn.parts if not isinstance(part, ToolResult)]
    if not parts and turn.parts:
        return None
    texts, thoughts, images, calls = [], [], [], []
    for part in parts:
        _keeps(getattr(part, "cache_control", NO_JSON), losses)
        match part:
            case TextPart():
                texts.append(part.text)
            case Thought():
                thoughts.append(part.text)
                if part.sealed:
                    losses.lose(conversation.name_of("sealed"), why="another provider sealed it")
            case Media():
                images += _images(part, conversation, losses)
            case _:  # a call
                arguments = arguments_of(part, conversation)
                calls.append({"function": {"name": part.name, "arguments": arguments}})
    message: dict[str, Any] = {"role": turn.role.value, "content": "\n".join(texts)}
    if thoughts and turn.role is Role.ASSISTANT:
        message["thinking"] = "".join(thoughts)
    if images:
        message["images"] = images
    if calls:
        message["tool_calls"] = calls
    return message


def _images(media: Media, conversation: Conversation, losses: Losses) -> list[str]:
    """Return a picture's base64; none for other media and addresses, which are lost by kind."""
    if media.kind == "image" and media.data:
        if media.detail not in ("", "auto"):
            losses.lose(conversation.name_of("detail"))
        return [media.data]
    losses.lose(conversation.name_of(media.kind), why="it takes pictures by their bytes alone")
    return []


class _Property(Struct, rename={"any_of": "anyOf"}):
    """A schema in a tool's schema as Ollama's Go types have it: another type of a member is refused
    (github.com/ollama/ollama, api/types.go, `ToolProperty`, commit fb3076099687, 2026-08-21).
    """

    any_of: list[_Property | None] | None = None
    type: str | list[str | None] | None = None
    description: str | None = None
    enum: list[msgspec.Raw] | None = None
    properties: dict[str, _Property | None] | None = None
    required: list[str | None] | None = None


class _Parameters(Struct):
    """The schema of a tool's arguments there: its type is one word (`ToolFunctionParameters`)."""

    type: str | None = None
    properties: dict[str, _Property | None] | None = None
    required: list[str | None] | None = None


_check = msgspec.json.Decoder(_Parameters | None).decode


def _parameters(tool: ToolSpec, conversation: Conversation, losses: Losses) -> msgspec.Raw:
    """Return the schema of a tool's arguments. Go's types have no schema that is `true` or `false`,
    and one type alone at the top: these take another form, and any other schema is lost.
    """
    schema = tool.parameters
    if not _is_taken(schema):
        schema = _in_go(schema)
    if not _is_taken(schema):
        name = conversation.name_of("parameters")
        losses.lose(name, why=f"that of '{tool.name[:64]}' is of no type that it reads")
        return EMPTY_SCHEMA
    return schema


def _is_taken(schema: msgspec.Raw) -> bool:
    """Return True if Go's types take a schema."""
    try:
        _check(schema)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _in_go(schema: msgspec.Raw) -> msgspec.Raw:
    """Return a schema of arguments without truth values in place of schemas."""
    try:
        members = _without_truths(msgspec.json.decode(schema))
        if isinstance(members, dict) and isinstance(members.get("type"), list):
            members["type"] = "object"
        return msgspec.Raw(msgspec.json.encode(members))
    except RecursionError:
        return schema


def _without_truths(schema: Any) -> Any:
    """Return a schema in which `{}` stands for `true`, and `{"not": {}}` for `false`."""
    if isinstance(schema, bool):
        return {} if schema else {"not": {}}
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    if isinstance(one := schema.get("properties"), dict):
        found["properties"] = {name: _without_truths(value) for name, value in one.items()}
    if isinstance(one := schema.get("anyOf"), list):
        found["anyOf"] = [_without_truths(value) for value in one]
    return found


def _result(result: ToolResult, conversation: Conversation, losses: Losses) -> dict[str, Any]:
    """Return the message of a tool's result, named by its tool."""
    _keeps(result.cache_control, losses)
    texts = [part.text for part in result.parts if isinstance(part, TextPart)]
    images = [
        data
        for part in result.parts
        if isinstance(part, Media)
        for data in _images(part, conversation, losses)
    ]
    content = "\n".join(texts)
    message: dict[str, Any] = {
        "role": "tool",
        "content": f"Error: {content}" if result.is_error else content,
        "tool_name": result.name,
    }
    require_short_name(result.name)
    if images:
        message["images"] = images
    return message


def _keeps(cache_control: msgspec.Raw, losses: Losses) -> bool:
    """Lose Anthropic's mark of a prefix, and return True: the part itself is kept."""
    if cache_control is not NO_JSON:
        losses.lose("cache_control", why="it caches prefixes by itself")
    return True
