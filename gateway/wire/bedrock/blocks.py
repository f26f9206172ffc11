"""Writes the turns of a neutral conversation as messages of Converse."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any

import msgspec

from gateway.wire.translation.alternating_turns import FILLER, alternating
from gateway.wire.translation.claude import takes_prefill
from gateway.wire.translation.conversation import (
    NO_JSON,
    Conversation,
    Media,
    Part,
    TextPart,
    Thought,
    ToolCall,
    ToolResult,
)
from gateway.wire.translation.declared_tools import arguments_of, require_legal_name
from gateway.wire.translation.losses import Losses
from gateway.wire.translation.unused_names import UnusedNames

PICTURES = {"image/png": "png", "image/jpeg": "jpeg", "image/gif": "gif", "image/webp": "webp"}
_OFFICE = "application/vnd.openxmlformats-officedocument"
DOCUMENTS = {
    "": "pdf",
    "application/pdf": "pdf",
    "text/csv": "csv",
    "application/msword": "doc",
    f"{_OFFICE}.wordprocessingml.document": "docx",
    "application/vnd.ms-excel": "xls",
    f"{_OFFICE}.spreadsheetml.sheet": "xlsx",
    "text/html": "html",
    "text/plain": "txt",
    "text/markdown": "md",
}
SOUNDS = {"audio/mpeg": "mp3", "audio/mp3": "mp3", "audio/wav": "wav", "audio/x-wav": "wav"}
MOST_NAME_CHARS, MOST_ID_CHARS, MOST_TOOL_NAME_CHARS = 200, 64, 64
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9()\[\]-]+")
_ID = re.compile(r"[a-zA-Z0-9_.:-]{1,64}")
_NOT_IN_IDS = re.compile(r"[^a-zA-Z0-9_.:-]")
_TTL = re.compile(rb'"ttl"\s*:\s*"1h"')
Block = dict[str, Any]


def write_messages(
    conversation: Conversation, losses: Losses, *, model: str
) -> list[dict[str, Any]]:
    """Return the turns as messages."""
    names = UnusedNames(mark="-", kept_chars=MOST_NAME_CHARS - 12, ignores_case=True)
    messages: list[dict[str, Any]] = []
    can_continue = takes_prefill(model)
    for turn in alternating(conversation, losses, legal_id=_legal_id, takes_prefill=can_continue):
        content = [block for part in turn.parts for block in _blocks(part, conversation, losses)]
        for block in content:
            _name_documents([block, *block.get("toolResult", {}).get("content", ())], names)
        is_alone = any("document" in block for block in content)
        if not content or (is_alone and not any("text" in block for block in content)):
            content.append({"text": FILLER})
        messages.append({"role": turn.role.value, "content": content})
    return messages


def write_system(parts: Sequence[TextPart]) -> list[Block]:
    """Return pieces of the system's text as blocks, without empty ones."""
    return [block for part in parts for block in _text(part)]


def cache_points(cache_control: msgspec.Raw) -> list[Block]:
    """Return the point up to which the prompt is cached, none if the caller marks none."""
    if not is_sent(cache_control):
        return []
    point = {"type": "default"}
    if _TTL.search(bytes(cache_control)):
        point["ttl"] = "1h"
    return [{"cachePoint": point}]


def is_sent(raw: msgspec.Raw) -> bool:
    """Return True if a JSON value was sent and is not null."""
    return raw is not NO_JSON and bytes(raw) not in (b"", b"null")


def _text(part: TextPart) -> list[Block]:
    """Return a piece of text as blocks, none if it is blank."""
    if not part.text.strip():
        return []
    return [{"text": part.text}, *cache_points(part.cache_control)]


def _blocks(part: Part, conversation: Conversation, losses: Losses) -> list[Block]:
    """Return one part of a turn as blocks; none for one that has no content or no place."""
    if isinstance(part, TextPart):
        return _text(part)
    if isinstance(part, Media):
        media = _media(part, conversation, losses)
        return [*media, *cache_points(part.cache_control)] if media else []
    if isinstance(part, Thought):
        return _thought(part)
    if isinstance(part, ToolCall):
        require_legal_name(part.name, most_chars=MOST_TOOL_NAME_CHARS)
        use = {
            "toolUseId": part.call_id,
            "name": part.name,
            "input": arguments_of(part, conversation),
        }
        return [{"toolUse": use}, *cache_points(part.cache_control)]
    return _result(part, conversation, losses)


def _thought(part: Thought) -> list[Block]:
    """Return reasoning of an earlier turn. Without a signature it was left out before."""
    if part.sealed:
        return [{"reasoningContent": {"redactedContent": part.sealed}}]
    text = {"text": part.text, "signature": part.signature}
    return [{"reasoningContent": {"reasoningText": text}}]


def _result(part: ToolResult, conversation: Conversation, losses: Losses) -> list[Block]:
    """Return the caller's answer to a tool call. Some models refuse one without content or with a
    blank text (hermes-agent/issues/55092 and pull/61318), and all refuse an error without a text.
    """
    content: list[Block] = []
    for one in part.parts:
        if isinstance(one, Media) and one.kind == "audio":
            losses.lose(conversation.name_of(one.kind), why="a tool's result has no sound there")
        else:
            blocks = _blocks(one, conversation, losses)
            content += [block for block in blocks if "cachePoint" not in block]
    if not content:
        content.append({"text": FILLER})
    result: Block = {"toolUseId": part.call_id, "content": content}
    if part.is_error:
        result["status"] = "error"
    return [{"toolResult": result}, *cache_points(part.cache_control)]


def _media(part: Media, conversation: Conversation, losses: Losses) -> list[Block]:
    """Return a picture, a document or a sound by its bytes; lose the parts without a place."""
    if part.detail not in ("", "auto"):
        losses.lose(conversation.name_of("detail"))
    formats = {"image": PICTURES, "document": DOCUMENTS, "audio": SOUNDS}.get(part.kind, {})
    media_format = formats.get(part.media_type)
    if not part.data or media_format is None:
        why = "only its bytes" if not part.data else f"no type '{part.media_type[:64]}'"
        losses.lose(conversation.name_of(part.kind), why=f"Converse takes {why}")
        return []
    block: Block = {"format": media_format, "source": {"bytes": part.data}}
    if part.kind == "document":
        block["name"] = _document_name(part.name)
    return [{part.kind: block}]


def _name_documents(blocks: Iterable[Block], names: UnusedNames) -> None:
    """Give each document another name: Converse refuses one name twice."""
    for block in blocks:
        if (document := block.get("document")) is not None:
            document["name"] = names.unused(document["name"])


def _document_name(name: str) -> str:
    """Return a document's name in the letters that Converse allows."""
    return _NOT_IN_NAMES.sub("-", name[:MOST_NAME_CHARS]).strip("-") or "document"


def _legal_id(call_id: str) -> str:
    """Return a call's id in the letters that Converse allows; two ids never become one."""
    if _ID.fullmatch(call_id):
        return call_id
    mark = sha256(call_id.encode()).hexdigest()[:12]
    return f"{_NOT_IN_IDS.sub('_', call_id[: MOST_ID_CHARS - 13])}_{mark}"
