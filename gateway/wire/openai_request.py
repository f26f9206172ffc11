"""OpenAI request bodies: what the gateway reads of them and how it prepares them for an upstream.

Reads the few fields that decide, bound or attribute a request. All other bytes reach the upstream as they
came; `prepare` splices in what docs/decisions/0002 names and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from gateway.domain.policy import Operation
from gateway.domain.request import Ask
from gateway.domain.request_fields import FEATURE_OF_MEMBER, HOSTED_TOOL_PREFIXES, tier_feature
from gateway.errors import InvalidRequest
from gateway.wire.members import MalformedJson, Member, decode_members, locate, replace
from gateway.wire.request_size import choices_of, size_of

MAX_NESTED_ITEMS = 100_000
_NULL = b"null"
_STREAMING = frozenset({Operation.CHAT, Operation.COMPLETIONS, Operation.RESPONSES})


class ReadBody(msgspec.Struct, frozen=True, gc=False):
    """A request body with what was understood of it and where its members stand."""

    ask: Ask
    body: bytes
    members: Mapping[str, Member]


class _Fields(msgspec.Struct):
    """The members whose types matter on every endpoint; `request_size` reads the maxima."""

    model: str
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    n: int | None = None
    best_of: int | None = None
    user: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    modalities: list[str] | None = None
    tools: list[dict[str, Any]] | None = None
    prompt_cache_key: Any = None  # of whatever type: the upstream judges it


class _Format(msgspec.Struct):
    type: str | None = None


class _TextFormat(msgspec.Struct):
    format: _Format | None = None


# A body with none of these members needs no capability and no leave, but for what its messages hold.
_NOTEWORTHY = frozenset(
    {
        *FEATURE_OF_MEMBER, "tools", "functions", "response_format", "text", "store", "prompt", "service_tier",
        "modalities",
    }
)  # fmt: skip
_NONE: frozenset[str] = frozenset()

_encode = msgspec.json.Encoder().encode
_quoted = lru_cache(_encode)  # the few names that `prepare` is given
_decode_fields = msgspec.json.Decoder(_Fields).decode
_decode_format = msgspec.json.Decoder(_Format | None).decode
_decode_text = msgspec.json.Decoder(_TextFormat | None).decode


def read_request(operation: Operation, body: bytes) -> ReadBody:
    """Understand a request body. Raises `InvalidRequest` naming the field and what to write instead."""
    try:
        members = decode_members(body)
        places = locate(body, members)
        fields = _decode_fields(body)
    except MalformedJson as broken:
        raise InvalidRequest(f"The body is not a valid JSON object: {broken}. Nothing was sent.") from None
    except msgspec.ValidationError as broken:
        raise _wrong_type(str(broken)) from None
    if not fields.model:
        raise InvalidRequest("'model' is empty. GET /v1/models lists what you may ask for.", param="model")
    choices = choices_of(fields.n, fields.best_of)
    size = size_of(operation, members, choices=choices)
    capabilities, features = _media(operation, members)
    if not _NOTEWORTHY.isdisjoint(members):
        capabilities |= _capabilities(fields, members)
        features |= _features(operation, fields, members)
    options = fields.stream_options or {}
    ask = Ask(
        operation=operation,
        model=fields.model,
        is_stream=bool(fields.stream) and operation in _STREAMING,
        wants_usage=bool(options.get("include_usage")) or operation is Operation.RESPONSES,
        wants_running_usage=bool(options.get("continuous_usage_stats")),
        output_bound_tokens=size.most_tokens or None,
        choices=choices,
        capabilities=capabilities,
        features=features,
        end_user=(fields.safety_identifier or fields.user or "")[:256] or None,
        body_bytes=len(body),
        prompts=size.prompts,
        expansion_tokens=size.expansion_tokens,
        predicted_bytes=size.predicted_bytes,
        cache_key=fields.prompt_cache_key if type(fields.prompt_cache_key) is str else None,
    )
    return ReadBody(ask, body, places)


def prepare(read: ReadBody, values: Mapping[str, Any], *, dropped: Iterable[str] = ()) -> bytes:
    """Return the body with top-level members set to `values`, without those in `dropped`; the rest as it came."""
    return replace(
        read.body,
        [(read.members.get(name), _quoted(name), _encode(value)) for name, value in values.items()],
        [read.members[name] for name in dropped],
    )


def stream_options(read: ReadBody, **wanted: bool) -> dict[str, Any]:
    """The caller's `stream_options` with ours on top."""
    place = read.members.get("stream_options")
    sent = msgspec.json.decode(read.body[place.start : place.end]) if place else None
    return {**(sent or {}), **wanted}


def _capabilities(fields: _Fields, members: Mapping[str, msgspec.Raw]) -> set[str]:
    found = set()
    if fields.tools or "functions" in members:
        found.add("tools")
    formats = (
        _decode_or_none(_decode_format, members.get("response_format")),
        getattr(_decode_or_none(_decode_text, members.get("text")), "format", None),
    )
    if any(wanted is not None and wanted.type == "json_schema" for wanted in formats):
        found.add("json_schema")
    return found


def _features(operation: Operation, fields: _Fields, members: Mapping[str, msgspec.Raw]) -> set[str]:
    found = {
        feature
        for member, feature in FEATURE_OF_MEMBER.items()
        if member in members and bytes(members[member]) not in (_NULL, b"false")
    }
    if fields.store:
        found.add("store")
    if operation is Operation.RESPONSES and bytes(members.get("prompt", _NULL)) != _NULL:
        found.add("stored_state")
    if any(str(tool.get("type", "")).startswith(HOSTED_TOOL_PREFIXES) for tool in fields.tools or ()):
        found.add("hosted_tools")
    if fields.service_tier is not None and (feature := tier_feature(fields.service_tier)) is not None:
        found.add(feature)
    if "audio" in (fields.modalities or ()):
        found.add("audio")
    return found


def _media(operation: Operation, members: Mapping[str, msgspec.Raw]) -> tuple[frozenset[str], frozenset[str]]:
    """Capabilities and features that parts of messages need: images, files, addresses to fetch."""
    encoded = members.get("input" if operation is Operation.RESPONSES else "messages")
    if encoded is None or not _may_hold_media(bytes(encoded)):
        return _NONE, _NONE
    capabilities: set[str] = set()
    features: set[str] = set()
    for key, value in _walk(msgspec.json.decode(encoded)):
        if key in ("image_url", "input_image", "video_url"):
            capabilities.add("vision")
        if key in ("input_audio", "audio_url"):
            features.add("audio")
        if key == "file_id":
            features.add("stored_state")
        if key.endswith("_url") and _is_remote(value):
            features.add("remote_media")
    return frozenset(capabilities), frozenset(features)


def _may_hold_media(messages: bytes) -> bool:
    """Only where one of these stands can messages hold media or files; \\u could spell any of them.

    Each of them has an underscore. To look for one letter takes a hundredth of the time of looking for a word, and half
    of that with `find`: `in` would make an exception and drop it (Python 3.11).
    """
    if messages.find(b"\\") >= 0 and b"\\u" in messages:
        return True
    return messages.find(b"_") >= 0 and (b"_url" in messages or b"input_" in messages or b'"file_id' in messages)


def _walk(content: Any) -> list[tuple[str, Any]]:
    """Every (member, value) below a decoded value, without recursion."""
    found: list[tuple[str, Any]] = []
    todo = [content]
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            found.extend(item.items())
            todo.extend(item.values())
        elif isinstance(item, list):
            todo.extend(item)
        if len(found) > MAX_NESTED_ITEMS:
            raise InvalidRequest(f"The messages hold more than {MAX_NESTED_ITEMS} values. Send fewer.")
    return found


def _is_remote(value: Any) -> bool:
    address = value.get("url") if isinstance(value, dict) else value
    return isinstance(address, str) and not address.lstrip().lower().startswith("data:")


def _decode_or_none(decode: Any, value: msgspec.Raw | None) -> Any:
    try:
        return decode(value) if value is not None else None
    except msgspec.DecodeError:
        return None  # a shape of tomorrow: the upstream judges it


def _wrong_type(message: str) -> InvalidRequest:
    """msgspec says "Expected `int | null`, got `str` - at `$.max_tokens`"; say it for the caller."""
    what, _, where = message.partition(" - at `$")
    param = where.rstrip("`").lstrip(".") or None
    if "missing required field" in what:
        return InvalidRequest("'model' is missing. GET /v1/models lists what you may ask for.", param="model")
    where_text = f"'{param}'" if param else "The body"
    return InvalidRequest(f"{where_text} has the wrong type: {what.replace('`', '')}. Nothing was sent.", param=param)
