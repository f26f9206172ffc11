"""Reads the tools in a request, and finds those that its caller does not run itself, with the
permission that each needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from gateway.domain.policy.known_members import by_folded
from gateway.domain.policy.request_fields import (
    HOSTED_ENVIRONMENTS,
    OWN_TOOLS,
    UNKNOWN_TOOLS,
    is_hosted_tool,
)
from gateway.domain.request.request import HostedTool
from gateway.errors import InvalidRequest
from gateway.wire.json_bounds import MAX_VALUES, check_values
from gateway.wire.members import MalformedJson, decode_members, locate
from gateway.wire.openai.request.hosted import argument_in, hosted_tool
from gateway.wire.openai.request.member_names import refuse_variant
from gateway.wire.openai.request.needs import JudgeTool

# The members of OpenAI's function, custom and namespace tools, and the cache mark that Anthropic's
# clients add.
_TOOL_MEMBERS = frozenset(
    {
        "type",
        "function",
        "custom",
        "name",
        "description",
        "parameters",
        "strict",
        "output_schema",
        "format",
        "tools",
        "defer_loading",
        "allowed_callers",
        "cache_control",
    }
)
_NAMED = by_folded([*_TOOL_MEMBERS, "environment", "container"])

_WITH_TOOLS = OWN_TOOLS | {"namespace"}  # the caller runs them: no argument has a fee

MAX_TOOLS = 1024  # tools in namespaces count too; OpenAI accepts 128

_decode_list = msgspec.json.Decoder(list[msgspec.Raw] | None).decode


def read_tools(value: msgspec.Raw) -> list[dict[str, Any]]:
    """Return the relevant members of each tool in the member `tools`; values that do not matter are
    None.

    Raises `InvalidRequest` if the value is not a list of objects, or if a tool could be read in two
    ways.
    """
    check_values("tools", bytes(value), most=MAX_VALUES)
    tools: list[dict[str, Any]] = []
    count = 0
    for encoded in _listed(value):
        tool = _read_tool(bytes(encoded), in_namespace=False)
        tools.append(tool)
        count += 1 + len(tool.get("tools") or ())
        if count > MAX_TOOLS:
            raise _too_many()
    return tools


def features_of_tools(tools: object, judge: JudgeTool) -> Iterator[tuple[str, HostedTool]]:
    """Yield the feature of each tool in a request that the caller does not run itself, and the
    tool, as the judge of its dialect decides.

    A namespace contains tools; a namespace inside another one is unknown.
    """
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        is_namespace = isinstance(tool, Mapping) and tool.get("type") == "namespace"
        inside = tool.get("tools") if is_namespace else None
        for one in inside if isinstance(inside, list) else (tool,):
            if (found := judge(one)) is not None:
                feature, where = found
                place = None if isinstance(inside, list) else index
                yield feature, hosted_tool(one, where=where, index=place)


def feature_of(tool: object) -> tuple[str, str] | None:
    """Return the feature that one tool needs and its place; None if the caller runs it."""
    if not isinstance(tool, Mapping):
        return UNKNOWN_TOOLS, "tools"
    kind = tool.get("type")
    names = [name for name in (kind, *tool) if isinstance(name, str) and is_hosted_tool(name)]
    environment = tool.get("environment")
    if names:
        return "hosted_tools", f"tools: {names[0][:64]}"
    if isinstance(environment, Mapping) and environment.get("type") in HOSTED_ENVIRONMENTS:
        return "hosted_tools", f"tools: {environment['type']}"
    if (
        isinstance(kind, str)
        and kind in OWN_TOOLS
        and "tools" not in tool
        and tool.keys() <= _TOOL_MEMBERS
    ):
        return None
    place = environment.get("type") if isinstance(environment, Mapping) else None
    shown = place if isinstance(place, str) and place != "local" else kind
    return UNKNOWN_TOOLS, f"tools: {str(shown)[:64]}"


def _read_tool(tool: bytes, *, in_namespace: bool) -> dict[str, Any]:
    """Return the members of one tool in a request; only the relevant ones are decoded."""
    if not tool.startswith(b"{"):
        raise _wrong_type("each tool is an object")
    members = decode_members(tool)
    try:
        locate(tool, members)
    except MalformedJson as broken:
        raise InvalidRequest(
            f"A tool could be read in two ways: {broken}. Nothing was sent. Name each member once.",
            param="tools",
        ) from None
    read: dict[str, Any] = dict.fromkeys(members)
    kind = msgspec.json.decode(members["type"]) if "type" in members else None
    is_own = isinstance(kind, str) and kind in _WITH_TOOLS
    for name, value in members.items():
        refuse_variant(name, _NAMED, where="A tool")
        if name == "tools" and not in_namespace:
            read[name] = [_read_tool(bytes(inner), in_namespace=True) for inner in _listed(value)]
        elif name in ("type", "environment", "container"):
            read[name] = msgspec.json.decode(value)
        elif not is_own and name != "tools":
            read[name] = argument_in(value)
    return read


def _listed(value: msgspec.Raw) -> list[msgspec.Raw]:
    """Return the items of a list of tools. Raises `InvalidRequest` if it is no list or too long."""
    try:
        listed = _decode_list(value) or []
    except msgspec.ValidationError:
        raise _wrong_type("it is a list") from None
    if len(listed) > MAX_TOOLS:
        raise _too_many()
    return listed


def _too_many() -> InvalidRequest:
    """Return the error for a request with more tools than are read."""
    return InvalidRequest(
        f"'tools' has more than {MAX_TOOLS:,} tools. Nothing was sent. Send fewer.", param="tools"
    )


def _wrong_type(what: str) -> InvalidRequest:
    """Return the error for `tools` of the wrong type."""
    return InvalidRequest(f"'tools' has the wrong type: {what}. Nothing was sent.", param="tools")
