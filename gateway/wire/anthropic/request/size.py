"""Computes the bounds of the size of a request of Anthropic's messages: its own maximum, and the
tokens that its bytes do not show.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import msgspec

from gateway.domain.request.bound import TOOL_PREFACE_TOKENS
from gateway.domain.request.text_forms import PromptSize
from gateway.errors import InvalidRequest
from gateway.wire.anthropic.request.tools import KNOWN_TOOL_TOKENS, Tools
from gateway.wire.members import decode_members
from gateway.wire.openai.request.size import (
    EXPANDED_TOKENS_PER_BYTE,
    MAX_OUTPUT_TOKENS,
)
from gateway.wire.openai.tool_call_ids import MARK

# Members that reach the prompt in another form: schemas, which templates indent or escape.
_EXPANDED = ("tools", "output_config", "output_format", "chat_template_kwargs")
_NULL = b"null"
_ABSENT = msgspec.Raw()
# Blocks that the prompt shows in another form; an escape could spell any of them.
_ESCAPE, _SEALED = b"\\u", b'"encrypted_content"'
_SIGNED = (_ESCAPE, MARK.encode())
_RESHAPED = (_ESCAPE, b'"input"', b'"signature"', b'"data"', _SEALED)


class _Turn(msgspec.Struct):
    content: msgspec.Raw = _ABSENT


class _Block(msgspec.Struct):
    """The parts of a content block whose tokens its bytes bound only by a factor.

    `input` is a past call, which a template writes again with blanks, and `name` is its tool's,
    which a translation writes again beside each result, at `tool_use_id`. The others are sealed
    text, `id` if it holds Gemini's thought of a call: the model reads the text inside.
    """

    id: msgspec.Raw = _ABSENT
    name: msgspec.Raw = _ABSENT
    tool_use_id: msgspec.Raw = _ABSENT
    input: msgspec.Raw = _ABSENT
    signature: msgspec.Raw = _ABSENT
    data: msgspec.Raw = _ABSENT
    encrypted_content: msgspec.Raw = _ABSENT
    content: msgspec.Raw = _ABSENT


_decode_count = msgspec.json.Decoder(int | None).decode
_decode_turns = msgspec.json.Decoder(list[_Turn]).decode
_decode_blocks = msgspec.json.Decoder(list[_Block]).decode


def own_maximum(members: Mapping[str, msgspec.Raw]) -> int | None:
    """Return the maximum of output tokens that a request sets, at least 1; None for none.

    A maximum of 0 fills the prompt cache and writes nothing (anthropic 2.13.0,
    types/message_create_params.py, 2026-11-24). Thinking counts inside it. Raises `InvalidRequest`
    for a wrong type or too large a maximum.
    """
    raw = members.get("max_tokens")
    if raw is None:
        return None
    try:
        tokens: int | None = _decode_count(raw)
    except msgspec.DecodeError as broken:
        reason = str(broken).replace("`", "")
        raise InvalidRequest(
            f"'max_tokens' has the wrong type: {reason}. Nothing was sent.", param="max_tokens"
        ) from None
    if tokens is None:
        return None
    if not 0 <= tokens <= MAX_OUTPUT_TOKENS:
        raise InvalidRequest(
            f"'max_tokens' is {tokens}; write a number from 0 to {MAX_OUTPUT_TOKENS:,}. "
            "Nothing was sent.",
            param="max_tokens",
        )
    return max(tokens, 1)


def expansion(members: Mapping[str, msgspec.Raw], tools: Tools | None) -> int | None:
    """Return the most tokens that the prompt has beyond the body's bytes, None if nothing bounds
    it.
    """
    if _size(members.get("chat_template")):
        return None  # the caller's own template may repeat anything
    has_tools = tools is not None and tools.count > 0
    tokens = _turns_expansion(members["messages"])
    if tokens is None:
        return None
    if tools is not None and has_tools:
        tokens += TOOL_PREFACE_TOKENS + tools.known * KNOWN_TOOL_TOKENS
    rendered = sum(_size(members.get(name)) for name in _EXPANDED)
    return tokens + rendered * (EXPANDED_TOKENS_PER_BYTE - 1)


def size_of_body(body: bytes, *, tools: Tools | None, is_sized: bool) -> PromptSize:
    """Return the size of a body that was read before, but for the length of its characters.
    `is_sized` is False if nothing bounds the prompt.
    """
    tokens = expansion(decode_members(body), tools)
    return PromptSize(len(body), tokens if is_sized else None, 0)


def calls_undeclared(members: Mapping[str, msgspec.Raw], tools: Tools | None) -> bool:
    """Return True if earlier turns call tools, and the request declares none. Unknown shapes, which
    have no bound, are left out.
    """
    if tools is not None and tools.count > 0:
        return False
    with suppress(msgspec.DecodeError):
        for turn in _decode_turns(members["messages"]):
            is_list = bytes(turn.content)[:1] == b"["
            if is_list and any(_size(block.input) for block in _decode_blocks(turn.content)):
                return True
    return False


def _turns_expansion(raw: msgspec.Raw) -> int | None:
    """Return the most tokens that the messages have beyond their bytes, None if unknown."""
    encoded = bytes(raw)
    if not any(word in encoded for word in _RESHAPED):
        return 0
    is_signed = any(encoded.find(word) >= 0 for word in _SIGNED)
    tokens = results = longest_name = 0
    try:
        for turn in _decode_turns(encoded):
            if bytes(turn.content)[:1] != b"[":
                continue
            for block in _decode_blocks(turn.content):
                sealed = [block.signature, block.data, block.encrypted_content]
                if is_signed:
                    sealed.append(block.id)
                if _has_sealed(bytes(block.content)):  # a page that a search found
                    sealed.append(block.content)
                results += _size(block.tool_use_id) > 0
                longest_name = max(longest_name, _size(block.name))
                tokens += _size(block.input)
                tokens += sum(map(_size, sealed)) * (EXPANDED_TOKENS_PER_BYTE - 1)
    except msgspec.DecodeError:
        return None  # an unknown shape
    return tokens + results * longest_name


def _has_sealed(content: bytes) -> bool:
    """Return True if the content of a block holds sealed text. Raises `msgspec.DecodeError`."""
    if _SEALED in content or content[:1] != b"[" or _ESCAPE not in content:
        return _SEALED in content
    return any(_size(block.encrypted_content) for block in _decode_blocks(content))


def _size(value: msgspec.Raw | None) -> int:
    """Return the bytes of a member's value, 0 if it is absent or null."""
    if value is None:
        return 0
    size = memoryview(value).nbytes
    return 0 if size == len(_NULL) and bytes(value) == _NULL else size
