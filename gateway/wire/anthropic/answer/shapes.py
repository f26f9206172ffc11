"""Declares the members that are read in answers of Anthropic's messages, and decodes them; a
malformed answer raises an error of `UNREADABLE`.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from gateway.domain.pricing.settlement import UNPRICED_TOOL
from gateway.domain.pricing.unknown_counts import UNITS
from gateway.wire.foreign_json import has_others, names_in, object_of
from gateway.wire.observed import Observed
from gateway.wire.openai.answer.shapes import ABSENT, UNREADABLE, is_there, usage_inside

MAX_WORD_CHARS = 256  # of a stop reason or an id
STOP_EVENT = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'


class MessageBody(msgspec.Struct):
    """The relevant members of a message, whole or in `message_start`, still encoded."""

    id: msgspec.Raw = ABSENT
    model: msgspec.Raw = ABSENT
    content: msgspec.Raw = ABSENT
    stop_reason: msgspec.Raw = ABSENT
    usage: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT
    type: msgspec.Raw = ABSENT


class MessageEvent(msgspec.Struct):
    """The relevant members of a stream's event, still encoded."""

    type: msgspec.Raw = ABSENT
    message: msgspec.Raw = ABSENT
    content_block: msgspec.Raw = ABSENT
    delta: msgspec.Raw = ABSENT
    usage: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT


class MessageBlock(msgspec.Struct):
    """The members of a content block or of a delta that hold generated text."""

    text: msgspec.Raw = ABSENT
    thinking: msgspec.Raw = ABSENT
    partial_json: msgspec.Raw = ABSENT
    name: msgspec.Raw = ABSENT
    input: msgspec.Raw = ABSENT
    data: msgspec.Raw = ABSENT  # of a `redacted_thinking` block
    signature: msgspec.Raw = ABSENT
    stop_reason: msgspec.Raw = ABSENT


class TypedBlock(MessageBlock):
    """A block of a whole message, with its type."""

    type: msgspec.Raw = ABSENT


class _ServerBlock(msgspec.Struct):
    """The members of a block of the provider's own tools."""

    type: msgspec.Raw = ABSENT
    name: msgspec.Raw = ABSENT
    content: msgspec.Raw = ABSENT


_SERVER_USE, _SEARCH = b'"server_tool_use"', b'"web_search"'
# Tools without a fee of their own (fetching, the search for tools), those whose time is billed and
# held with the request (code), and the advisor, which `iterations` count (anthropic 2.14.0,
# types/beta/beta_server_tool_use_block.py).
_OTHER_TOOLS = frozenset(
    f'"{name}"'.encode()
    for name in names_in(
        "web_fetch code_execution bash_code_execution text_editor_code_execution advisor "
        "tool_search_tool_regex tool_search_tool_bm25"
    )
)
_CODE_TOOLS = frozenset({name for name in _OTHER_TOOLS if name.endswith(b'code_execution"')})
_SEARCH_RESULT, _CODE_RESULT = b'"web_search_tool_result"', b'code_execution_tool_result"'
# Kinds of blocks and of their pieces whose content is read.
READ_BLOCKS = names_in(
    "text thinking redacted_thinking tool_use text_delta thinking_delta signature_delta "
    "input_json_delta citations_delta"
)
_EMPTY_EVENTS = names_in(
    "message_start message_delta message_stop content_block_start content_block_delta "
    "content_block_stop ping error"
)
_MESSAGE = names_in(
    "id type role model content stop_reason stop_sequence stop_details usage container "
    "context_management error"
)
_decode_server_block = msgspec.json.Decoder(_ServerBlock).decode
decode_message = msgspec.json.Decoder(MessageBody).decode
decode_event = msgspec.json.Decoder(MessageEvent).decode
decode_block = msgspec.json.Decoder(MessageBlock).decode
_decode_str = msgspec.json.Decoder(str).decode
_EMPTY_INPUTS = frozenset({b"{}", b"null", b""})


def text_in(raw: msgspec.Raw) -> str:
    """Return the text of a member, empty if it is absent or of another type.

    Bytes that are no UTF-8 pass to the caller as they came, so they count as letters.
    """
    encoded = bytes(raw)
    if not encoded.startswith(b'"'):
        return ""
    try:
        return _decode_str(encoded)
    except UNREADABLE:
        return encoded[1:-1].decode(errors="replace")


def word_in(raw: msgspec.Raw) -> str | None:
    """Return a short text, None if it is absent, long or of another type."""
    return (text_in(raw) or None) if memoryview(raw).nbytes <= MAX_WORD_CHARS else None


def generated_text(block: MessageBlock) -> str:
    """Return the generated text in a content block or a delta.

    The input of a tool call is text that the model wrote; it is empty in `content_block_start`.
    """
    own = text_in(block.text) + text_in(block.thinking) + text_in(block.partial_json)
    call = text_in(block.name)
    arguments = bytes(block.input)
    if arguments not in _EMPTY_INPUTS:
        call += arguments.decode(errors="replace")
    return own + call


def usage_of_event(event: MessageEvent) -> msgspec.Raw:
    """Return the usage at the top of an event, or inside one of its objects; absent if there is
    none.
    """
    places = (event.usage, usage_inside(event.message), usage_inside(event.delta))
    return next(filter(is_there, places), ABSENT)


def is_content(block: MessageBlock) -> bool:
    """Return True if a content block or a delta is generated content, and not only announced."""
    return bool(generated_text(block) or text_in(block.data) or text_in(block.signature))


def has_more_than_text(block: TypedBlock) -> bool:
    """Return True if a whole block is of an unknown type, or has content without any text."""
    kind, text = text_in(block.type), generated_text(block)
    if kind and kind not in READ_BLOCKS:
        return True
    return not text and (not kind or is_content(block))


def holds_result(text: bytes) -> bool:
    """Return True if content may have the result of a tool that Anthropic runs at a fee."""
    return text.find(b"web_search_tool_result") >= 0 or text.find(_CODE_RESULT) >= 0


def note_hosted_call(observed: Observed, block: msgspec.Raw | bytes) -> None:
    """Record a block that is a call of a tool of the provider's own; a search that failed "will not
    be billed" (platform.claude.com/docs, "Web search tool", 2026-11-28).
    """
    text = bytes(block)
    if text.find(b"server_tool_use") < 0 and not holds_result(text):
        return
    with suppress(*UNREADABLE):
        found = _decode_server_block(block)
        kind = bytes(found.type)
        if kind.endswith(_CODE_RESULT) or bytes(found.name) in _CODE_TOOLS:
            observed.note_shown(UNPRICED_TOOL)  # by the time of its container
        if kind == _SERVER_USE and bytes(found.name) == _SEARCH:
            observed.note_call("web_search_calls")
        elif kind == _SERVER_USE and bytes(found.name) not in _OTHER_TOOLS:
            observed.note_call(UNITS)
        elif kind == _SEARCH_RESULT and bytes(found.content).startswith(b"{"):
            observed.note_call("web_search_calls", -1)  # its content is an error, and no list


def is_odd_block(block: msgspec.Raw | bytes) -> bool:
    """Return True if a block, or a piece of one, has a kind whose content is not read."""
    try:
        return text_in(_decode_server_block(block).type) not in READ_BLOCKS
    except UNREADABLE:
        return True


def is_odd_kind(kind: str) -> bool:
    """Return True if a type of event is not known to come without content."""
    return kind not in _EMPTY_EVENTS


def is_odd_message(body: bytes) -> bool:
    """Return True if a whole message may have content beside its known members."""
    members = object_of(body)
    return members is None or has_others(members, _MESSAGE)
