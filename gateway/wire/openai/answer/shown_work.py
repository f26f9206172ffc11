"""Finds the parts of an answer of OpenAI's dialect that may cost more than its text: sounds and
pictures, and the work of tools that the provider ran.

Its usage counts the tokens of sounds and pictures, and the calls of tools, only with some servers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.domain.pricing.settlement import UNPRICED_TOOL
from gateway.domain.pricing.tokens import TokenKind
from gateway.wire.observed import Observed
from gateway.wire.openai.bounds import decode_few

# Of parts of a message: OpenAI's and OpenRouter's names, and those of requests, which servers
# repeat.
_PARTS: Mapping[str, TokenKind] = {
    "audio": TokenKind.AUDIO_OUTPUT,
    "audio_url": TokenKind.AUDIO_OUTPUT,
    "input_audio": TokenKind.AUDIO_OUTPUT,
    "output_audio": TokenKind.AUDIO_OUTPUT,
    "image": TokenKind.IMAGE_OUTPUT,
    "image_url": TokenKind.IMAGE_OUTPUT,
    "output_image": TokenKind.IMAGE_OUTPUT,
}
# Types of annotations: a page that a search of the provider found, and a file that it read
# (openrouter.ai/docs, "Web Search" and "PDF Inputs", 2026-11-29). A citation of a file is none: the
# file may be the caller's, and a search of files is an item of its own.
_ANNOTATIONS: Mapping[str, str] = {"url_citation": TokenKind.WEB_SEARCH, "file": UNPRICED_TOOL}
_IN_OUTPUT = {name: _PARTS[name] for name in ("output_audio", "output_image")} | {
    "url_citation": TokenKind.WEB_SEARCH
}
_QUOTED = tuple(b'"%b"' % name.encode() for name in _IN_OUTPUT)
_TYPE = re.compile(rb'"type"\s*+:\s*+"(%b)"' % b"|".join(name.encode() for name in _IN_OUTPUT))
_UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
_NOTHING = frozenset({b"", b"null", b"{}", b"[]"})


class _Message(msgspec.Struct):
    """The members of a message or a delta that hold more than text."""

    content: msgspec.Raw = msgspec.Raw()
    audio: msgspec.Raw = msgspec.Raw()
    images: msgspec.Raw = msgspec.Raw()
    annotations: msgspec.Raw = msgspec.Raw()
    executed_tools: msgspec.Raw = msgspec.Raw()  # Groq's


class _Typed(msgspec.Struct):
    type: Any = None


_decode_message = msgspec.json.Decoder(_Message).decode


def note_shown_in_message(observed: Observed, held: msgspec.Raw) -> None:
    """Record the kinds of output and of tools in a message or a delta with an object in it."""
    try:
        message = _decode_message(held)
    except _UNREADABLE:
        return
    if bytes(message.audio) not in _NOTHING:
        observed.note_shown(TokenKind.AUDIO_OUTPUT)
    if bytes(message.images) not in _NOTHING:
        observed.note_shown(TokenKind.IMAGE_OUTPUT)
    if bytes(message.executed_tools) not in _NOTHING:
        observed.note_shown(UNPRICED_TOOL)
    _note_typed(observed, message.content, _PARTS)
    _note_typed(observed, message.annotations, _ANNOTATIONS)


def note_found_pages(observed: Observed, *lists: msgspec.Raw) -> None:
    """Record a search of the provider if one of these members of an answer lists pages."""
    if any(bytes(one).translate(None, b" \t\r\n") not in _NOTHING for one in lists):
        observed.note_shown(TokenKind.WEB_SEARCH)


def note_shown_in_output(observed: Observed, output: msgspec.Raw) -> None:
    """Record the kinds of output and of tools in a response's items."""
    text = bytes(output)
    if any(text.find(name) >= 0 for name in _QUOTED):
        for kind in set(_TYPE.findall(text)):
            observed.note_shown(_IN_OUTPUT[kind.decode()])


def _note_typed(observed: Observed, listed: msgspec.Raw, kinds: Mapping[str, str]) -> None:
    """Record the kinds of the objects in a list, by their types."""
    if not bytes(listed).startswith(b"["):
        return
    try:
        types = {one.type for one in decode_few(listed, _Typed) if isinstance(one.type, str)}
    except _UNREADABLE:
        return
    for name in types & kinds.keys():
        observed.note_shown(kinds[name])
