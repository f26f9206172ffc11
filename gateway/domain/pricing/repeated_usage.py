"""Compares the figures of one answer for the same count, in one usage or in several; reads nothing.

A later figure may be larger, because it counts more of the answer, or name more parts. A smaller
one contradicts the earlier one, and nothing tells which of them the provider bills.
"""

from __future__ import annotations

from msgspec.structs import asdict

from gateway.domain.pricing.tokens import TokenUsage

# Fewer of these cost more: the tokens are charged at the full rate.
DISCOUNTED = frozenset({"cached_input_tokens", "cached_audio_input_tokens"})


def dearer_count(name: str, one: int, other: int) -> int:
    """Return the dearer of two figures for a count: of cached tokens the lower, else the higher."""
    return min(one, other) if name in DISCOUNTED else max(one, other)


def dearer(one: TokenUsage, other: TokenUsage) -> TokenUsage:
    """Return each count of two usages by its dearer reading; one that only one usage has is taken
    from it.
    """
    if one == other:
        return one
    found = asdict(one)
    for name, count in asdict(other).items():
        known = found[name]
        if known is None:
            found[name] = count
        elif count is not None:
            found[name] = dearer_count(name, known, count)
    return TokenUsage(**found)


def is_cheaper(usage: TokenUsage, than: TokenUsage) -> bool:
    """Return True if a usage states a count for which another one states a dearer figure."""
    counts = asdict(usage)
    return any(
        counts[name] is not None
        and other is not None
        and dearer_count(name, counts[name], other) != counts[name]
        for name, other in asdict(than).items()
    )
