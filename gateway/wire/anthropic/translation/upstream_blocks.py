"""Writes the turns of a neutral conversation as messages of Anthropic's dialect."""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as NoBase64
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec

from gateway.wire.translation.alternating_turns import FILLER, alternating
from gateway.wire.translation.claude import takes_prefill
from gateway.wire.translation.conversation import (
    MOST_TOOL_NAME_CHARS,
    NO_JSON,
    Conversation,
    ConversationTurn,
    Media,
    Part,
    TextPart,
    Thought,
    ToolCall,
    ToolResult,
)
from gateway.wire.translation.declared_tools import arguments_of, require_legal_name
from gateway.wire.translation.losses import Losses

PICTURES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_NOT_IN_IDS = re.compile(r"[^a-zA-Z0-9_-]")
Block = dict[str, Any]


def write_messages(
    conversation: Conversation, losses: Losses, *, model: str = ""
) -> list[dict[str, Any]]:
    """Return the turns as messages."""
    turns = alternating(conversation, losses, legal_id=legal_id, takes_prefill=takes_prefill(model))
    return [
        {"role": turn.role.value, "content": _content(turn, conversation, losses)} for turn in turns
    ]


def write_texts(parts: Sequence[TextPart]) -> list[Block]:
    """Return pieces of text as blocks, without blank ones."""
    return [
        with_cache({"type": "text", "text": part.text}, part.cache_control)
        for part in parts
        if part.text.strip()
    ]


def with_cache(block: Block, cache_control: msgspec.Raw) -> Block:
    """Return a block with its mark of a cached prefix, byte by byte as sent."""
    if bytes(cache_control) not in (b"", b"null"):
        block["cache_control"] = cache_control
    return block


def legal_id(call_id: str) -> str:
    """Return a call's id in the letters that the dialect allows; two ids never become one."""
    if call_id and not _NOT_IN_IDS.search(call_id):
        return call_id
    mark = sha256(call_id.encode()).hexdigest()[:12]
    return f"{_NOT_IN_IDS.sub('_', call_id[:48])}_{mark}"


def _content(turn: ConversationTurn, conversation: Conversation, losses: Losses) -> list[Block]:
    """Return the parts of a turn as blocks. Media without a place may have been all of them."""
    blocks = (_block(part, conversation, losses) for part in turn.parts)
    found = [block for block in blocks if block is not None]
    return found or [{"type": "text", "text": FILLER}]


def _block(part: Part, conversation: Conversation, losses: Losses) -> Block | None:
    """Return one part of a turn as a block; None for one that has no content or no place."""
    if isinstance(part, TextPart):
        return next(iter(write_texts([part])), None)
    if isinstance(part, Media):
        return _media(part, conversation, losses)
    if isinstance(part, Thought):
        return _thought(part)
    if isinstance(part, ToolCall):
        require_legal_name(part.name, most_chars=MOST_TOOL_NAME_CHARS)
        block = {
            "type": "tool_use",
            "id": part.call_id,
            "name": part.name,
            "input": arguments_of(part, conversation),
        }
        return with_cache(block, part.cache_control)
    return _result(part, conversation, losses)


def _thought(part: Thought) -> Block:
    """Return reasoning of an earlier turn.

    Without a signature it was left out before: the dialect requires one (anthropic 2.13.0,
    types/thinking_block_param.py, 2026-11-24).
    """
    if part.sealed:
        return {"type": "redacted_thinking", "data": part.sealed}
    return {"type": "thinking", "thinking": part.text, "signature": part.signature}


def _result(part: ToolResult, conversation: Conversation, losses: Losses) -> Block:
    """Return the caller's answer to a tool call."""
    block: Block = {"type": "tool_result", "tool_use_id": part.call_id}
    content = [
        found for one in part.parts if (found := _block(one, conversation, losses)) is not None
    ]
    if part.is_error and not content:
        content.append({"type": "text", "text": FILLER})  # an error without a text is refused
    if content:
        block["content"] = content
    if part.is_error:
        block["is_error"] = True
    return with_cache(block, part.cache_control)


def _media(part: Media, conversation: Conversation, losses: Losses) -> Block | None:
    """Return a picture or a document; lose the parts that the dialect has no place for."""
    if part.detail not in ("", "auto"):
        losses.lose(conversation.name_of("detail"))
    source = _source(part)
    if source is None:
        losses.lose(
            conversation.name_of(part.kind),
            why=f"no {part.kind} of the type '{part.media_type[:64]}'",
        )
        return None
    block: Block = {"type": part.kind, "source": source}
    if part.kind == "document" and part.name:
        block["title"] = part.name
    return with_cache(block, part.cache_control)


def _source(part: Media) -> Block | None:
    """Return the source of a picture or a document; None if the dialect takes no such thing."""
    if part.kind not in ("image", "document"):
        return None
    if not part.data:
        return {"type": "url", "url": part.url} if part.url else None
    if part.kind == "image":
        is_taken = part.media_type in PICTURES
    elif part.media_type == "text/plain":
        text = _text_of(part.data)
        return None if text is None else {"type": "text", "media_type": "text/plain", "data": text}
    else:
        is_taken = part.media_type in ("", "application/pdf")
    if not is_taken:
        return None
    media_type = part.media_type or "application/pdf"
    return {"type": "base64", "media_type": media_type, "data": part.data}


def _text_of(data: str) -> str | None:
    """Return the text of a document in base64, None if it is none."""
    try:
        return b64decode(data, validate=True).decode()
    except (NoBase64, ValueError):
        return None


def has_unsigned_calls(conversation: Conversation) -> bool:
    """Return True if the last turn of the model calls tools, and none of its reasoning is signed.

    A model with a budget refuses to think on in such a turn.
    """
    for turn in reversed(conversation.turns):
        if turn.role.value == "assistant":
            calls = any(isinstance(part, ToolCall) for part in turn.parts)
            signed = any(
                isinstance(part, Thought) and (part.signature or part.sealed) for part in turn.parts
            )
            return calls and not signed
    return False


def is_sent(raw: msgspec.Raw) -> bool:
    """Return True if a JSON value was sent and is not null."""
    return raw is not NO_JSON and bytes(raw) not in (b"", b"null")
