"""Completes a schema of the caller: with the description that OpenAI's callers give beside it, and
with the type `object`, which Anthropic and Bedrock require.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from gateway.wire.translation.conversation import NO_JSON


class _Schema(Struct):
    """The only members that are looked at: a caller's schema may have a million others."""

    description: msgspec.Raw = NO_JSON
    type: msgspec.Raw = NO_JSON


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


def _with_first(schema: msgspec.Raw, member: bytes) -> msgspec.Raw:
    """Return a JSON object with one more member, before its others."""
    rest = bytes(schema).strip()[1:].lstrip()
    comma = b"" if rest == b"}" else b","
    return msgspec.Raw(b"{" + member + comma + rest)
