"""Reads which tools of a request its provider may run, and the members that bound their rounds, for
every dialect.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gateway.domain.policy.request_fields import (
    FEATURE_OF_MEMBER,
    MOST_TOOL_NAME_CHARS,
    ROUND_LIMITS,
    folded_tool,
    is_hosted_tool,
)
from gateway.domain.providers.hosted_tools import ANY_SIZE, CODE_INTERPRETER, CONTAINER_SIZES
from gateway.domain.providers.tool_arguments import fee_arguments
from gateway.domain.request.request import HostedTool

HOSTED_TOOLS = "hosted_tools"
MAX_USES = "max_uses"
_MOST_ARGUMENT_BYTES = 4096
_decode_count = msgspec.json.Decoder(int).decode


def hosted_tool(
    tool: object, *, where: str, index: int | None, most_uses: int | None = None
) -> HostedTool:
    """Return a tool of the list `tools` that its caller may not run itself."""
    name = _name_of(tool)
    return HostedTool(
        name=name,
        where=where,
        index=index,
        most_uses=most_uses,
        arguments=fee_arguments(name, where.rpartition(": ")[2], tool)
        if isinstance(tool, Mapping)
        else (),
    )


def hosted_member(name: str, value: msgspec.Raw) -> HostedTool | None:
    """Return the tool that a member of the request is; None for another member."""
    if FEATURE_OF_MEMBER.get(name) != HOSTED_TOOLS:
        return None
    folded, found = folded_tool(name), argument_in(value)
    inside = found if isinstance(found, list) else [found]
    arguments = [
        one
        for part in inside
        for one in fee_arguments(folded, name, part if isinstance(part, Mapping) else {"": part})
    ]
    return HostedTool(name=folded, where=name, member=name, arguments=tuple(arguments))


def argument_in(value: msgspec.Raw) -> object:
    """Return the value of a tool's argument; an empty text for one that is too long to read, or
    cannot be read.
    """
    encoded = bytes(value)
    if len(encoded) > _MOST_ARGUMENT_BYTES:
        return ""
    try:
        return msgspec.json.decode(encoded)
    except msgspec.DecodeError:
        return ""


def round_limits(members: Mapping[str, msgspec.Raw]) -> tuple[tuple[str, int], ...]:
    """Return the request's members that bound the rounds of hosted tools, with their numbers; -1
    for any other value that is not null.
    """
    found = []
    for name in ROUND_LIMITS:
        value = members.get(name)
        if value is not None and bytes(value) != b"null":
            count = count_in(value)
            found.append((name, -1 if count is None else count))
    return tuple(found)


def count_in(value: msgspec.Raw) -> int | None:
    """Return a whole number, None for any other value."""
    try:
        return _decode_count(value)
    except msgspec.DecodeError:
        return None


def _name_of(tool: object) -> str:
    """Return the folded type of a tool: of its environment if the provider runs that, else its own,
    else the member by which it is known; empty if it has none.
    """
    if not isinstance(tool, Mapping):
        return ""
    environment, kind = tool.get("environment"), tool.get("type")
    if isinstance(environment, Mapping):
        place = environment.get("type")
        if isinstance(place, str) and place != "local":
            return folded_tool(place[:MOST_TOOL_NAME_CHARS])
    if isinstance(kind, str):
        name = folded_tool(kind[:MOST_TOOL_NAME_CHARS])
        return name + _size_of(tool.get("container")) if name == CODE_INTERPRETER else name
    named = next((name for name in tool if isinstance(name, str) and is_hosted_tool(name)), "")
    return folded_tool(named[:MOST_TOOL_NAME_CHARS])


def _size_of(container: object) -> str:
    """Return the size of a code interpreter's container as a part of the tool's name: empty for
    the standard one, and that of any size for one that the request does not state.
    """
    limit = container.get("memory_limit") if isinstance(container, Mapping) else None
    if container is None or (isinstance(container, Mapping) and limit in (None, "1g")):
        return ""
    return limit if isinstance(limit, str) and limit in CONTAINER_SIZES else ANY_SIZE
