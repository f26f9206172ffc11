"""Decides in which service tier an attempt was served, by the statements of its answer and the
tier that its request asked for.
"""

from __future__ import annotations

from typing import TypeAlias

from gateway.domain.pricing.pricing import tier_name

# The upstream's own word for the tier, None if it states none or contradicts itself; and False if
# the attempt cannot be charged by it: a tier was asked for, and nothing says if it was granted.
# A plain tuple: one is made for each attempt.
ServedTier: TypeAlias = tuple[str | None, bool]
STANDARD: ServedTier = (None, True)
UNKNOWN: ServedTier = (None, False)


def served_tier(
    asked: str | None, *, in_head: str | None, in_body: str | None, silence_is_standard: bool
) -> ServedTier:
    """Return the tier that an answer was served in.

    Head and body count alike, also for a request that asked for no tier. If both state one, they
    have to agree. Silence is the standard tier if nothing else was asked for, or if the provider
    has no other (`silence_is_standard`).
    """
    if in_head and in_body:
        agree = tier_name(in_head) == tier_name(in_body)
        return (in_body, True) if agree else UNKNOWN
    stated = in_head or in_body
    if stated:
        return stated, True
    is_standard = asked is None or silence_is_standard
    return STANDARD if is_standard else UNKNOWN
