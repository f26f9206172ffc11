"""Sets in a request the members that bound the rounds of its provider's tools, and leaves out tools
whose rounds have no bound; all other bytes stay.

It serves each dialect whose tools stand in a list `tools`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.domain.policy.request_fields import OWN_TOOLS
from gateway.domain.providers.hosted_tools import RoundLimit
from gateway.domain.request.request import RequestBody
from gateway.domain.request.rounds import Rounds
from gateway.wire.members import cut, decode_members, locate
from gateway.wire.members import replace as replaced

_encode = msgspec.json.Encoder().encode
TOOLS, TOOL_CHOICE = "tools", "tool_choice"
# Members that a provider refuses without any tool.
_NEED_TOOLS = (TOOL_CHOICE, "parallel_tool_calls")
# Choices that name no tool of the provider.
_KEPT_CHOICES = OWN_TOOLS | {"auto", "any", "none"}


class _Named(msgspec.Struct):
    """The type and the name of a tool, or of the choice of one."""

    type: Any = None
    name: Any = None


def with_rounds(read: RequestBody, rounds: Rounds) -> RequestBody:
    """Return the request with the bounds of its rounds, and without the tools that are left out.

    A `tool_choice` that names such a tool goes with it.
    """
    values: dict[str, Any] = dict(rounds.members)
    dropped = [one.member for one in rounds.left_out if one.member is not None]
    left_out = {one.index for one in rounds.left_out if one.index is not None}
    if left_out or rounds.uses:
        tools = _listed(read)
        kept = _bounded(tools, dict(rounds.uses), left_out)
        if kept:
            values[TOOLS] = msgspec.Raw(b"[" + b",".join(kept) + b"]")
            if left_out and _is_for(read, [tools[index] for index in left_out]):
                dropped.append(TOOL_CHOICE)
        else:
            dropped += [TOOLS, *_NEED_TOOLS]
    body = replaced(
        read.body,
        [(read.members.get(name), _encode(name), _encode(value)) for name, value in values.items()],
    )
    for name in dropped:  # one by one, because each shifts the others
        if (place := locate(body).get(name)) is not None:
            body = cut(body, place)
    return RequestBody(read.facts, body, locate(body))


def _listed(read: RequestBody) -> list[bytes]:
    """Return the tools of a request, each encoded."""
    place = read.members[TOOLS]
    encoded = read.body[place.start : place.end]
    return [bytes(one) for one in msgspec.json.decode(encoded, type=list[msgspec.Raw])]


def _bounded(tools: list[bytes], uses: dict[int, int], left_out: set[int]) -> list[bytes]:
    """Return the tools that are sent, each with the bound of its calls."""
    return [
        _with_uses(tool, uses[index]) if index in uses else tool
        for index, tool in enumerate(tools)
        if index not in left_out
    ]


def _with_uses(tool: bytes, most: int) -> bytes:
    """Return a tool with the bound of its calls."""
    members: dict[str, Any] = dict(decode_members(tool))
    members[RoundLimit.MAX_USES.value] = most
    return _encode(members)


def _is_for(read: RequestBody, left_out: list[bytes]) -> bool:
    """Return True if the request's choice of a tool may be for one that is left out."""
    place = read.members.get(TOOL_CHOICE)
    encoded = b"" if place is None else read.body[place.start : place.end]
    if not encoded.startswith(b"{"):
        return False
    choice = msgspec.json.decode(encoded, type=_Named)
    if choice.type == "tool":  # Anthropic's, by its name
        return any(msgspec.json.decode(one, type=_Named).name == choice.name for one in left_out)
    return choice.type not in _KEPT_CHOICES
