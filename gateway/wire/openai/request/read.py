"""Reads an OpenAI request body's facts and member positions, and prepares the body for an upstream
by splices.

Only the few fields that decide, bound or attribute a request are read. All other bytes reach the
upstream unchanged; `prepare` splices in only the changes that docs/decisions/0002 lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import structs

from gateway.domain.operation import PAIRING, Operation
from gateway.domain.policy.known_members import KNOWN_MEMBERS, SCORING_MEMBERS, by_folded
from gateway.domain.policy.request_fields import (
    FEATURE_OF_MEMBER,
    UNKNOWN_FIELDS,
    tier_feature,
)
from gateway.domain.providers.unasked import PREVIOUS
from gateway.domain.request.request import HostedTool, RequestBody, RequestFacts
from gateway.errors import InvalidRequest
from gateway.wire import json_bounds
from gateway.wire.members import MalformedJson, decode_members, locate, replace
from gateway.wire.openai.request import media, member_names
from gateway.wire.openai.request.fast_path import PROMPTS, Fields, is_text, read_plain
from gateway.wire.openai.request.hosted import round_limits
from gateway.wire.openai.request.needs import SIZES, Needs
from gateway.wire.openai.request.size import (
    OTHER_CHOICES,
    PROMPTS_IN,
    calls_undeclared,
    choices_of,
    grown_size,
    size_of,
)
from gateway.wire.openai.request.tools import feature_of, features_of_tools, read_tools
from gateway.wire.openai.request.unlisted_parts import unlisted_parts
from gateway.wire.widened_text import may_grow

MAX_CACHE_KEY_BYTES = 1024
MAX_UNKNOWN_SHOWN = 3
LOOKED_AT_BYTES = 64  # of an input, to check whether it is empty
SCORING = KNOWN_MEMBERS | SCORING_MEMBERS
_NULL = b"null"
_OTHER_INPUTS = frozenset(PROMPTS_IN[Operation.EMBEDDINGS]) - {"input"}
_STREAMING = frozenset({Operation.CHAT, Operation.COMPLETIONS, Operation.RESPONSES})


class _Format(msgspec.Struct):
    type: str | None = None


class _TextFormat(msgspec.Struct):
    format: _Format | None = None


# Objects with a member that matters to the gateway; anything deeper is a schema and may be
# anything.
_OBJECTS = {
    "stream_options": by_folded(["include_usage", "continuous_usage_stats"]),
    "response_format": by_folded(["type"]),
    "text": by_folded(["format"]),
}
_NONE: frozenset[str] = frozenset()
# The members that `Fields` reads, for bodies so large that skipping the other members costs time.
_READ = frozenset(Fields.__struct_fields__)

_encode = msgspec.json.Encoder().encode
_quoted = lru_cache(_encode)  # the few names that `prepare` gets
_decode_fields = msgspec.json.Decoder(Fields).decode
_decode_format = msgspec.json.Decoder(_Format | None).decode
_decode_text = msgspec.json.Decoder(_TextFormat | None).decode


def read_request(operation: Operation, body: bytes) -> RequestBody:
    """Return a request body with its facts and the positions of its members.

    Raises `InvalidRequest` with the field and the fix.
    """
    try:
        return _read(operation, body)
    except MalformedJson as broken:
        raise InvalidRequest(
            f"The body is not a valid JSON object: {broken}. Nothing was sent."
        ) from None
    except msgspec.DecodeError as broken:  # an unexpected type, or a number beyond every type
        raise _wrong_type(str(broken)) from None


def _read(operation: Operation, body: bytes) -> RequestBody:
    """Return a request body with its facts and positions. Raises `InvalidRequest`, or the decoder's
    own errors.
    """
    is_large = len(body) >= json_bounds.LARGE_BYTES
    if is_large:
        json_bounds.check_large(body)
    members = decode_members(body)
    plain = read_plain(operation, body, members)
    if plain is None:
        member_names.check_names(members)
        member_names.check_sizes(members)
    places = locate(body, members)
    fields = plain or _decode_fields(_read_part(members) if is_large else body)
    if not fields.model:
        raise InvalidRequest("'model' is empty. GET /v1/models lists your models.", param="model")
    capabilities, features = _NONE, _NONE
    named: tuple[tuple[str, str], ...] = ()
    is_sized = True
    if plain is None:
        needs = _needs(operation, fields, members)
        capabilities, features = frozenset(needs.capabilities), frozenset(needs.features)
        named, is_sized = tuple(needs.features.items()), needs.is_sized
    # After the bounds on the body's values: this searches the whole body for words.
    choices = choices_of(fields.n, fields.best_of, members.get(OTHER_CHOICES))
    size = size_of(operation, members, choices=choices)
    options = fields.stream_options or {}
    facts = RequestFacts(
        operation=operation,
        model=fields.model,
        is_stream=bool(fields.stream) and operation in _STREAMING,
        wants_usage=bool(options.get("include_usage")) or operation is Operation.RESPONSES,
        wants_running_usage=bool(options.get("continuous_usage_stats")),
        output_bound_tokens=size.most_tokens or None,
        choices=choices,
        capabilities=capabilities,
        features=features,
        named=named,
        end_user=(fields.safety_identifier or fields.user or "")[:256] or None,
        body_bytes=len(body),
        prompts=size.prompts,
        expansion_tokens=size.expansion_tokens if is_sized else None,
        predicted_bytes=size.predicted_bytes,
        grown=grown_size(operation, body, size, is_sized=is_sized) if may_grow(body) else None,
        cache_key=_cache_key(members["prompt_cache_key"])
        if "prompt_cache_key" in members
        else None,
        previous_response=_previous_response(members)
        if "previous_response_id" in members and operation is Operation.RESPONSES
        else None,
    )
    if plain is None:
        facts = _with_needs(facts, needs, members)
    if size.expansion_tokens and calls_undeclared(operation, members):
        facts = structs.replace(facts, calls_undeclared=True)
    return RequestBody(facts, body, places)


def _with_needs(
    facts: RequestFacts, needs: Needs, members: Mapping[str, msgspec.Raw]
) -> RequestFacts:
    """Return the facts of a request with those that a plain one has not."""
    if parts := unlisted_parts(members):
        facts = structs.replace(facts, unlisted_parts=parts)
    if not needs.is_unusual:
        return facts
    return structs.replace(
        facts,
        hosted=tuple(needs.hosted),
        round_limits=round_limits(members) if needs.hosted else (),
        cache_lifetimes=frozenset(needs.lifetimes),
        has_files=needs.has_files,
        stored=frozenset(needs.stored),
        sound=needs.sound,
        maybe_sound=needs.maybe_sound,
        unbounded=frozenset(needs.unbounded),
        thinking=needs.thinking,
    )


def prepare(read: RequestBody, values: Mapping[str, Any], *, dropped: Iterable[str] = ()) -> bytes:
    """Return the body for an upstream: top-level members set to `values`, without those in
    `dropped`; the rest is unchanged.
    """
    return replace(
        read.body,
        [(read.members.get(name), _quoted(name), _encode(value)) for name, value in values.items()],
        [read.members[name] for name in dropped],
    )


def stream_options(read: RequestBody, **wanted: bool) -> dict[str, Any]:
    """Return the caller's `stream_options` with the gateway's own on top."""
    place = read.members.get("stream_options")
    sent = msgspec.json.decode(read.body[place.start : place.end]) if place else None
    return {**(sent or {}), **wanted}


def is_empty_input(read: RequestBody) -> bool:
    """Return True if all embeddings inputs are empty texts, which may have no tokens."""
    place = read.members.get("input")
    if place is None or read.facts.operation is not Operation.EMBEDDINGS:
        return False
    if not read.members.keys().isdisjoint(_OTHER_INPUTS):
        return False
    return not read.body[place.start : min(place.end, place.start + LOOKED_AT_BYTES)].strip(
        b'[]", \t\r\n'
    )


def _read_part(members: Mapping[str, msgspec.Raw]) -> bytes:
    """Return a body with only the members that the gateway reads."""
    return _encode({name: members[name] for name in _READ & members.keys()})


def _cache_key(value: msgspec.Raw) -> str | None:
    """Return the caller's prompt cache key; None if it cannot name a session."""
    if memoryview(value).nbytes > MAX_CACHE_KEY_BYTES:
        return None
    key = msgspec.json.decode(value)
    return key if isinstance(key, str) else None


def _previous_response(members: Mapping[str, msgspec.Raw]) -> str | None:
    """Return the id of the stored response that a request continues, None for null. Raises
    `InvalidRequest`.
    """
    name = msgspec.json.decode(members["previous_response_id"])
    if name is not None and not isinstance(name, str):
        raise InvalidRequest(
            "'previous_response_id' is the text of a response's id. Nothing was sent.",
            param="previous_response_id",
        )
    return name


def _needs(operation: Operation, fields: Fields, members: Mapping[str, msgspec.Raw]) -> Needs:
    """Return the capabilities and permissions that a request needs, from its members' names, types
    and nested values.
    """
    needs = Needs(feature_of)
    known = SCORING if operation in PAIRING else KNOWN_MEMBERS
    _note_names(operation, members, needs, known=known)
    _note_values(operation, fields, members, needs)
    if "tools" in members:
        tools = read_tools(members["tools"])
        needs.note_marks_in(bytes(members["tools"]))
        if tools:
            needs.capabilities.add("tools")
        for feature, tool in features_of_tools(tools, feature_of):
            needs.note_tool(feature, tool)
    if "functions" in members:
        needs.capabilities.add("tools")
    for name, value in members.items():
        _note_nested(operation, name, value, needs)
    return needs


def _note_nested(operation: Operation, name: str, value: msgspec.Raw, needs: Needs) -> None:
    """Record the needs of a member's nested values; check only the depth of caller-defined ones."""
    encoded = bytes(value)
    if encoded[:1] not in (b"{", b"["):
        return
    if name in media.FREE_MEMBERS:
        json_bounds.check_depth(encoded)
    elif name not in PROMPTS[operation] or not is_text(value):
        media.note_needs(name, encoded, needs)


def _note_names(
    operation: Operation, members: Mapping[str, msgspec.Raw], needs: Needs, *, known: frozenset[str]
) -> None:
    """Record the permissions that the members' names need, and the names that are not known."""
    unknown = []
    for name, value in members.items():
        feature = FEATURE_OF_MEMBER.get(name)
        if feature is not None:
            if bytes(value) not in (_NULL, b"false"):
                needs.leave(feature, name)
                needs.note_member(name, value)
                if name == PREVIOUS and operation is not Operation.RESPONSES:
                    needs.stored.add(name)  # only the ids of responses are known to the ledger
        elif name not in known:
            unknown.append(name)
        if name in SIZES:
            needs.note_size(name, value)
    if unknown:
        needs.leave(UNKNOWN_FIELDS, ", ".join(name[:64] for name in unknown[:MAX_UNKNOWN_SHOWN]))


def _note_values(
    operation: Operation, fields: Fields, members: Mapping[str, msgspec.Raw], needs: Needs
) -> None:
    """Record the capabilities and permissions that the members' values need."""
    if fields.store:
        needs.leave("store", "store")
    prompt = bytes(members.get("prompt", _NULL))
    if prompt.startswith(b"{") or (operation is Operation.RESPONSES and prompt != _NULL):
        needs.leave("stored_state", "prompt")
        needs.hosted.append(HostedTool(name="prompt", where="prompt"))  # it may name tools
        needs.stored.add("prompt")
    if (
        fields.service_tier is not None
        and (feature := tier_feature(fields.service_tier)) is not None
    ):
        needs.leave(feature, "service_tier")
    if "audio" in (fields.modalities or ()):
        needs.leave("audio", "modalities")
    if (name := member_names.template_control(members)) is not None:
        needs.leave("engine_control", f"chat_template_kwargs: {name}")
    for name, named in _OBJECTS.items():
        if name in members:
            member_names.unambiguous_members(name, members[name], named)
    if member_names.has_compaction(members):
        # The maximum bounds "a response", and a compaction is a pass of its own with its own output
        # (OpenAI's description of 2026-08-21, CompactResource: 12,000 output tokens).
        needs.leave("other_maximum", "context_management: compaction")
    formats = (
        _decode_or_none(_decode_format, members.get("response_format")),
        getattr(_decode_or_none(_decode_text, members.get("text")), "format", None),
    )
    if any(wanted is not None and wanted.type == "json_schema" for wanted in formats):
        needs.capabilities.add("json_schema")


def _decode_or_none(decode: Any, value: msgspec.Raw | None) -> Any:
    """Return the decoded value; None if it is absent or of an unknown shape."""
    try:
        return decode(value) if value is not None else None
    except msgspec.DecodeError:
        return None  # an unknown shape: the upstream judges it


def _wrong_type(message: str) -> InvalidRequest:
    """Return an error for the caller from msgspec's "Expected `int | null`, got `str` - at
    `$.max_tokens`".
    """
    what, _, where = message.partition(" - at `$")
    param = where.rstrip("`").lstrip(".") or None
    if "missing required field" in what:
        return InvalidRequest(
            "'model' is missing. GET /v1/models lists your models.", param="model"
        )
    where_text = f"'{param}'" if param else "The body"
    return InvalidRequest(
        f"{where_text} has the wrong type: {what.replace('`', '')}. Nothing was sent.", param=param
    )
