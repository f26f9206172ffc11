"""Adds the description that OpenAI's callers give beside a schema to the schema itself."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from gateway.wire.translation.conversation import NO_JSON


class _Schema(Struct):
    """The only member that is looked at: a caller's schema may have a million others."""

    description: msgspec.Raw = NO_JSON


_decode = msgspec.json.Decoder(_Schema).decode


def described(schema: msgspec.Raw, description: str) -> msgspec.Raw | None:
    """Return a schema with a description; None if it has one, or if it is no object."""
    try:
        has_one = _decode(schema).description is not NO_JSON
    except (msgspec.DecodeError, RecursionError):
        return None
    if has_one:
        return None
    rest = bytes(schema).strip()[1:].lstrip()
    comma = b"" if rest == b"}" else b","
    member = b'{"description":' + msgspec.json.encode(description)
    return msgspec.Raw(member + comma + rest)
