"""Finds the members and values below a request's top level on which the bound of its cost relies,
and which no published schema lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from gateway.domain.providers.members.effects import EDITS, MODALITIES, PARTS, VALUES
from gateway.wire.members import MalformedJson, decode_members

MOST_PARTS, MOST_LETTERS = 16, 64
_MODALITIES = "modalities"
_NONE: frozenset[str] = frozenset()
_EDITS = "context_management"


class _Edit(msgspec.Struct):
    type: str | None = None


class _Edits(msgspec.Struct):
    """Anthropic's form; OpenAI's is the list."""

    edits: list[_Edit] = []


_decode_edits = msgspec.json.Decoder(list[_Edit] | _Edits | None).decode
_decode_word = msgspec.json.Decoder(str).decode
_decode_words = msgspec.json.Decoder(list[str]).decode


def unlisted_parts(members: Mapping[str, msgspec.Raw]) -> frozenset[str]:
    """Return the unlisted parts of a request, as `stream_options.x`, `reasoning.mode=pro` or
    `modalities=image`.
    """
    tops = _READ & members.keys()
    if not tops:
        return _NONE
    found = [part for top in sorted(tops) for part in _parts_of(top, bytes(members[top]))]
    return frozenset(found[:MOST_PARTS])


def _parts_of(top: str, value: bytes) -> Iterator[str]:
    """Yield the unlisted members and values of one member."""
    if top in _OF_LISTS:
        words, listed = _OF_LISTS[top]
        yield from (f"{top}={word[:MOST_LETTERS]}" for word in words(value) if word not in listed)
        return
    if not value.startswith(b"{"):
        return  # null, or another server's own form, whose size the body shows
    try:
        inside = decode_members(value)
    except MalformedJson:
        return  # the reader refuses it
    for name, inner in inside.items():
        if name not in PARTS[top]:
            yield f"{top}.{name[:MOST_LETTERS]}"
        elif (known := VALUES.get((top, name))) is not None:
            word = _word(bytes(inner))
            if word is not None and word not in known:
                yield f"{top}.{name}={word[:MOST_LETTERS]}"


def _modalities_in(value: bytes) -> list[str]:
    """Return the modalities of an answer: nothing bounds the tokens of pictures and films."""
    try:
        words: list[str] = _decode_words(value)
    except msgspec.DecodeError:
        return []
    return words


def _edits_in(value: bytes) -> list[str]:
    """Return the types of the edits of a context."""
    try:
        found = _decode_edits(value)
    except msgspec.DecodeError:
        return []
    edits = found.edits if isinstance(found, _Edits) else found or []
    return [one.type for one in edits if one.type is not None]


def _word(value: bytes) -> str | None:
    """Return the text of a JSON string, None for any other value."""
    try:
        return _decode_word(value)
    except msgspec.DecodeError:
        return None


_OF_LISTS = {_MODALITIES: (_modalities_in, MODALITIES), _EDITS: (_edits_in, EDITS)}
_READ = PARTS.keys() | _OF_LISTS.keys()
