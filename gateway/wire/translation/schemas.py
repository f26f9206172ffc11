"""Puts a schema of the caller in the form that its target requires: with the description that
OpenAI's callers give beside it, with the type `object`, and without alternatives at its top.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec
from msgspec import Struct

from gateway.wire.translation.conversation import NO_JSON


class _Schema(Struct, rename={"any_of": "anyOf", "one_of": "oneOf", "all_of": "allOf"}):
    """The only members that are looked at: a caller's schema may have a million others."""

    description: msgspec.Raw = NO_JSON
    type: msgspec.Raw = NO_JSON
    properties: msgspec.Raw = NO_JSON
    any_of: msgspec.Raw = NO_JSON
    one_of: msgspec.Raw = NO_JSON
    all_of: msgspec.Raw = NO_JSON


class _Alternative(Struct):
    """One alternative: the members of an object that it names."""

    properties: dict[str, msgspec.Raw] = {}


_ALTERNATIVES = ("anyOf", "oneOf", "allOf")
_decode = msgspec.json.Decoder(_Schema).decode


def described(schema: msgspec.Raw, description: str) -> msgspec.Raw | None:
    """Return a schema with a description; None if it has one, or if it is no object."""
    try:
        has_one = _decode(schema).description is not NO_JSON
    except (msgspec.DecodeError, RecursionError):
        return None
    if has_one:
        return None
    return _with_first(schema, b'"description":' + msgspec.json.encode(description))


def of_object(schema: msgspec.Raw) -> msgspec.Raw | None:
    """Return a schema with the type `object`; None if it has another type or is no JSON object."""
    try:
        kind = _decode(schema).type
    except (msgspec.DecodeError, RecursionError):
        return None
    if kind is NO_JSON:
        return _with_first(schema, b'"type":"object"')
    return schema if bytes(kind) == b'"object"' else None


def with_properties(schema: msgspec.Raw) -> msgspec.Raw:
    """Return a schema of an object with its type and its properties, which OpenAI requires
    (github.com/github/github-mcp-server/issues/1548); any other one as it is.
    """
    typed = of_object(schema)
    if typed is None or _decode(typed).properties is not NO_JSON:
        return schema if typed is None else typed
    return _with_first(typed, b'"properties":{}')


def without_alternatives(schema: msgspec.Raw) -> tuple[msgspec.Raw, str]:
    """Return a schema of an object without alternatives at its top, and these as JSON, empty
    without any. The properties that they name join its own.
    """
    read = _decode(schema)
    if read.any_of is read.one_of is read.all_of is NO_JSON:
        return schema, ""
    members = msgspec.json.decode(schema, type=dict[str, msgspec.Raw])
    taken = {name: members.pop(name) for name in _ALTERNATIVES if name in members}
    named: dict[str, msgspec.Raw] = {}
    for alternatives in taken.values():
        named |= _named_in(alternatives)
    if named:
        own = msgspec.json.decode(members.get("properties", b"{}"), type=dict[str, msgspec.Raw])
        members["properties"] = msgspec.Raw(msgspec.json.encode(named | own))
    return msgspec.Raw(msgspec.json.encode(members)), msgspec.json.encode(taken).decode()


def _named_in(alternatives: msgspec.Raw) -> dict[str, msgspec.Raw]:
    """Return the properties that alternatives name; those of a reference are left to it."""
    found: dict[str, msgspec.Raw] = {}
    for one in msgspec.json.decode(alternatives, type=list[msgspec.Raw]):
        with suppress(msgspec.ValidationError):  # `true` is a schema, too
            found = msgspec.json.decode(one, type=_Alternative).properties | found
    return found


def _with_first(schema: msgspec.Raw, member: bytes) -> msgspec.Raw:
    """Return a JSON object with one more member, before its others."""
    rest = bytes(schema).strip()[1:].lstrip()
    comma = b"" if rest == b"}" else b","
    return msgspec.Raw(b"{" + member + comma + rest)
