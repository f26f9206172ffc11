"""Reads the content blocks of a caller's messages into the parts of a neutral conversation.

Sources: anthropic 2.13.0, types/content_block_param.py, 2026-11-24.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping

from gateway.wire.openai.tool_call_ids import without_signature
from gateway.wire.translation.conversation import (
    Media,
    Part,
    TextPart,
    Thought,
    ToolCall,
    ToolResult,
)
from gateway.wire.translation.request_members import RequestMembers, wrong_type

_KINDS = ("image", "document")


def text_parts(body: RequestMembers, name: str) -> tuple[TextPart, ...]:
    """Return the text of a member that is a text or a list of text blocks. Raises
    `InvalidRequest`.
    """
    if body.is_text(name):
        return (TextPart(text=body.text(name) or ""),)
    parts = []
    for block in body.children(name):
        if block.text("type") == "text":
            parts.append(_text(block))
        else:
            block.leave_whole()
    return tuple(parts)


def blocks_of(message: RequestMembers, name: str = "content") -> tuple[Part, ...]:
    """Return the parts of a message; blocks without a neutral value are left. Raises
    `InvalidRequest`.
    """
    if message.is_text(name):
        return (TextPart(text=message.text(name) or ""),)
    parts = []
    for block in message.children(name):
        part = _part(block)
        if part is None:
            block.leave_whole()
        else:
            block.leave_rest()
            parts.append(part)
    return tuple(parts)


def _part(block: RequestMembers) -> Part | None:
    """Return one block as a part; None if no neutral value carries it."""
    kind = block.text("type") or ""
    if kind in _KINDS:
        return _media(block, kind)
    read = _READERS.get(kind)
    return None if read is None else read(block)


def _text(block: RequestMembers) -> TextPart:
    """Return a text block. Citations of an earlier answer say where its words came from."""
    block.drop_if("citations", b"[]")
    part = TextPart(text=block.text("text") or "", cache_control=block.raw("cache_control"))
    block.leave_rest()
    return part


def _thinking(block: RequestMembers) -> Thought:
    """Return an earlier thought."""
    return Thought(text=block.text("thinking") or "", signature=block.text("signature") or "")


def _sealed(block: RequestMembers) -> Thought:
    """Return an earlier thought that only its provider can read."""
    return Thought(sealed=block.text("data") or "")


def _call(block: RequestMembers) -> ToolCall:
    """Return an earlier tool call."""
    if not block.is_object("input"):
        raise wrong_type(block.path_of("input"), "it is an object")
    block.drop_if("caller", b'{"type":"direct"}', b'{"type": "direct"}')
    name = block.text("name")
    if not name:
        raise wrong_type(block.path_of("name"), "a tool call has a name")
    call_id, signature = without_signature(block.text("id") or "")
    return ToolCall(
        call_id=call_id,
        name=name,
        arguments=bytes(block.raw("input")).decode(),
        signature=signature,
        cache_control=block.raw("cache_control"),
    )


def _result(block: RequestMembers) -> ToolResult:
    """Return the caller's answer to a tool call, with its texts, pictures and documents."""
    parts = blocks_of(block)
    shown = tuple(part for part in parts if isinstance(part, TextPart | Media))
    if len(shown) < len(parts):
        raise wrong_type(block.path_of("content"), "a result has text, pictures and documents")
    call_id, _ = without_signature(block.text("tool_use_id") or "")
    return ToolResult(
        call_id=call_id,
        parts=shown,
        is_error=bool(block.flag("is_error")),
        cache_control=block.raw("cache_control"),
    )


def _media(block: RequestMembers, kind: str) -> Media | None:
    """Return a picture or a document; None for one that is stored at the provider or has parts."""
    source = block.child("source")
    if source is None:
        raise wrong_type(block.path_of("source"), "it is missing")
    form = source.text("type")
    media_type, data, url = source.text("media_type") or "", "", ""
    if form == "base64":
        data = source.text("data") or ""
    elif form == "url":
        url = source.text("url") or ""
    elif form == "text" and kind == "document":  # a picture has none in its own dialect
        media_type = media_type or "text/plain"
        data = b64encode((source.text("data") or "").encode()).decode()
    else:
        return None
    source.leave_rest()
    block.drop_if("citations", b'{"enabled":false}', b'{"enabled": false}')
    return Media(
        kind=kind,
        media_type=media_type,
        data=data,
        url=url,
        name=block.text("title") or "",
        cache_control=block.raw("cache_control"),
    )


_READERS: Mapping[str, Callable[[RequestMembers], Part]] = {
    "text": _text,
    "thinking": _thinking,
    "redacted_thinking": _sealed,
    "tool_use": _call,
    "tool_result": _result,
}
