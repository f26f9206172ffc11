"""Declares the tools of a conversation to a dialect that refuses a name twice, letters outside its
alphabet, and schemas of anything but an object: Anthropic's, Bedrock's and (but for schemas)
Gemini's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from gateway.errors import Untranslatable
from gateway.wire.translation.conversation import NO_JSON, Conversation, ToolCall, ToolSpec
from gateway.wire.translation.losses import Losses
from gateway.wire.translation.schemas import of_object

EMPTY_SCHEMA = msgspec.Raw(b'{"type":"object","properties":{}}')
_LETTERS = re.compile(r"[a-zA-Z0-9_-]+")


def declared_tools(conversation: Conversation) -> Sequence[ToolSpec]:
    """Return the tools, one of equal ones. Raises `Untranslatable` if two different ones have one
    name.
    """
    found: dict[str, ToolSpec] = {}
    for spec in conversation.tools:
        if found.setdefault(spec.name, spec) != spec:
            raise Untranslatable(
                f"Two different tools have the name '{spec.name[:64]}'. Nothing was sent. Give "
                "each tool a name of its own.",
                param="tools",
            )
    return tuple(found.values())


def called_tools(conversation: Conversation) -> Sequence[ToolSpec]:
    """Return the tools that earlier turns call, in their order."""
    names = dict.fromkeys(
        part.name
        for turn in conversation.turns
        for part in turn.parts
        if isinstance(part, ToolCall)
    )
    return tuple(ToolSpec(name=name) for name in names)


def require_legal_name(name: str, *, most_chars: int) -> None:
    """Raise `Untranslatable` for the name of a tool, or of a call, that the dialect refuses."""
    if len(name) > most_chars or not _LETTERS.fullmatch(name):
        raise illegal_name(
            name, f"at most {most_chars} letters from a to z and A to Z, digits, _ and -"
        )


def illegal_name(name: str, legal: str) -> Untranslatable:
    """Return the error for a tool's name that the dialect refuses, with the legal form."""
    return Untranslatable(
        f"The tool's name '{name[:64]}' is refused there, which takes {legal}. Nothing was sent. "
        "Give the tool another name.",
        param="tools",
    )


def object_schema(spec: ToolSpec, losses: Losses) -> msgspec.Raw:
    """Return the schema of a tool's arguments, with the type `object` if it has none; lose one of
    another type.
    """
    raw = spec.parameters
    if raw is NO_JSON or bytes(raw) in (b"", b"null"):
        return EMPTY_SCHEMA
    if (schema := of_object(raw)) is not None:
        return schema
    losses.lose("parameters", why=f"those of '{spec.name[:64]}' are no object")
    return EMPTY_SCHEMA
