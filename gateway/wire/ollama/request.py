"""Writes a neutral conversation as a request to `/api/chat`.

Left out without a loss are labels that no model reads: the name and description of a schema, and a
file's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from gateway.errors import Untranslatable
from gateway.wire.members import MalformedJson, require_object
from gateway.wire.translation.alternating_turns import paired
from gateway.wire.translation.conversation import (
    NO_JSON,
    Conversation,
    ConversationTurn,
    Media,
    Role,
    TextPart,
    Thought,
    ToolCall,
    ToolMode,
    ToolResult,
    ToolSpec,
)
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
    messages = [
        {"role": "system", "content": text.text}
        for text in conversation.system
        if _keeps(text.cache_control, losses)
    ]
    body: dict[str, Any] = {
        "messages": [*messages, *_messages(conversation, losses)],
        "stream": conversation.is_stream,
        OPTIONS: _options(conversation),
    }
    choice = conversation.tool_choice
    if conversation.tools and (choice is None or choice.mode is not ToolMode.NONE):
        body["tools"] = [_tool(one, losses) for one in conversation.tools]
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


def _tool(tool: ToolSpec, losses: Losses) -> dict[str, Any]:
    """Return the declaration of one function."""
    _keeps(tool.cache_control, losses)
    if tool.is_strict:
        losses.lose("strict", why="it validates no arguments")
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    if tool.parameters is not NO_JSON:
        function["parameters"] = tool.parameters
    return {"type": "function", "function": function}


def _messages(conversation: Conversation, losses: Losses) -> Iterator[dict[str, Any]]:
    """Yield the messages of all turns: results of tools as messages of their own."""
    for turn in paired(conversation.turns, legal_id=str):
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
                calls.append({"function": _call(part)})
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


def _call(call: ToolCall) -> dict[str, Any]:
    """Return a call that the model made. Raises `Untranslatable` if its arguments are no object."""
    arguments = call.arguments.strip() or "{}"
    try:
        require_object(arguments.encode())
    except (MalformedJson, UnicodeEncodeError):
        raise Untranslatable(
            f"The arguments of the call {call.call_id[:64]!r} of {call.name[:64]!r} are not a JSON "
            "object. Nothing was sent. Send the call as the model made it.",
            param="arguments",
        ) from None
    return {"name": call.name, "arguments": msgspec.Raw(arguments.encode())}


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
