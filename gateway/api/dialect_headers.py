"""Reads the headers and the query of a request that belong to its dialect, for upstreams that speak
the same; it forwards none.

Only headers of this list pass: others choose a workspace or an account, which the policy decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec.structs import replace

from gateway.domain.operation import Operation
from gateway.domain.providers.members.effects import BETAS
from gateway.domain.request.request import RequestBody
from gateway.errors import InvalidRequest
from gateway.wire.translation.left_out import BETA_HEADER, BETA_MARK

FORWARDED = frozenset({b"anthropic-version", b"anthropic-beta"})
_VALUE = re.compile(rb"[\x21-\x7e][\x20-\x7e]{0,2047}")
_BETA_QUERY = re.compile(rb"[?&]beta=true(?:&|$)")
# A window larger than the declared one makes the hold too small.
_LARGER_WINDOW = "context-1m"
_MOST_NAMED = 16  # unlisted betas


def read(fields: Iterable[tuple[bytes, bytes]]) -> tuple[tuple[str, str], ...]:
    """Return the forwarded headers of a request, each once; a repeated one becomes one list.

    Raises `InvalidRequest` for a value that no header can carry on.
    """
    found: dict[bytes, list[bytes]] = {}
    for name, value in fields:
        if name in FORWARDED:
            found.setdefault(name, []).append(value)
    headers = []
    for name, values in found.items():
        joined = b",".join(values)
        if not _VALUE.fullmatch(joined):
            raise InvalidRequest(
                f"The header {name.decode()} is longer than 2,048 letters or not ASCII. Nothing "
                "was sent.",
                param=name.decode(),
            )
        headers.append((name.decode(), joined.decode()))
    return tuple(headers)


def is_beta(target: bytes) -> bool:
    """Return True if a request's target asks for beta members, as the official clients do."""
    return _BETA_QUERY.search(target) is not None


def with_needs(read_body: RequestBody, headers: Iterable[tuple[str, str]]) -> RequestBody:
    """Return a request with the permissions that its headers need, and with their unlisted
    betas.
    """
    facts = read_body.facts
    if facts.operation is not Operation.MESSAGES:
        return read_body
    betas = [
        one.strip() for name, value in headers if name == BETA_HEADER for one in value.split(",")
    ]
    if unlisted := [one for one in betas if one and one not in BETAS][:_MOST_NAMED]:
        parts = facts.unlisted_parts.union(BETA_MARK + one for one in unlisted)
        facts = replace(facts, unlisted_parts=parts)
    feature = "other_maximum"
    if any(_LARGER_WINDOW in one.lower() for one in betas):
        place = BETA_MARK + _LARGER_WINDOW
        is_new = feature not in facts.features
        facts = replace(
            facts,
            features=facts.features | {feature},
            named=(*facts.named, (feature, place)) if is_new else facts.named,
            unbounded=facts.unbounded | {place},
        )
    return read_body if facts is read_body.facts else replace(read_body, facts=facts)
