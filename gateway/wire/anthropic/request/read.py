"""Reads the facts and member positions of a request body of Anthropic's messages, and prepares it
for an upstream by splices.

All bytes reach the upstream unchanged but for the spliced members, so that cache marks and the
signatures of thinking stay valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from gateway.domain.operation import Operation
from gateway.domain.policy.known_members import KNOWN_MEMBERS, by_folded
from gateway.domain.policy.request_fields import (
    FEATURE_OF_MEMBER,
    UNKNOWN_FIELDS,
    tier_feature,
)
from gateway.domain.providers.unasked import PREVIOUS
from gateway.domain.request.request import RequestBody, RequestFacts
from gateway.errors import InvalidRequest
from gateway.wire import json_bounds
from gateway.wire.anthropic.request.size import (
    calls_undeclared,
    expansion,
    own_maximum,
    size_of_body,
)
from gateway.wire.anthropic.request.tools import Tools, feature_of, read_tools
from gateway.wire.members import MalformedJson, decode_members, locate
from gateway.wire.openai.request import media, member_names
from gateway.wire.openai.request.hosted import round_limits
from gateway.wire.openai.request.needs import SIZES, Needs
from gateway.wire.openai.request.unlisted_parts import unlisted_parts
from gateway.wire.widened_text import grown_sizes, may_grow

MAX_UNKNOWN_SHOWN = 3
MAX_USER_CHARS = 256
_NULL = b"null"
# Anthropic's `standard_only` asks for the standard tier, and `auto` for a capacity bought before.
_STANDARD_TIERS = frozenset({"auto", "standard_only"})
# Members whose own members matter, with these. Any other spelling of one is refused.
_OBJECTS: Mapping[str, Mapping[str, str]] = {
    "metadata": by_folded(["user_id"]),
    "output_config": by_folded(["format", "effort"]),
    "output_format": by_folded(["type", "schema"]),
    "thinking": by_folded(["type", "budget_tokens", "display"]),
    "tool_choice": by_folded(["type", "name", "disable_parallel_tool_use"]),
    "diagnostics": by_folded(["previous_message_id"]),
}


class _Fields(msgspec.Struct):
    """The members whose types matter."""

    model: str
    stream: bool | None = None
    service_tier: str | None = None
    speed: str | None = None


_decode_fields = msgspec.json.Decoder(_Fields).decode
_encode = msgspec.json.Encoder().encode
_READ = frozenset(_Fields.__struct_fields__)


def read_request(body: bytes) -> RequestBody:
    """Return the body of a messages request with its facts and the positions of its members.

    Raises `InvalidRequest` with the field and the fix.
    """
    try:
        return _read(body)
    except MalformedJson as broken:
        raise InvalidRequest(
            f"The body is not a valid JSON object: {broken}. Nothing was sent."
        ) from None
    except msgspec.DecodeError as broken:  # an unexpected type, or half a surrogate pair
        raise _wrong_type(str(broken)) from None


def _read(body: bytes) -> RequestBody:
    """Return a request body with its facts and positions. Raises `InvalidRequest` or
    `MalformedJson`.
    """
    if len(body) >= json_bounds.LARGE_BYTES:
        json_bounds.check_large(body)
    members = decode_members(body)
    member_names.check_names(members)
    member_names.check_sizes(members)
    places = locate(body, members)
    fields = _fields_of(members)
    if "messages" not in members:
        raise InvalidRequest("'messages' is missing. Nothing was sent.", param="messages")
    needs = Needs(feature_of)
    objects = _objects_in(members)
    tools = None
    if "tools" in members:
        tools = read_tools(members["tools"])
        needs.note_marks_in(bytes(members["tools"]))
    _note_names(members, needs)
    _note_values(fields, members, objects, needs)
    _note_tools(tools, needs)
    for name, value in members.items():
        _note_nested(name, value, needs)
    most_tokens = own_maximum(members)
    more_tokens = expansion(members, tools)
    facts = RequestFacts(
        operation=Operation.MESSAGES,
        model=fields.model,
        is_stream=bool(fields.stream),
        wants_usage=True,
        wants_running_usage=False,
        output_bound_tokens=most_tokens,
        choices=1,
        capabilities=frozenset(needs.capabilities),
        features=frozenset(needs.features),
        named=tuple(needs.features.items()),
        end_user=_end_user(objects.get("metadata", {})),
        body_bytes=len(body),
        expansion_tokens=more_tokens if needs.is_sized else None,
        calls_undeclared=bool(more_tokens) and calls_undeclared(members, tools),
        hosted=tuple(needs.hosted),
        cache_lifetimes=frozenset(needs.lifetimes),
        has_files=needs.has_files,
        stored=frozenset(needs.stored),
        sound=needs.sound,
        maybe_sound=needs.maybe_sound,
        unbounded=frozenset(needs.unbounded),
        thinking=needs.thinking,
        round_limits=round_limits(members) if needs.hosted else (),
        unlisted_parts=unlisted_parts(members),
        grown=grown_sizes(body, partial(size_of_body, tools=tools, is_sized=needs.is_sized))
        if may_grow(body)
        else None,
    )
    return RequestBody(facts, body, places)


def _fields_of(members: Mapping[str, msgspec.Raw]) -> _Fields:
    """Return the members whose types matter. Raises `msgspec.DecodeError` for a wrong type."""
    fields = _decode_fields(_encode({name: members[name] for name in _READ & members.keys()}))
    if not fields.model:
        raise InvalidRequest("'model' is empty. GET /v1/models lists your models.", param="model")
    return fields


def _objects_in(
    members: Mapping[str, msgspec.Raw],
) -> dict[str, Mapping[str, msgspec.Raw]]:
    """Return the members of the small objects that matter.

    Raises `InvalidRequest` for an object that could be read in two ways, or is too large.
    """
    found = {}
    for name, named in _OBJECTS.items():
        if name in members:
            found[name] = member_names.unambiguous_members(name, members[name], named)
    return found


def _note_names(members: Mapping[str, msgspec.Raw], needs: Needs) -> None:
    """Record the permissions that the members' names need, and the unknown names."""
    unknown = []
    for name, value in members.items():
        feature = FEATURE_OF_MEMBER.get(name)
        if feature is not None:
            if bytes(value) not in (_NULL, b"false"):
                needs.leave(feature, name)
                needs.note_member(name, value)
                if name == PREVIOUS:
                    needs.stored.add(name)  # only the ids of responses are known to the ledger
        elif name not in KNOWN_MEMBERS:
            unknown.append(name)
        if name in SIZES:
            needs.note_size(name, value)
    if unknown:
        needs.leave(UNKNOWN_FIELDS, ", ".join(name[:64] for name in unknown[:MAX_UNKNOWN_SHOWN]))


def _note_values(
    fields: _Fields,
    members: Mapping[str, msgspec.Raw],
    objects: Mapping[str, Mapping[str, msgspec.Raw]],
    needs: Needs,
) -> None:
    """Record the capabilities and permissions that the members' values need."""
    tier = fields.service_tier
    if tier is not None and tier not in _STANDARD_TIERS and (name := tier_feature(tier)):
        needs.leave(name, "service_tier")
    if fields.speed is not None and (name := tier_feature(fields.speed)) is not None:
        needs.leave(name, "speed")  # fast mode has prices of its own
    previous = objects.get("diagnostics", {}).get("previous_message_id")
    if previous is not None and bytes(previous) != _NULL:
        needs.leave("stored_state", "diagnostics: previous_message_id")
    if _is_there(objects.get("output_config", {}).get("format")) or _is_there(
        members.get("output_format")
    ):
        needs.capabilities.add("json_schema")
    if (argument := member_names.template_control(members)) is not None:
        needs.leave("engine_control", f"chat_template_kwargs: {argument}")
    if member_names.has_compaction(members):
        needs.leave("other_maximum", "context_management: compact")


def _note_tools(tools: Tools | None, needs: Needs) -> None:
    """Record the capabilities and permissions that the tools need."""
    if tools is None or not tools.count:
        return
    needs.capabilities.add("tools")
    for feature, tool in tools.features:
        needs.note_tool(feature, tool)
        if feature != "hosted_tools":
            needs.is_sized = False  # an unknown tool's definition stands at the provider


def _note_nested(name: str, value: msgspec.Raw, needs: Needs) -> None:
    """Record the needs of a member's nested values; check only the depth of caller-defined ones."""
    encoded = bytes(value)
    if encoded[:1] not in (b"{", b"["):
        return
    if name in media.FREE_MEMBERS:
        json_bounds.check_depth(encoded)
    else:
        media.note_needs(name, encoded, needs)


def _end_user(metadata: Mapping[str, msgspec.Raw]) -> str | None:
    """Return the end user that `metadata.user_id` names, None if it names none."""
    value = bytes(metadata.get("user_id", _NULL))
    if not value.startswith(b'"'):
        return None
    name: Any = msgspec.json.decode(value)
    return name[:MAX_USER_CHARS] or None


def _is_there(value: msgspec.Raw | None) -> bool:
    """Return True if a member was sent with a value other than null."""
    return value is not None and bytes(value) != _NULL


def _wrong_type(message: str) -> InvalidRequest:
    """Return an error for the caller from msgspec's "Expected `int | null`, got `str` - at
    `$.stream`".
    """
    what, _, where = message.partition(" - at `$")
    param = where.rstrip("`").lstrip(".") or None
    if "missing required field" in what:
        return InvalidRequest(
            "'model' is missing. GET /v1/models lists your models.", param="model"
        )
    return InvalidRequest(
        f"'{param or 'body'}' has the wrong type: {what.replace('`', '')}. Nothing was sent.",
        param=param,
    )
