"""Splices the caller's model name and a placeholder for the cost into an answer's bytes, and cuts
its usage out of stream events.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.request.request import MemberPlace
from gateway.wire.dialect import AnswerPart, UnpricedPart
from gateway.wire.foreign_json import MAX_USAGE_BYTES
from gateway.wire.members import cut, locate, locate_one, replace, without_member
from gateway.wire.openai.answer.shapes import ABSENT, NO_TIER, Chunk, ResponseBody

_MODEL, _USAGE, _TIMINGS, _COST = b'"model"', b'"usage"', b'"timings"', b'"cost_usd"'
_TIER = b'"service_tier"'
_FIRST, _NEXT = _COST + b":", b"," + _COST + b":"
_encode = msgspec.json.Encoder().encode


def places_in(body: bytes, answer: Chunk | ResponseBody) -> dict[str, MemberPlace]:
    """Return the positions of an answer's model name and usage, as far as they are present.

    Raises `MalformedJson` if one occurs twice, or the service tier does.
    """
    found = {}
    if answer.model is not None:
        found["model"] = locate_one(body, _MODEL, _encode(answer.model))
    if answer.usage is not ABSENT:
        found["usage"] = locate_one(body, _USAGE, bytes(answer.usage))
    # A name that an escape spells is found with the usage.
    if answer.service_tier != NO_TIER and body.find(_TIER, body.find(_TIER) + 1) >= 0:
        locate(body)
    return found


def spliced(
    body: bytes,
    places: dict[str, MemberPlace],
    answer: Chunk | ResponseBody,
    *,
    model: str,
    priced: TokenUsage | None,
    around: Callable[[bytes], bytes] | None = None,
) -> AnswerPart:
    """Return an answer's `body` with the caller's model name, and a placeholder for the cost of
    `priced`.

    `around` puts the result into its event.
    """
    shift = 0
    if answer.model is not None and answer.model != model:
        place = places["model"]
        longer = len(body)
        body = replace(body, [(place, _MODEL, _encode(model))])
        if "usage" in places and place.start < places["usage"].start:
            shift = len(body) - longer
    usage = bytes(answer.usage)
    if not usage.startswith(b"{"):  # not a usage; the priced one came in another member
        return body if around is None else around(body)
    start = places["usage"].start + shift
    foreign, usage = usage, without_cost(usage)
    if usage is not foreign:
        body = body[:start] + usage + body[start + len(foreign) :]
    if priced is None or len(usage) > MAX_USAGE_BYTES:
        return body if around is None else around(body)
    inner = usage[:-1].rstrip()
    end = start + len(inner)
    return UnpricedPart(priced, body, end, end, _FIRST if inner == b"{" else _NEXT, around)


def without_cost(usage: bytes) -> bytes:
    """Return a usage without a member of the name that is ours: an upstream's cost is not the
    booked one. The same object if it has none, or is longer than any usage.
    """
    # `in` would create and drop an exception (Python 3.11).
    if usage.find(b"cost_usd") < 0 and usage.find(b"\\") < 0:
        return usage  # nearly every one
    return without_member(usage, "cost_usd") if len(usage) <= MAX_USAGE_BYTES else usage


def without_foreign_cost(payload: bytes, usage: bytes) -> bytes:
    """Return a stream event's payload with its usage as `without_cost`. Raises `MalformedJson`."""
    new = without_cost(usage) if usage.startswith(b"{") else usage
    if new is usage:
        return payload
    return replace(payload, [(locate_one(payload, _USAGE, usage), _USAGE, new)])


def without_usage(payload: bytes, usage: bytes) -> bytes:
    """Return a stream event's payload without its usage."""
    return _without(payload, _USAGE, usage)


def without_timings(payload: bytes, timings: bytes) -> bytes:
    """Return a stream event's payload without its timings."""
    return _without(payload, _TIMINGS, timings)


def _without(payload: bytes, quoted_name: bytes, value: bytes) -> bytes:
    """Return a stream event's payload without one of its members."""
    last = b"," + quoted_name + b":" + value + b"}"
    if payload.endswith(last):  # where servers write it: the event need not be walked
        return payload[: -len(last)] + b"}"
    return cut(payload, locate_one(payload, quoted_name, value))
