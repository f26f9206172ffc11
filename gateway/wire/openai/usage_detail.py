"""Reads the members of a usage that are neither tokens nor calls: the provider's own cost figure,
its times and the place and speed of the answer. Only known names are read, so no content can be
among them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import lru_cache

import msgspec

from gateway.domain.pricing.settlement import UNPRICED_TOOL
from gateway.domain.pricing.tokens import TokenKind
from gateway.wire.foreign_json import MAX_USAGE_BYTES, MOST_SHAPE_BYTES, may_name_twice

Detail = int | float | str | bool
PROVIDER_COST = "provider_cost_usd"  # plain decimals: money is never a float
MOST_NUMBER_CHARS = 32
# Ticks: docs.x.ai/developers/cost-tracking, 2026-11-24.
_UNITS_PER_USD = {"cost": Decimal(1), "cost_in_usd_ticks": Decimal(10) ** 10}
_UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
_WORD = re.compile(rb'"([A-Za-z0-9_.-]{1,32})"')
_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?")
_LEAST, _MOST = Decimal("1e-15"), Decimal("1e15")


# OpenRouter (openrouter 1.3.84, components/chatusage.py), xAI, Groq (groq 1.7.0), DeepSeek, Mistral
# (mistralai 3.7.0), and Anthropic's words behind OpenAI's dialect.
_KNOWN = frozenset(
    {
        "cost",
        "cost_in_usd_ticks",
        "is_byok",
        "cost_details",
        "server_tool_use_details",
        "num_sources_used",
        "num_server_side_tools_used",
        "server_side_tool_usage_details",
        "queue_time",
        "prompt_time",
        "completion_time",
        "total_time",
        "prompt_cache_miss_tokens",
        "prompt_audio_seconds",
        "speed",
        "inference_geo",
    }
)
_QUOTED = tuple(f'"{name}"'.encode() for name in (*sorted(_KNOWN), "service_tier"))
_DIGITS = b"0123456789"
_TIMINGS = ("prompt_ms", "predicted_ms", "draft_n", "draft_n_accepted")  # llama.cpp's
# Members of the objects: OpenRouter's and xAI's; other ones are not read.
_NESTED = {
    "cost_details": (
        "upstream_inference_cost",
        "upstream_inference_prompt_cost",
        "upstream_inference_completions_cost",
        "server_tool_cost",
    ),
    "server_tool_use_details": (
        "web_search_requests",
        "tool_calls_requested",
        "tool_calls_executed",
    ),
    "server_side_tool_usage_details": (
        "web_search_calls",
        "x_search_calls",
        "x_posts_fetched",
        "x_users_fetched",
        "document_search_calls",
    ),
}
# By the object and the name: Perplexity's fee of a request, which depends on the context that its
# search reads, and that of OpenRouter's tools, whose searches its usage counts.
_FEES: Mapping[tuple[str, str], str] = {
    ("cost", "request_cost"): UNPRICED_TOOL,
    ("cost_details", "server_tool_cost"): TokenKind.WEB_SEARCH,
}
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def usage_detail(raw: msgspec.Raw | bytes) -> dict[str, Detail]:
    """Return the known members of a usage that are no counts of ours, flat and short; empty if
    there is none. Never raises.
    """
    if not may_have_detail(raw):
        return {}
    members = _members(raw)
    found: dict[str, Detail] = {}
    for name in _KNOWN & members.keys():
        value = bytes(members[name])
        if name in _NESTED:
            found.update(_nested(name, value))
        elif name in _UNITS_PER_USD:
            if value.startswith(b"{"):  # Perplexity's
                value = bytes(_members(value).get("total_cost", b""))
            if (cost := _money(value, _UNITS_PER_USD[name])) is not None:
                found[PROVIDER_COST] = cost
        elif (detail := _detail(value)) is not None:
            found[name] = detail
    return found


def states_cost(raw: msgspec.Raw | bytes) -> bool:
    """Return True if a usage states a cost above zero."""
    return Decimal(str(usage_detail(raw).get(PROVIDER_COST, 0))) > 0


def fees_in(raw: msgspec.Raw | bytes) -> Iterator[str]:
    """Yield the kinds of the fees above zero that a usage states beside the costs of its tokens."""
    members = _members(raw)
    for (holder, name), kind in _FEES.items():
        value = bytes(members.get(holder, b""))
        fee = _number(bytes(_members(value).get(name, b""))) if value.startswith(b"{") else None
        if fee is not None and fee > 0:
            yield kind


def may_have_detail(raw: msgspec.Raw | bytes) -> bool:
    """Return True if a usage may have one of the known members, or a tier: nearly none has."""
    # The usages of one upstream differ in their digits alone, so their shape is looked up.
    text = bytes(raw)
    return len(text) > MOST_SHAPE_BYTES or _names_a_detail(text.translate(None, _DIGITS))


@lru_cache(maxsize=256)
def _names_a_detail(shape: bytes) -> bool:
    """Return True if a usage without its digits may have one of the known members, a tier, or a
    name twice.
    """
    return any(name in shape for name in _QUOTED) or may_name_twice(shape)


def timings_detail(raw: msgspec.Raw | bytes) -> dict[str, Detail]:
    """Return llama.cpp's times and speculative tokens. Never raises."""
    members = _members(raw)
    read = ((name, _detail(bytes(members.get(name, b"")))) for name in _TIMINGS)
    return {f"timings.{name}": detail for name, detail in read if detail is not None}


def groq_detail(raw: msgspec.Raw | bytes) -> dict[str, Detail]:
    """Return the known members of the usage in a chunk's `x_groq`: Groq's times. Never raises."""
    return usage_detail(_members(raw).get("usage", msgspec.Raw(b"")))


def _members(raw: msgspec.Raw | bytes) -> dict[str, msgspec.Raw]:
    """Return the undecoded members of an object; none if it is too long or no object."""
    if memoryview(raw).nbytes > MAX_USAGE_BYTES:
        return {}
    try:
        return _decode_members(raw)
    except _UNREADABLE:
        return {}


def _nested(name: str, value: bytes) -> Iterator[tuple[str, Detail]]:
    """Yield the known members of an object, under its own name; amounts of money as text."""
    members = _members(value)
    for inner in _NESTED[name]:
        raw = bytes(members.get(inner, b""))
        detail = _money(raw, Decimal(1)) if name == "cost_details" else _detail(raw)
        if detail is not None:
            yield f"{name}.{inner}", detail


def _money(value: bytes, units_per_usd: Decimal) -> str | None:
    """Return an amount as plain dollars, None if it is no amount."""
    number = _number(value)
    if number is None:
        return None
    text = format(number / units_per_usd, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _detail(value: bytes) -> Detail | None:
    """Return a number, a truth or a short word; None for anything else."""
    if value in (b"true", b"false"):
        return value == b"true"
    word = _WORD.fullmatch(value)
    if word is not None:
        return word[1].decode()
    number = _number(value)
    if number is None:
        return None
    return float(number) if b"." in value or b"e" in value.lower() else int(number)


def _number(value: bytes) -> Decimal | None:
    """Return a JSON number of a plausible size, None for anything else."""
    if len(value) > MOST_NUMBER_CHARS or _NUMBER.fullmatch(value) is None:
        return None
    number = Decimal(value.decode())
    return number if not number or _LEAST <= abs(number) <= _MOST else None
