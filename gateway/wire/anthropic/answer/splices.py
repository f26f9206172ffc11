"""Splices the caller's model name and a placeholder for the cost into a message's bytes."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gateway.domain.pricing.tokens import TokenUsage
from gateway.wire.dialect import AnswerPart, UnpricedPart
from gateway.wire.foreign_json import MAX_USAGE_BYTES
from gateway.wire.members import locate_one, replace
from gateway.wire.openai.answer.answer_splices import without_cost

_MODEL, _USAGE, _COST = b'"model"', b'"usage"', b'"cost_usd"'
_FIRST, _NEXT = _COST + b":", b"," + _COST + b":"
_encode = msgspec.json.Encoder().encode


def renamed(body: bytes, model: msgspec.Raw, to: str) -> bytes:
    """Return an object with its model name replaced; unchanged if it names no other model.

    Raises `MalformedJson` if the member occurs twice.
    """
    sent, wanted = bytes(model), _encode(to)
    if not sent.startswith(b'"') or sent == wanted:
        return body
    return replace(body, [(locate_one(body, _MODEL, sent), _MODEL, wanted)])


def with_cost(
    body: bytes,
    usage: msgspec.Raw,
    priced: TokenUsage | None,
    *,
    around: Callable[[bytes], bytes] | None = None,
) -> AnswerPart:
    """Return an object with a placeholder for the cost of `priced` in its member `usage`, and
    without an upstream's member of that name.

    `around` puts the result into its event. Raises `MalformedJson` if the member occurs twice.
    """
    encoded = bytes(usage)
    if not encoded.startswith(b"{"):
        return body if around is None else around(body)
    foreign, encoded = encoded, without_cost(encoded)
    if priced is None or len(encoded) > MAX_USAGE_BYTES:
        if encoded is not foreign:
            body = replace(body, [(locate_one(body, _USAGE, foreign), _USAGE, encoded)])
        return body if around is None else around(body)
    start = locate_one(body, _USAGE, foreign).start
    if encoded is not foreign:
        body = body[:start] + encoded + body[start + len(foreign) :]
    inner = encoded[:-1].rstrip()
    end = start + len(inner)
    return UnpricedPart(priced, body, end, end, _FIRST if inner == b"{" else _NEXT, around)
