"""Reads a request of `/v1/responses` into a neutral conversation; every member that no value
carries is named by its path.
"""

from __future__ import annotations

import msgspec

from gateway.domain.request.request import RequestBody
from gateway.wire.openai.chat_translation.request_reader import (
    output_schema,
    tool_mode,
    tool_spec,
    user_of,
)
from gateway.wire.openai.responses_translation.input_reader import InputReader
from gateway.wire.translation.conversation import (
    Conversation,
    OutputFormat,
    Reasoning,
    Sampling,
    TextPart,
    ToolChoice,
    ToolMode,
    ToolSpec,
)
from gateway.wire.translation.request_members import RequestMembers, wrong_type

# The gateway reads these itself, they say how the answer comes, or the answer repeats them.
_CONSUMED = ("model", "stream", "stream_options", "max_output_tokens", "metadata")
_NAMED = {
    "system": "instructions",
    "turns": "input",
    "cache_key": "prompt_cache_key",
    "output_format": "text.format",
    "verbosity": "text.verbosity",
    "has_parallel_calls": "parallel_tool_calls",
    "sealed": "encrypted_content",
    "image": "input_image",
    "document": "input_file",
    "audio": "input_audio",
    "tool_result": "function_call_output",
}
# Parts of the answer that an upstream of another dialect sends anyway, or does not have.
_INCLUDED = frozenset({"reasoning.encrypted_content", "message.output_text.logprobs"})


def read_responses_request(read: RequestBody) -> Conversation:
    """Return the conversation of a request of `/v1/responses`. Raises `InvalidRequest`."""
    others: dict[str, msgspec.Raw] = {}
    body = RequestMembers(read.body, path="", others=others)
    for name in _CONSUMED:
        body.raw(name)
    for name in ("store", "background"):
        body.drop_if(name, b"false")
    body.drop_if("truncation", b'"disabled"')
    named = dict(_NAMED)
    items = InputReader()
    instructions = body.text("instructions")
    if instructions:
        items.system.append(TextPart(text=instructions))
    items.read(body)
    output_format, verbosity = _text(body)
    wants_logprobs = _include(body)
    conversation = Conversation(
        is_stream=read.facts.is_stream,
        system=tuple(items.system),
        turns=tuple(items.turns),
        tools=_tools(body),
        tool_choice=_tool_choice(body),
        has_parallel_calls=body.flag("parallel_tool_calls"),
        output_format=output_format,
        reasoning=_reasoning(body),
        sampling=_sampling(body, wants_logprobs=wants_logprobs),
        most_tokens=read.facts.output_bound_tokens,
        service_tier=body.text("service_tier"),
        user=user_of(body, named),
        cache_key=body.text("prompt_cache_key"),
        verbosity=verbosity,
        others=others,
        named=named,
    )
    body.leave_rest()
    return conversation


def _tools(body: RequestMembers) -> tuple[ToolSpec, ...]:
    """Return the functions among the tools; the others are left by their place."""
    found = []
    for tool in body.children("tools"):
        if tool.text("type") != "function":
            tool.leave_whole()
            continue
        found.append(tool_spec(tool, cache_control=tool.raw("cache_control")))
        tool.drop_if("defer_loading", b"false")
        tool.leave_rest()
    return tuple(found)


def _tool_choice(body: RequestMembers) -> ToolChoice | None:
    """Return the wish about tool calls; None for none, or for one that no neutral value carries."""
    if body.is_text("tool_choice"):
        return tool_mode(body)
    choice = body.child("tool_choice")
    if choice is None:
        return None
    if choice.text("type") != "function":
        choice.leave_whole()
        return None
    name = choice.text("name") or ""
    choice.leave_rest()
    return ToolChoice(mode=ToolMode.NAMED, name=name)


def _text(body: RequestMembers) -> tuple[OutputFormat | None, str | None]:
    """Return the wanted form of the answer, None for text, and how wordy it is."""
    text = body.child("text")
    if text is None:
        return None, None
    verbosity, form, found = text.text("verbosity"), text.child("format"), None
    text.leave_rest()
    if form is not None:
        kind = form.text("type")
        if kind == "json_schema":
            found = output_schema(form)
        elif kind == "json_object":
            found = OutputFormat()
        elif kind != "text":
            form.leave_whole()
        form.leave_rest()
    return found, verbosity


def _reasoning(body: RequestMembers) -> Reasoning | None:
    """Return the wish about reasoning. A summary is what a caller is shown of it."""
    wish = body.child("reasoning")
    if wish is None:
        return None
    effort, summary = wish.text("effort"), wish.text("summary")
    older = wish.text("generate_summary")
    wish.leave_rest()
    is_shown = True if summary or older else None
    return (
        None if effort is None and is_shown is None else Reasoning(effort=effort, is_shown=is_shown)
    )


def _include(body: RequestMembers) -> bool:
    """Return True if the caller wants log probabilities; leave wishes that are not known."""
    wanted = frozenset(body.peek_texts("include"))
    if wanted <= _INCLUDED:
        body.raw("include")
    return "message.output_text.logprobs" in wanted


def _sampling(body: RequestMembers, *, wants_logprobs: bool) -> Sampling:
    """Return how tokens are drawn. Raises `InvalidRequest`."""
    top_logprobs = body.whole("top_logprobs")
    if top_logprobs is not None and top_logprobs < 0:
        raise wrong_type("top_logprobs", "write a number from 0")
    shows = wants_logprobs or bool(top_logprobs)
    return Sampling(
        temperature=body.number("temperature"),
        top_p=body.number("top_p"),
        top_logprobs=(top_logprobs or 0) if shows else None,
    )
