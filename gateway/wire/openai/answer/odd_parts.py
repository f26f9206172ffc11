"""Decides if an answer of OpenAI's dialect without known content may have content of another form:
then a usage of 0 tokens is not believed. Nearly no answer is asked about.
"""

from __future__ import annotations

from typing import Any

from gateway.wire.foreign_json import has_others, names_in, object_in, object_of, objects_in

# Members without generated content, of OpenAI's schema and of the servers in the provider table.
_CHAT = names_in(
    "id object created model choices usage system_fingerprint service_tier x_groq usage_breakdown "
    "metrics timings provider openrouter_metadata prompt_filter_results prompt_logprobs "
    "prompt_token_ids prompt_text kv_transfer_params ec_transfer_params citations search_results "
    "web_search obfuscation nvext warnings request_id metadata error data results meta cost"
)
_CHOICE = names_in(
    "index finish_reason native_finish_reason stop_reason message delta text logprobs usage seed "
    "content_filter_results content_filter_result content_filter_offsets matched_stop token_ids "
    "routed_experts prompt_logprobs prompt_token_ids prompt_text"
)
_RESPONSE = names_in(
    "background billing completed_at content_filters conversation created_at error id "
    "incomplete_details input input_messages instructions kv_transfer_params max_output_tokens "
    "max_tool_calls metadata model moderation object output parallel_tool_calls "
    "previous_response_id prompt prompt_cache_key prompt_cache_options prompt_cache_retention "
    "reasoning safety_identifier service_tier status store text tool_choice tools top_logprobs "
    "truncation usage user"
)
# Items of a response whose content is text, or comes from a tool that has a price of its own.
_TEXT_ITEMS = names_in(
    "message reasoning function_call custom_tool_call web_search_call file_search_call "
    "code_interpreter_call mcp_call mcp_list_tools mcp_approval_request"
)
# Members of such items, and of their parts, that hold no text and no name of anything.
_SEALED = ("encrypted_content", "result", "audio", "image_url", "image", "video")
# Pieces of text, and events that repeat it or tell of a tool.
TEXT_DELTAS = names_in(
    "response.output_text.delta response.refusal.delta response.function_call_arguments.delta "
    "response.custom_tool_call_input.delta response.reasoning_text.delta "
    "response.reasoning_summary_text.delta response.reasoning_summary.delta "
    "response.reasoning.delta response.mcp_call_arguments.delta response.mcp_call.arguments.delta "
    "response.code_interpreter_call_code.delta response.code_interpreter_call.code.delta "
    "response.audio.transcript.delta response.audio_transcript.delta"
)
_REPEATS = names_in(
    "response.output_item.done response.content_part.done response.output_text.annotation.added "
    "response.reasoning_summary_part.done response.reasoning_part.added "
    "response.reasoning_part.done response.audio.done"
) | frozenset(name.removesuffix("delta") + "done" for name in TEXT_DELTAS)
_TOOLS = (
    "response.web_search_call.",
    "response.file_search_call.",
    "response.code_interpreter_call.",
    "response.mcp_call.",
    "response.mcp_list_tools.",
    "response.image_generation_call.",
)
_OF_TOOLS = names_in("in_progress searching interpreting generating completed failed")
# Types of events that come before any content, or without any.
_EMPTY_EVENTS = names_in(
    "response.created response.in_progress response.queued response.completed "
    "response.incomplete response.failed response.output_item.added "
    "response.content_part.added response.reasoning_summary_part.added error keepalive "
    "ping"
)


# The members of a message's parts with text (Mistral's thinking holds parts again), the calls among
# them, and members without generated content.
OF_PARTS = ("text", "refusal", "thinking", "summary")
CALLS = ("function", "custom")
OF_CALLS = frozenset({"name", "arguments", "input", "transcript"})
_OF_PART = names_in("type id index format signature annotations closed") | {*OF_PARTS, *CALLS}
# Members of a message or a delta beside its content.
_BESIDE = names_in("annotations citations search_results")
_MOST_LEVELS = 4


def is_text(name: str, value: Any, *, levels: int = _MOST_LEVELS) -> bool:
    """Return True if the content in a member of a message or a delta is text, or there is none in
    it: no picture, no sound, nothing sealed.
    """
    if isinstance(value, list) and levels:
        return name in _BESIDE or all(_is_text_part(one, levels - 1) for one in value)
    if isinstance(value, dict) and value:
        return name in (*CALLS, "function_call") and all(map(_is_plain, value.values()))
    return _is_plain(value)


def is_word(value: Any) -> bool:
    """Return True if a value is a text."""
    return isinstance(value, str)


def _is_text_part(part: Any, levels: int) -> bool:
    """Return True if a part of a message, or a call in it, has no content but text."""
    if not isinstance(part, dict):
        return is_text("", part, levels=levels)
    return all(
        (name in _OF_PART or not isinstance(value, str | list | dict) or not value)
        and (name == "annotations" or is_text(name, value, levels=levels))
        for name, value in part.items()
    )


def _is_plain(value: Any) -> bool:
    """Return True if a value is a text, a number or nothing."""
    return not value or isinstance(value, str | int | float)


def is_odd_chunk(payload: bytes) -> bool:
    """Return True if a chunk, or a whole chat, may have content of a form that is not known."""
    members = object_of(payload)
    if members is None:
        return True
    choices = objects_in(members, "choices")
    return has_others(members, _CHAT) or any(_is_odd_choice(choice) for choice in choices)


def _is_odd_choice(choice: dict[str, Any]) -> bool:
    """Return True if a choice may have content beside its known members."""
    message = object_in(choice, "message")
    return has_others(choice, _CHOICE) or has_others(message, frozenset({"role"}))


def is_odd_response(body: bytes) -> bool:
    """Return True if a response may have content of a form that is not known."""
    members = object_of(body)
    return members is None or has_others(members, _RESPONSE)


def is_new(kind: str | None) -> bool:
    """Return True if a type of event is not known to come without content, or to repeat it."""
    if kind in _EMPTY_EVENTS or kind in _REPEATS:
        return False
    return not (
        kind is not None and kind.startswith(_TOOLS) and kind.rpartition(".")[2] in _OF_TOOLS
    )


def has_more_than_text(item: dict[str, Any]) -> bool:
    """Return True if an item of a response, or a part of one, has content that is no text."""
    kind = item.get("type")
    parts = [item, *objects_in(item, "content"), *objects_in(item, "summary")]
    is_known = kind is None or (isinstance(kind, str) and kind in _TEXT_ITEMS)
    is_hidden = kind == "reasoning" and not any(part.get("text") for part in parts)
    return not is_known or is_hidden or any(part.get(name) for part in parts for name in _SEALED)


def is_odd_event(kind: str | None) -> bool:
    """Return True if a type of event is not known to come without content."""
    return kind not in _EMPTY_EVENTS
