"""Writes the turns of a neutral conversation as Gemini's contents.

A result of a tool needs the tool's name, which is found by the call's id in the turns before. The
results of one turn stand together, because Gemini refuses another number of results than of calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

import msgspec

from gateway.wire.gemini.thinking import takes_budgets
from gateway.wire.translation.alternating_turns import alternating, system_of
from gateway.wire.translation.conversation import (
    NO_JSON,
    Conversation,
    Media,
    Part,
    Role,
    TextPart,
    Thought,
    ToolCall,
    ToolResult,
)
from gateway.wire.translation.declared_tools import arguments_of, illegal_name
from gateway.wire.translation.losses import Losses, require_short_name

# Google's discovery document (aiplatform.v1beta1, revision 20261106), `FunctionDeclaration.name`.
_FUNCTION_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}")
_ROLES = {Role.USER: "user", Role.ASSISTANT: "model"}
MOST_URL_CHARS = 8192  # `urlsplit` keeps the addresses that it has split
MADE_ID = "call_gemini_"  # begins the id of a call that Gemini gave none; it is never sent back
# Gemini 3 refuses a turn whose first call has no signature. Google documents this one, in base64,
# for calls of another model (https://ai.google.dev/gemini-api/docs/thought-signatures, 2026-11-24).
FOREIGN_CALL = "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I="
# Gemini wants the type of a file that it fetches itself; OpenAI's callers send none.
_TYPES = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "webp": "image/webp",
    "heic": "image/heic",
    "heif": "image/heif",
    "pdf": "application/pdf",
    "wav": "audio/wav",
    "mp3": "audio/mp3",
}


def system_parts(conversation: Conversation, losses: Losses) -> list[dict[str, Any]]:
    """Return the parts of the system instruction."""
    for text in conversation.system:
        _lose_cache_control(text.cache_control, losses)
    return [{"text": text.text} for text in system_of(conversation)]


def contents_of(conversation: Conversation, losses: Losses, *, model: str) -> list[dict[str, Any]]:
    """Return all turns as contents, of results of tools or of anything else."""
    contents: list[dict[str, Any]] = []
    for turn in alternating(conversation, losses, legal_id=_made_id, takes_unsigned=True):
        results = [part for part in turn.parts if isinstance(part, ToolResult)]
        others = [part for part in turn.parts if not isinstance(part, ToolResult)]
        if results:
            parts = [_result(one, losses) for one in results]
            contents.append({"role": "user", "parts": parts})
        written = [part for one in others for part in _written(one, conversation, losses)]
        if turn.role is Role.ASSISTANT and not takes_budgets(model):
            _sign_first_call(written)
        if written:
            contents.append({"role": _ROLES[turn.role], "parts": written})
    return contents


def require_function_name(name: str) -> None:
    """Raise `Untranslatable` for a function's name that Gemini refuses."""
    if not _FUNCTION_NAME.fullmatch(name):
        raise illegal_name(
            name, "at most 128 letters, digits and _ . : -, the first a letter from a to z or _"
        )


def media_of(part: Part) -> Iterable[Media]:
    """Return the media in a part, those in a tool's result included."""
    if isinstance(part, Media):
        return (part,)
    if isinstance(part, ToolResult):
        return tuple(one for one in part.parts if isinstance(one, Media))
    return ()


def _written(
    part: TextPart | Media | Thought | ToolCall, conversation: Conversation, losses: Losses
) -> list[dict[str, Any]]:
    """Return one part of a turn as parts of Gemini; none for an empty text."""
    match part:
        case TextPart():
            _lose_cache_control(part.cache_control, losses)
            return [{"text": part.text}] if part.text else []
        case Media():
            _lose_cache_control(part.cache_control, losses)
            return [_media(part)]
        case Thought():
            # A signature of another provider would be refused, and Google's own are asked for with
            # calls alone.
            if part.sealed:
                losses.lose(conversation.name_of("sealed"), why="another provider sealed it")
            return [{"text": part.text, "thought": True}] if part.text else []
        case _:  # a call
            return [_call(part, conversation, losses)]


def _call(call: ToolCall, conversation: Conversation, losses: Losses) -> dict[str, Any]:
    """Return the part of a call that the model made, with its signature byte-exact."""
    _lose_cache_control(call.cache_control, losses)
    require_function_name(call.name)
    function: dict[str, Any] = {"name": call.name, "args": arguments_of(call, conversation)}
    if call.call_id and not call.call_id.startswith(MADE_ID):
        function["id"] = call.call_id
    part: dict[str, Any] = {"functionCall": function}
    if call.signature:
        part["thoughtSignature"] = call.signature
    return part


def _sign_first_call(parts: list[dict[str, Any]]) -> None:
    """Mark the first call of a turn as another model's, if it has no signature: only the first one
    of parallel calls carries one.
    """
    first = next((part for part in parts if "functionCall" in part), None)
    if first is not None:
        first.setdefault("thoughtSignature", FOREIGN_CALL)


def _made_id(call_id: str) -> str:
    """Return a call's id; one that is never sent for a call without any."""
    return call_id or MADE_ID


def _result(result: ToolResult, losses: Losses) -> dict[str, Any]:
    """Return the part of a tool's result."""
    _lose_cache_control(result.cache_control, losses)
    require_short_name(result.name)
    texts = [part.text for part in result.parts if isinstance(part, TextPart)]
    media = [part for part in result.parts if isinstance(part, Media)]
    response: dict[str, Any] = {
        "name": result.name,
        "response": {"error" if result.is_error else "output": "\n".join(texts)},
    }
    if media:
        response["parts"] = [_media(one) for one in media]
    if result.call_id and not result.call_id.startswith(MADE_ID):
        response["id"] = result.call_id
    return {"functionResponse": response}


def _media(media: Media) -> dict[str, Any]:
    """Return the part of a picture, a document or a sound."""
    if media.data:
        return {"inlineData": {"mimeType": media.media_type, "data": media.data}}
    file = {"fileUri": media.url}
    if kind := media.media_type or _type_of(media.url):
        file["mimeType"] = kind
    return {"fileData": file}


def _type_of(url: str) -> str:
    """Return the media type that an address ends with, empty if it does not show one."""
    if len(url) > MOST_URL_CHARS:
        return ""
    try:
        path = urlsplit(url).path
    except ValueError:
        return ""
    return _TYPES.get(path.rpartition(".")[2].lower(), "")


def _lose_cache_control(mark: msgspec.Raw, losses: Losses) -> None:
    """Lose Anthropic's mark of a prefix: Gemini caches prefixes without one."""
    if mark is not NO_JSON:
        losses.lose("cache_control", why="it caches prefixes by itself")
