"""Reads the tools in a request of Anthropic's messages: which ones its caller does not run itself,
and the bytes and tokens that they add to the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from gateway.domain.policy.known_members import by_folded
from gateway.domain.policy.request_fields import UNKNOWN_TOOLS, is_hosted_tool
from gateway.domain.request.request import HostedTool
from gateway.errors import InvalidRequest
from gateway.wire.json_bounds import MAX_VALUES, check_values
from gateway.wire.members import MalformedJson, decode_members, locate
from gateway.wire.openai.request.hosted import MAX_USES, argument_in, count_in, hosted_tool
from gateway.wire.openai.request.member_names import refuse_variant

MAX_TOOLS = 1024
# The members of a tool that its caller runs (anthropic 2.13.0, types/tool_param.py and the
# parameters of `bash`, `text_editor` and `memory`, 2026-11-24; of `computer`, anthropic 2.14.0,
# 2026-11-29).
_MEMBERS = frozenset(
    {
        "allowed_callers",
        "cache_control",
        "defer_loading",
        "description",
        "display_height_px",
        "display_number",
        "display_width_px",
        "eager_input_streaming",
        "enable_zoom",
        "input_examples",
        "input_schema",
        "max_characters",
        "name",
        "strict",
        "type",
    }
)
_NAMED = by_folded([*_MEMBERS, MAX_USES, "url", "mcp_server_name"])
# Tools that the model knows and its caller runs. Any other type needs a permission.
_OWN = re.compile(r"custom|(?:bash|computer|text_editor|memory)_[0-9]{8}")
# An advisor is another model, at its own price, whose tokens stand in no top-level count.
_OTHER_MODEL = "advisor"
# Anthropic writes the definition of a tool that the model knows into the prompt: `text_editor` has
# 700 tokens (public copies of platform.claude.com, text editor tool, 2026-11-24). That no other one
# is longer than 2,048 is not verified.
KNOWN_TOOL_TOKENS = 2048


class Tools(Struct, frozen=True):
    """The tools of a request.

    `features` are the needed permissions, each with its tool. `known` is the number of tools that
    the model knows without a schema.
    """

    count: int
    known: int
    features: tuple[tuple[str, HostedTool], ...]


def read_tools(value: msgspec.Raw) -> Tools:
    """Return the tools in the member `tools`.

    Raises `InvalidRequest` if the value is not a list of objects, or if a tool could be read in two
    ways.
    """
    check_values("tools", bytes(value), most=MAX_VALUES)
    try:
        listed = msgspec.json.decode(value, type=list[msgspec.Raw] | None) or []
    except msgspec.ValidationError:
        raise _wrong_type("it is a list") from None
    if len(listed) > MAX_TOOLS:
        raise InvalidRequest(
            f"'tools' has more than {MAX_TOOLS:,} tools. Nothing was sent. Send fewer.",
            param="tools",
        )
    tools = [_read_tool(bytes(encoded)) for encoded in listed]
    found = []
    for index, tool in enumerate(tools):
        if (feature := feature_of(tool)) is not None:
            name, where = feature
            uses: Any = tool.get(MAX_USES)
            # A tool without a type is the caller's own.
            kind = tool.get("type") or ("custom" if name == UNKNOWN_TOOLS else None)
            typed = {**tool, "type": kind}
            found.append((name, hosted_tool(typed, where=where, index=index, most_uses=uses)))
    known = sum(tool.get("type") not in (None, "custom") for tool in tools)
    return Tools(len(tools), known, tuple(found))


def feature_of(tool: object) -> tuple[str, str] | None:
    """Return the feature that one tool needs and its place; None if the caller runs it."""
    if not isinstance(tool, Mapping):
        return UNKNOWN_TOOLS, "tools"
    kind = tool.get("type")
    names = [name for name in (kind, *tool) if isinstance(name, str) and is_hosted_tool(name)]
    if names:
        return "hosted_tools", f"tools: {names[0][:64]}"
    if isinstance(kind, str) and kind.startswith(_OTHER_MODEL):
        return "rerouting", f"tools: {kind[:64]}"
    is_own = kind is None or (isinstance(kind, str) and _OWN.fullmatch(kind) is not None)
    if is_own and tool.keys() <= _MEMBERS:
        return None
    return UNKNOWN_TOOLS, f"tools: {str(kind)[:64]}"


def _read_tool(tool: bytes) -> dict[str, object]:
    """Return the members of one tool; only its type and its bound of calls are decoded."""
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
    for name in members:
        refuse_variant(name, _NAMED, where="A tool")
    read: dict[str, object] = dict.fromkeys(members)
    if "type" in members:
        read["type"] = msgspec.json.decode(members["type"])
    kind = read.get("type")
    if isinstance(kind, str) and _OWN.fullmatch(kind) is None:
        read |= {name: argument_in(value) for name, value in members.items() if name != "type"}
    if MAX_USES in members:
        read[MAX_USES] = count_in(members[MAX_USES])
    return read


def _wrong_type(what: str) -> InvalidRequest:
    """Return the error for `tools` of the wrong type."""
    return InvalidRequest(f"'tools' has the wrong type: {what}. Nothing was sent.", param="tools")
