"""Reads a caller's messages request into a neutral conversation.

Hints that change no answer elsewhere are left out: the clearing of earlier thoughts, which chat
templates do anyway, and the granularity of a tool's stream. Every other member that no neutral
value carries stays under its path. Sources: anthropic 2.13.0, types/*_param.py, 2026-11-24.
"""

from __future__ import annotations

import msgspec

from gateway.domain.request.request import RequestBody
from gateway.wire.anthropic.translation.caller_blocks import blocks_of, text_parts
from gateway.wire.translation.conversation import (
    Conversation,
    ConversationTurn,
    OutputFormat,
    Reasoning,
    Role,
    Sampling,
    TextPart,
    ToolChoice,
    ToolMode,
    ToolSpec,
)
from gateway.wire.translation.request_members import RequestMembers, wrong_type

# The caller's own names of neutral values.
_NAMES = {
    "stop": "stop_sequences",
    "user": "metadata.user_id",
    "turns": "messages",
    "most_tokens": "max_tokens",
    "output_format": "output_config.format",
    "reasoning": "thinking",
    "has_parallel_calls": "tool_choice.disable_parallel_tool_use",
    "call_id": "tool_use_id",
    "sealed": "redacted_thinking",
    "arguments": "input",
    "parameters": "input_schema",
}
_MODES = {
    "auto": ToolMode.AUTO,
    "any": ToolMode.REQUIRED,
    "none": ToolMode.NONE,
    "tool": ToolMode.NAMED,
}
_TIERS = {"standard_only": "default", "auto": None}
_HIGHEST_EFFORT = {"max": "xhigh"}  # OpenAI has no word for more
_CLEARS_THOUGHTS = "clear_thinking"


def read_messages_request(read: RequestBody) -> Conversation:
    """Return a messages request as a neutral conversation.

    Raises `InvalidRequest` for one that means nothing in its own dialect.
    """
    others: dict[str, msgspec.Raw] = {}
    body = RequestMembers(read.body, path="", others=others)
    body.text("model")
    is_stream = bool(body.flag("stream"))
    system = text_parts(body, "system")
    turns = [_turn(message) for message in body.children("messages")]
    first = next((at for at, turn in enumerate(turns) if not _is_system(turn)), len(turns))
    leading = [part for turn in turns[:first] for part in turn.parts]
    system += tuple(part for part in leading if isinstance(part, TextPart))
    tools = tuple(spec for tool in body.children("tools") if (spec := _tool(tool)) is not None)
    tool_choice, has_parallel_calls = _tool_choice(body.child("tool_choice"))
    effort, output_format = _output_config(body)
    reasoning = _reasoning(body.child("thinking"), effort)
    most_tokens = body.whole("max_tokens")
    if most_tokens == 0:  # it only fills the provider's cache
        others["max_tokens"] = msgspec.Raw(b"0")
    tier = body.text("service_tier")
    user = _user(body)
    _leave_hints_out(body)
    sampling = Sampling(
        temperature=body.number("temperature"),
        top_p=body.number("top_p"),
        top_k=body.whole("top_k"),
        stop=body.texts("stop_sequences"),
    )
    body.leave_rest()
    return Conversation(
        is_stream=is_stream,
        system=system,
        turns=tuple(turns[first:]),
        tools=tools,
        tool_choice=tool_choice,
        has_parallel_calls=has_parallel_calls,
        output_format=output_format,
        reasoning=reasoning,
        sampling=sampling,
        most_tokens=read.facts.output_bound_tokens,
        service_tier=_TIERS.get(tier, tier) if tier is not None else None,
        user=user,
        others=others,
        named=_NAMES,
    )


def _turn(message: RequestMembers) -> ConversationTurn:
    """Return one message. One of the system in the middle stays in its place."""
    role = message.text("role")
    if role not in ("user", "assistant", "system"):
        raise wrong_type(message.path_of("role"), "it is user or assistant")
    turn = ConversationTurn(
        role=Role.ASSISTANT if role == "assistant" else Role.USER,
        parts=blocks_of(message),
        is_instruction=role == "system",
    )
    message.leave_rest()
    return turn


def _is_system(turn: ConversationTurn) -> bool:
    """Return True for a message of the system, which has text alone."""
    return turn.is_instruction and all(isinstance(part, TextPart) for part in turn.parts)


def _tool(tool: RequestMembers) -> ToolSpec | None:
    """Return a tool that the caller runs and describes; None for any other, which is left."""
    if (tool.text("type") or "custom") != "custom":
        tool.leave_whole()
        return None
    name = tool.text("name")
    if not name:
        raise wrong_type(tool.path_of("name"), "a tool has a name")
    tool.flag("eager_input_streaming")
    tool.drop_if("defer_loading", b"false")
    spec = ToolSpec(
        name=name,
        description=tool.text("description") or "",
        parameters=tool.raw("input_schema"),
        is_strict=tool.flag("strict"),
        cache_control=tool.raw("cache_control"),
    )
    tool.leave_rest()
    return spec


def _tool_choice(choice: RequestMembers | None) -> tuple[ToolChoice | None, bool | None]:
    """Return the caller's wish about tool calls, and whether several may be made at once."""
    if choice is None:
        return None, None
    kind = choice.text("type") or ""
    mode = _MODES.get(kind)
    if mode is None:
        raise wrong_type(choice.path_of("type"), "it is auto, any, tool or none")
    is_alone = choice.flag("disable_parallel_tool_use")
    name = choice.text("name") or ""
    choice.leave_rest()
    return ToolChoice(mode=mode, name=name), None if is_alone is None else not is_alone


def _output_config(body: RequestMembers) -> tuple[str | None, OutputFormat | None]:
    """Return the caller's effort and the form of the answer, of which there were two names."""
    effort, form = None, body.child("output_format")
    config = body.child("output_config")
    if config is not None:
        effort = config.text("effort")
        form = config.child("format") or form
        config.leave_rest()
    if form is None:
        return effort, None
    if form.text("type") != "json_schema":
        raise wrong_type(form.path_of("type"), "it is json_schema")
    output_format = OutputFormat(schema=form.raw("schema"), is_strict=True)
    form.leave_rest()
    return effort, output_format


def _reasoning(thinking: RequestMembers | None, effort: str | None) -> Reasoning | None:
    """Return the caller's wish about reasoning, of its thinking and its effort."""
    word = _HIGHEST_EFFORT.get(effort or "", effort)
    if thinking is None:
        return None if word is None else Reasoning(effort=word)
    kind, display = thinking.text("type"), thinking.text("display")
    if kind not in ("enabled", "disabled", "adaptive"):
        raise wrong_type(thinking.path_of("type"), "it is enabled, disabled or adaptive")
    reasoning = Reasoning(
        effort="none" if kind == "disabled" else word,
        budget_tokens=thinking.whole("budget_tokens"),
        is_adaptive=kind == "adaptive",
        is_shown=None if kind == "disabled" else display != "omitted",
    )
    thinking.leave_rest()
    return reasoning


def _user(body: RequestMembers) -> str | None:
    """Return the end user that the metadata names."""
    metadata = body.child("metadata")
    if metadata is None:
        return None
    user = metadata.text("user_id")
    metadata.leave_rest()
    return user


def _leave_hints_out(body: RequestMembers) -> None:
    """Take members away that change no answer of another dialect."""
    body.drop_if("speed", b'"standard"')
    for name in ("container", "diagnostics", "mcp_servers"):
        body.drop_if(name, b"{}", b"[]")
    diagnostics = body.child("diagnostics")
    if diagnostics is not None:
        diagnostics.leave_rest()  # a member that is null is absent
    management = body.child("context_management")
    if management is not None:
        for edit in management.children("edits"):
            if not (edit.text("type") or "").startswith(_CLEARS_THOUGHTS):
                edit.leave_whole()
        management.leave_rest()
