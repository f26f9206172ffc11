"""Declares the tools of a conversation to a dialect that refuses a name twice, letters outside its
alphabet, and schemas of anything but an object: Anthropic's, Bedrock's, OpenAI's and (but for
schemas) Gemini's. Writes the arguments of a call for those that take an object.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from gateway.errors import Untranslatable
from gateway.wire.members import MalformedJson, require_object
from gateway.wire.surrogates import without_halves
from gateway.wire.translation.conversation import Conversation, ToolCall, ToolSpec
from gateway.wire.translation.losses import Losses
from gateway.wire.translation.schemas import of_object, without_alternatives

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


def arguments_of(call: ToolCall, conversation: Conversation) -> msgspec.Raw:
    """Return the arguments of a call as a JSON object, with U+FFFD for half a surrogate pair, which
    no JSON reader takes. Raises `Untranslatable` for other text.
    """
    try:
        arguments = without_halves(call.arguments.strip().encode() or b"{}")
        require_object(arguments)
    except (MalformedJson, UnicodeEncodeError):
        raise Untranslatable(
            f"The arguments of the call {call.call_id[:64]!r} of {call.name[:64]!r} are not a JSON "
            "object. Nothing was sent. Send the call as the model made it.",
            param=conversation.name_of("arguments"),
        ) from None
    return msgspec.Raw(arguments)


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


def has_schema(spec: ToolSpec) -> bool:
    """Return True if a tool has a schema of its arguments; OpenAI's responses may have null."""
    return bytes(spec.parameters) not in (b"", b"null")


def of_object_schema(spec: ToolSpec, conversation: Conversation, losses: Losses) -> ToolSpec:
    """Return a tool whose arguments have the schema of an object without alternatives at its top,
    which are refused there (github.com/langchain-ai/langchainjs/issues/9804 and github.com/
    anthropics/claude-code/issues/27337): its description has them.

    A schema of another type is lost, and so is strictness, which alternatives in words lack.
    """
    if not has_schema(spec):
        return replace(spec, parameters=EMPTY_SCHEMA)
    schema = of_object(spec.parameters)
    try:
        schema, alternatives = (None, "") if schema is None else without_alternatives(schema)
    except msgspec.DecodeError:  # no list of alternatives, or no properties
        schema = None
    if schema is None:
        name = conversation.name_of("parameters")
        losses.lose(name, why=f"that of '{spec.name[:64]}' is no object")
        return replace(spec, parameters=EMPTY_SCHEMA)
    if not alternatives:
        return replace(spec, parameters=schema)
    if spec.is_strict:
        losses.lose("strict", why=f"'{spec.name[:64]}' has alternatives at the top of its schema")
    words = f"The arguments match {alternatives}"
    description = f"{spec.description}\n\n{words}" if spec.description else words
    return replace(spec, description=description, parameters=schema, is_strict=None)
