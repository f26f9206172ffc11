"""Puts a schema of the caller in the form that its target requires: with the description that
OpenAI's callers give beside it, with the type `object`, without alternatives at its top, and of the
keywords alone that a grammar of Claude's is made of.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

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


# The keywords of structured outputs (platform.claude.com/docs and docs.aws.amazon.com/bedrock,
# "Structured outputs"; anthropic 2.14.0, lib/_parse/_transform.py; 2026-11-29). Any other is a 400.
_BY_NAME = frozenset({"properties", "$defs", "definitions"})
_FORMATS = frozenset(
    {
        "date-time",
        "time",
        "date",
        "duration",
        "email",
        "hostname",
        "uri",
        "ipv4",
        "ipv6",
        "uuid",
    }
)
_WITHOUT_MEANING = frozenset({"$schema", "$comment", "additionalProperties"})
_MOST_GRAMMAR_BYTES = 131_072  # the provider refuses a grammar long before that
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


def of_grammar(schema: msgspec.Raw) -> msgspec.Raw:
    """Return a schema whose objects are closed and whose other constraints than a grammar's stand
    in the descriptions, as Anthropic's SDK writes it. One of such keywords alone, one that is too
    large, and one that is none stay as they are.
    """
    if len(bytes(schema)) > _MOST_GRAMMAR_BYTES:
        return schema
    try:
        read = msgspec.json.decode(schema)
        written = _of_grammar(read)
    except (msgspec.DecodeError, RecursionError):
        return schema
    return schema if written == read else msgspec.Raw(msgspec.json.encode(written))


def has_map(schema: msgspec.Raw) -> bool:
    """Return True if a schema has an object of any names, which a grammar closes."""
    if bytes(schema).find(b'"additionalProperties"') < 0:
        return False
    try:
        return _has_map(msgspec.json.decode(schema))
    except (msgspec.DecodeError, RecursionError):
        return False


def _has_map(part: Any) -> bool:
    """Return True if a part of a schema holds the schema of a map's values."""
    if isinstance(part, list):
        return any(_has_map(one) for one in part)
    if not isinstance(part, dict):
        return False
    is_map = part.get("additionalProperties") is True and not part.get("properties")
    return (
        is_map
        or isinstance(part.get("additionalProperties"), dict)
        or any(_has_map(one) for one in part.values())
    )


def _of_grammar(schema: Any) -> Any:
    """Return a schema, or a part of one, in a grammar's keywords; `true` is a schema, too."""
    if not isinstance(schema, dict):
        return schema
    kept, rest = dict[str, Any](), dict[str, Any]()
    for name, value in schema.items():
        if name in _BY_NAME and isinstance(value, dict):
            kept[name] = {key: _of_grammar(one) for key, one in value.items()}
        elif name in ("anyOf", "allOf") and isinstance(value, list):
            kept[name] = [_of_grammar(one) for one in value]
        elif name == "items" and isinstance(value, dict):
            kept[name] = _of_grammar(value)
        elif _is_of_grammar(name, value, schema):
            kept[name] = value
        elif name not in _WITHOUT_MEANING or isinstance(value, dict):
            rest[name] = value
    if isinstance(rest.get("oneOf"), list) and kept.keys().isdisjoint(_ALTERNATIVES):
        kept["anyOf"] = [_of_grammar(one) for one in rest.pop("oneOf")]
    if len(kept.get("allOf", ())) == 1 and "anyOf" not in kept:
        kept["anyOf"] = kept.pop("allOf")  # which may not hold a reference
    if "$ref" in kept:
        return _with_reference(kept, rest)
    _close(kept, is_object="additionalProperties" in schema)
    return _with_words(kept, rest)


def _close(kept: dict[str, Any], *, is_object: bool) -> None:
    """Close the schema of an object. Alternatives beside it have the properties, and are closed."""
    has_alternatives = "anyOf" in kept or "allOf" in kept
    if "properties" in kept or (is_object and not has_alternatives):
        kept.setdefault("type", "object")
    if "object" not in _types(kept):
        return
    if has_alternatives and "properties" not in kept:
        del kept["type"]
        return
    kept.setdefault("properties", {})
    kept["additionalProperties"] = False


def _is_of_grammar(name: str, value: Any, schema: dict[str, Any]) -> bool:
    """Return True if a grammar has a keyword with this value."""
    match name:
        case "type" | "required" | "$ref" | "title" | "description":
            return True
        case "const":
            return not isinstance(value, dict | list)
        case "enum":
            return isinstance(value, list) and not any(isinstance(v, dict | list) for v in value)
        case "minItems":
            return value in (0, 1)
        case "format":
            return value in _FORMATS and "string" in _types(schema)
    return False


def _types(schema: dict[str, Any]) -> list[Any]:
    """Return the types of a schema."""
    stated = schema.get("type", [])
    return stated if isinstance(stated, list) else [stated]


def _with_reference(kept: dict[str, Any], rest: dict[str, Any]) -> dict[str, Any]:
    """Return a schema of a reference, which stands alone there, with all beside it in words."""
    defined = {name: kept.pop(name) for name in ("$defs", "definitions") if name in kept}
    reference = {"$ref": kept.pop("$ref")}
    kept.pop("title", None)
    if not kept and not rest:
        return defined | reference
    described = {"description": kept.pop("description")} if "description" in kept else {}
    return defined | _with_words({"anyOf": [reference], **described}, kept | rest)


def _with_words(kept: dict[str, Any], rest: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with its other constraints at the end of its description."""
    if rest:
        words = msgspec.json.encode(rest).decode()
        described = kept.get("description")
        kept["description"] = f"{described}\n\n{words}" if described else words
    return kept


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
