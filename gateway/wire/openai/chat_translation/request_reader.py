"""Reads a chat request into a neutral conversation; every member that no value carries is named by
its path.
"""

from __future__ import annotations

import msgspec

from gateway.domain.request.request import RequestBody
from gateway.wire.openai.chat_translation.messages_reader import read_messages
from gateway.wire.translation.conversation import (
    NO_JSON,
    Conversation,
    OutputFormat,
    Reasoning,
    Sampling,
    ToolChoice,
    ToolMode,
    ToolSpec,
)
from gateway.wire.translation.request_members import RequestMembers, wrong_type

# The gateway reads these itself, or they say how the answer comes and not what is in it.
_CONSUMED = ("model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "n")
_NAMED = {
    "top_logprobs": "logprobs",
    "choices": "n",
    "cache_key": "prompt_cache_key",
    "output_format": "response_format",
    "has_parallel_calls": "parallel_tool_calls",
    "call_id": "tool_call_id",
    "sealed": "thinking_blocks",
    "image": "image_url",
    "document": "file",
    "audio": "input_audio",
    "system": "messages",
    "turns": "messages",
}


def read_chat_request(read: RequestBody) -> Conversation:
    """Return the conversation of a chat request. Raises `InvalidRequest`."""
    others: dict[str, msgspec.Raw] = {}
    body = RequestMembers(read.body, path="", others=others)
    for name in _CONSUMED:
        body.raw(name)
    body.drop_if("store", b"false")
    body.drop_if("modalities", b'["text"]', b"[]")
    body.drop_if("logit_bias", b"{}")
    body.drop_if("metadata", b"{}")
    named = dict(_NAMED)
    system, turns = read_messages(body)
    conversation = Conversation(
        is_stream=read.facts.is_stream,
        system=tuple(system),
        turns=tuple(turns),
        tools=read_tools(body),
        tool_choice=_tool_choice(body),
        has_parallel_calls=body.flag("parallel_tool_calls"),
        output_format=_output_format(body),
        reasoning=_reasoning(body, named),
        sampling=_sampling(body),
        most_tokens=read.facts.output_bound_tokens,
        choices=read.facts.choices,
        service_tier=body.text("service_tier"),
        user=user_of(body, named),
        cache_key=body.text("prompt_cache_key"),
        verbosity=body.text("verbosity"),
        others=others,
        named=named,
    )
    body.leave_rest()
    return conversation


def user_of(body: RequestMembers, named: dict[str, str]) -> str | None:
    """Return the caller's name for its end user, under either of the two members."""
    safety, user = body.text("safety_identifier"), body.text("user")
    if safety is not None:
        named["user"] = "safety_identifier"
    return safety if safety is not None else user


def read_tools(body: RequestMembers) -> tuple[ToolSpec, ...]:
    """Return the functions among a chat's tools. Raises `InvalidRequest`."""
    found = []
    for tool in body.children("tools"):
        function = tool.child("function") if tool.text("type") == "function" else None
        if function is None:
            tool.leave_whole()
            continue
        found.append(tool_spec(function, cache_control=tool.raw("cache_control")))
        function.leave_rest()
        tool.leave_rest()
    return tuple(found)


def tool_spec(function: RequestMembers, *, cache_control: msgspec.Raw = NO_JSON) -> ToolSpec:
    """Return a function from its members. Raises `InvalidRequest`."""
    name = function.text("name")
    if not name:
        raise wrong_type(function.path_of("name"), "a function has a name")
    return ToolSpec(
        name=name,
        description=function.text("description") or "",
        parameters=function.raw("parameters"),
        is_strict=function.flag("strict"),
        cache_control=cache_control,
    )


def _tool_choice(body: RequestMembers) -> ToolChoice | None:
    """Return the wish about tool calls; None for none, or for one that no neutral value carries."""
    if body.is_text("tool_choice"):
        return tool_mode(body)
    if not body.is_object("tool_choice"):
        body.leave("tool_choice")
        return None
    choice = body.child("tool_choice")
    assert choice is not None, "it is an object"
    function = choice.child("function") if choice.text("type") == "function" else None
    if function is None:
        choice.leave_whole()
        return None
    return ToolChoice(mode=ToolMode.NAMED, name=function.text("name") or "")


def tool_mode(body: RequestMembers) -> ToolChoice:
    """Return a wish about tool calls that is one word. Raises `InvalidRequest`."""
    word = body.text("tool_choice")
    if word not in ("auto", "none", "required"):
        raise wrong_type("tool_choice", "write auto, none, required or a tool")
    return ToolChoice(mode=ToolMode(word))


def _output_format(body: RequestMembers) -> OutputFormat | None:
    """Return the wanted form of the answer; None for text."""
    form = body.child("response_format")
    if form is None:
        return None
    kind = form.text("type")
    schema = form.child("json_schema") if kind == "json_schema" else None
    if schema is not None:
        found: OutputFormat | None = output_schema(schema)
        schema.leave_rest()
    elif kind in ("text", "json_object"):
        found = OutputFormat() if kind == "json_object" else None
    else:
        form.leave_whole()
        return None
    form.leave_rest()
    return found


def output_schema(schema: RequestMembers) -> OutputFormat:
    """Return the wanted form of the answer from a named schema. Raises `InvalidRequest`."""
    return OutputFormat(
        schema=schema.raw("schema"),
        name=schema.text("name") or "",
        description=schema.text("description") or "",
        is_strict=schema.flag("strict"),
    )


def _reasoning(body: RequestMembers, named: dict[str, str]) -> Reasoning | None:
    """Return the wish about reasoning: OpenAI's `reasoning_effort`, or Anthropic's `thinking`,
    which its own chat endpoint takes too (docs.claude.com, "OpenAI SDK compatibility").
    """
    effort = body.text("reasoning_effort")
    named["reasoning"] = "reasoning_effort"
    thinking = body.child("thinking") if effort is None and body.is_object("thinking") else None
    if thinking is None:
        return None if effort is None else Reasoning(effort=effort)
    named["reasoning"] = "thinking"
    kind, budget_tokens = thinking.text("type"), thinking.whole("budget_tokens")
    thinking.leave_rest()
    if kind not in ("enabled", "disabled", "adaptive"):
        raise wrong_type("thinking.type", "write enabled, disabled or adaptive")
    if kind == "disabled":
        return Reasoning(effort="none")
    return Reasoning(budget_tokens=budget_tokens, is_adaptive=kind == "adaptive", is_shown=True)


def _sampling(body: RequestMembers) -> Sampling:
    """Return how tokens are drawn. Raises `InvalidRequest`."""
    shows_logprobs, top_logprobs = body.flag("logprobs"), body.whole("top_logprobs")
    return Sampling(
        temperature=body.number("temperature"),
        top_p=body.number("top_p"),
        top_k=body.whole("top_k"),
        min_p=body.number("min_p"),
        seed=body.whole("seed"),
        presence_penalty=body.number("presence_penalty"),
        frequency_penalty=body.number("frequency_penalty"),
        stop=body.texts("stop"),
        top_logprobs=(top_logprobs or 0) if shows_logprobs else None,
        logit_bias=body.raw("logit_bias"),
    )
