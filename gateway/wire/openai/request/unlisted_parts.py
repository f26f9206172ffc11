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
_NULL = b"null"
_ODD = "?"  # stands for a value that is no text, or another form than the published ones
_SWITCHES = frozenset({_NULL, b"true", b"false"})  # they choose nothing that has a bound


class _Edit(msgspec.Struct):
    type: str


class _Edits(msgspec.Struct, forbid_unknown_fields=True):
    """Anthropic's form; OpenAI's is the list."""

    edits: list[_Edit] = []


_decode_edits = msgspec.json.Decoder(list[_Edit] | _Edits | None).decode
_decode_word = msgspec.json.Decoder(str).decode
_decode_words = msgspec.json.Decoder(list[str] | None).decode


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
    """Yield the unlisted members and values of one member: all of it for a form that is in no
    schema, because any reading of it may count.
    """
    if top in _OF_LISTS:
        words, listed = _OF_LISTS[top]
        found = words(value)
        if found is None:
            yield f"{top}={_ODD}"
        else:
            yield from (f"{top}={word[:MOST_LETTERS]}" for word in found if word not in listed)
        return
    if not value.startswith(b"{"):
        if value not in _SWITCHES:
            yield from _unknown_value(top, value, VALUES.get((top, "type"), _NONE))
        return
    try:
        inside = decode_members(value)
    except MalformedJson:
        return  # the reader refuses it
    for name, inner in inside.items():
        if name not in PARTS[top]:
            yield f"{top}.{name[:MOST_LETTERS]}"
        elif (known := VALUES.get((top, name))) is not None and bytes(inner) != _NULL:
            yield from _unknown_value(f"{top}.{name}", bytes(inner), known)


def _unknown_value(name: str, value: bytes, known: frozenset[str]) -> Iterator[str]:
    """Yield a member's name with its value if that is none of the known ones."""
    try:
        word = _decode_word(value)
    except msgspec.DecodeError:
        yield f"{name}={_ODD}"
        return
    if word not in known:
        yield f"{name}={word[:MOST_LETTERS]}"


def _modalities_in(value: bytes) -> list[str] | None:
    """Return the modalities of an answer, None for another form: nothing bounds the tokens of
    pictures and films.
    """
    try:
        return _decode_words(value) or []
    except msgspec.DecodeError:
        return None


def _edits_in(value: bytes) -> list[str] | None:
    """Return the types of the edits of a context, None for another form."""
    try:
        found = _decode_edits(value)
    except msgspec.DecodeError:
        return None
    edits = found.edits if isinstance(found, _Edits) else found or []
    return [one.type for one in edits]


_OF_LISTS = {_MODALITIES: (_modalities_in, MODALITIES), _EDITS: (_edits_in, EDITS)}
_READ = PARTS.keys() | _OF_LISTS.keys()
