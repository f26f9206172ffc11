"""Compares the figures of one answer for the same count, in one usage or in several; reads nothing.

A later figure may be larger, because it counts more of the answer, or name more parts. One that
leaves a part out does not take it back. A smaller one contradicts the earlier one, and nothing
tells which of them the provider bills.
"""

from __future__ import annotations

from msgspec.structs import asdict, replace

from gateway.domain.pricing.tokens import TokenUsage

# Fewer of these cost more: the tokens are charged at the full rate.
DISCOUNTED = frozenset({"cached_input_tokens", "cached_audio_input_tokens"})
# Not a count of its own: it tells by how much a usage contradicts itself.
_GAP = "unexplained_tokens"
# A unit without a price holds the attempt, whichever usage states it.
_NEVER_TAKEN = DISCOUNTED | {_GAP, "input_tokens", "output_tokens", "unknown_units"}
_OF_ANSWER = frozenset(
    {"reasoning_tokens", "audio_output_tokens", "image_output_tokens", "unknown_output_tokens"}
)
_OF_PROMPT = frozenset(
    name
    for name in TokenUsage.__struct_fields__
    if name.endswith("_tokens") and name not in _OF_ANSWER
)


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


def completed(usage: TokenUsage, earlier: TokenUsage) -> TokenUsage:
    """Return a usage with the parts and calls that it leaves out and an earlier one states; the
    same object if there is none. A side that it does not state stays unknown. A discount is not
    taken over: without it the answer is never cheaper.
    """
    counts = asdict(usage)
    left_out = {name for name, count in counts.items() if count is None} - _NEVER_TAKEN
    if counts["output_tokens"] is None:
        left_out -= _OF_ANSWER
    if counts["input_tokens"] is None:
        left_out -= _OF_PROMPT
    found = {name: count for name, count in asdict(earlier).items() if name in left_out and count}
    return replace(usage, **found) if found else usage


def states_more(usage: TokenUsage, than: TokenUsage) -> bool:
    """Return True if a usage that cannot be true may stand for a dearer answer than another one: it
    cannot be read, or one of its counts is higher.
    """
    if usage.has_unread:
        return True
    counts = asdict(than)
    return any(
        (count or 0) > (counts[name] or 0)
        for name, count in asdict(usage).items()
        if name not in DISCOUNTED and name != _GAP
    )
