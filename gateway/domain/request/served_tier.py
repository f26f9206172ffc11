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
# Stands for a statement that is no word, or for two that differ: no provider has such a tier.
UNKNOWN_TIER = "?"


def agreed_tier(known: str | None, stated: str | None) -> str | None:
    """Return the tier of an answer after one more statement of it; None if there is none so far.

    Two that differ are `UNKNOWN_TIER`: no provider's page names the one that is billed.
    """
    if not stated:
        return known
    return stated if not known or tier_name(known) == tier_name(stated) else UNKNOWN_TIER


def served_tier(
    asked: str | None, *, in_head: str | None, in_body: str | None, silence_is_standard: bool
) -> ServedTier:
    """Return the tier that an answer was served in.

    Head and body count alike, also for a request that asked for no tier. If both state one, they
    have to agree. Silence is the standard tier if nothing else was asked for, or if the provider
    has no other (`silence_is_standard`).
    """
    stated = agreed_tier(in_head, in_body)
    if stated:
        return (stated, True) if stated != UNKNOWN_TIER else UNKNOWN
    is_standard = asked is None or silence_is_standard
    return STANDARD if is_standard else UNKNOWN
