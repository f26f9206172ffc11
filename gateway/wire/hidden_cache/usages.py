"""Writes a usage without any sign of the prompt cache: tokens that were read from it or written to
it are ordinary input. It changes no answer around the usage.

A usage is written from the members that are known to say nothing of the cache. An unknown one is
left out: upstreams have two dozen names for cached tokens and their cost, and add new ones.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gateway.wire.anthropic import usage as anthropic
from gateway.wire.foreign_json import MAX_USAGE_BYTES
from gateway.wire.members import MalformedJson, decode_members
from gateway.wire.openai import usage as openai
from gateway.wire.openai.bounds import decode_few
from gateway.wire.openai.usage_names import DETAILS

Members = Mapping[str, msgspec.Raw]
NULL = b"null"
_INPUTS = ("prompt_tokens", "input_tokens")
# The time of the prefill and the total one are left out: they tell of the cache as its counts do.
_OF_OPENAI = frozenset(
    {
        "completion_tokens",
        "output_tokens",
        "total_tokens",
        "reasoning_tokens",
        "citation_tokens",
        "num_search_queries",
        "num_server_side_tools_used",
        "num_sources_used",
        "server_side_tool_usage_details",
        "server_tool_use",
        "server_tool_use_details",
        "search_context_size",
        "service_tier",
        "inference_geo",
        "speed",
        "is_byok",
        "prompt_audio_seconds",
        "queue_time",
        "completion_time",
        *DETAILS["output"],
    }
)
# `text_tokens` is left out: some gateways subtract the cached tokens from it.
_INPUT_DETAILS = frozenset(
    {"audio_tokens", "image_tokens", "video_tokens", "multimodal_tokens", "web_search_requests"}
)
# Responses have both, and their clients refuse a usage without them.
_RESPONSES_DETAILS = {"cached_tokens": 0, "cache_write_tokens": 0}
_OF_ANTHROPIC = frozenset(
    {
        "output_tokens",
        "output_tokens_details",
        "server_tool_use",
        "service_tier",
        "inference_geo",
        "speed",
        "type",  # of an iteration, as the model
        "model",
    }
)
# Anthropic's schema requires them of each usage (anthropic 2.13.0, types/usage.py, 2026-11-24).
_NO_CACHE = {
    "cache_creation": None,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
}
_EMPTY = frozenset({b"null", b"0", b"0.0"})
_encode = msgspec.json.encode


class _Iteration(msgspec.Struct):
    """An object of any kind."""


def openai_usage(raw: bytes, *, is_response: bool) -> bytes:
    """Return a usage of a chat, completions, embeddings or, if `is_response`, of a response.

    Anything that is no readable usage becomes null.
    """
    members = _members(raw)
    if members is None:
        return NULL
    read = openai.usage_from_wire(raw)
    prompt = None if read is None else read.input_tokens
    found: dict[str, object] = {}
    for name, value in members.items():
        if name in _INPUTS:
            found[name] = value if prompt is None else prompt
        elif name in _OF_OPENAI:
            found[name] = value
    details = _input_details(members)
    if is_response and "input_tokens" in found:
        found = {"input_tokens": found.pop("input_tokens")} | {
            "input_tokens_details": _RESPONSES_DETAILS | details,
            **found,
        }
    elif details:  # some servers write an object of a hit alone
        found[DETAILS["input"][0]] = details
    return _encode(found)


def anthropic_usage(raw: bytes, *, prompt: int | None = None) -> bytes:
    """Return a usage of a message. `prompt` are the tokens of the whole prompt as metered, None if
    they are not known: a stream's last usage may lack its parts.

    Anything that is no readable usage becomes null.
    """
    members = _members(raw)
    if members is None:
        return NULL
    iterations = members.pop("iterations", None)
    if prompt is None or iterations is not None:  # the metered prompt has those of a compaction too
        read = anthropic.usage_from_wire(_encode(members))
        prompt = None if read is None else read.input_tokens
    found: dict[str, object] = {}
    if "input_tokens" in members:
        found["input_tokens"] = members["input_tokens"] if prompt is None else prompt
    found |= _NO_CACHE
    found |= {name: value for name, value in members.items() if name in _OF_ANTHROPIC}
    if iterations is not None:
        found["iterations"] = _iterations(iterations)
    return _encode(found)


def _iterations(raw: msgspec.Raw) -> list[msgspec.Raw] | None:
    """Return the samplings of a request, each as a usage; None if they cannot be read."""
    try:
        decode_few(raw, _Iteration)
    except (msgspec.DecodeError, RecursionError):
        return None
    items = msgspec.json.decode(raw, type=list[msgspec.Raw])
    return [msgspec.Raw(anthropic_usage(bytes(item))) for item in items]


def _input_details(members: Members) -> dict[str, msgspec.Raw]:
    """Return the parts of the prompt that say nothing of the cache; those that are 0 or null are
    left out, as by servers that write no details without a hit.
    """
    found: dict[str, msgspec.Raw] = {}
    for holder in DETAILS["input"]:
        details = _members(bytes(members.get(holder, b"")))
        for name, value in (details or {}).items():
            if name in _INPUT_DETAILS and bytes(value) not in _EMPTY:
                found[name] = value
    return found


def _members(raw: bytes) -> dict[str, msgspec.Raw] | None:
    """Return the members of an object; None for anything else, and for one longer than any
    usage.
    """
    if not raw.startswith(b"{") or len(raw) > MAX_USAGE_BYTES:
        return None
    try:
        return decode_members(raw)
    except MalformedJson:
        return None
