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
    "obfuscation nvext warnings request_id metadata error data results meta cost"
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
# Types of events that come before any content, or without any.
_EMPTY_EVENTS = names_in(
    "response.created response.in_progress response.queued response.completed "
    "response.incomplete response.failed response.output_item.added "
    "response.content_part.added response.reasoning_summary_part.added error keepalive "
    "ping"
)


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


def is_odd_event(kind: str | None) -> bool:
    """Return True if a type of event is not known to come without content."""
    return kind not in _EMPTY_EVENTS
