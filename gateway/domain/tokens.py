"""Token counts in one normal form, for every provider. Unknown is None and never 0; 0 is never unknown."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class TokenKind(StrEnum):
    """What one line of a receipt charges for. The four parts are disjoint; see `pricing.lines`."""

    INPUT = "input"  # neither read from nor written to the provider's cache
    CACHED_INPUT = "cached_input"
    CACHE_WRITE = "cache_write"
    OUTPUT = "output"  # reasoning included, unless the price has a rate of its own for it
    REASONING = "reasoning"


class UsageSource(StrEnum):
    """How sure a count is."""

    PROVIDER = "provider"  # the upstream's own final figure
    DERIVED = "derived"  # a running figure of the upstream, or counted
    ESTIMATED = "estimated"
    NONE = "none"  # provably nothing was served
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUsage:
    """Tokens of one attempt.

    `input_tokens` includes cached and cache-write tokens, `output_tokens` includes reasoning tokens.
    A field is None where the upstream did not report it.
    """

    input_tokens: int | None = None
    cached_input_tokens: int | None = None
    cache_write_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None

    @property
    def is_plausible(self) -> bool:
        """False where the parts contradict each other: negative, or a part larger than its whole."""
        counts = (self.input_tokens, self.cached_input_tokens, self.cache_write_tokens)
        if any(n is not None and not 0 <= n < 10**11 for n in (*counts, self.output_tokens, self.reasoning_tokens)):
            return False
        parts = (self.cached_input_tokens or 0) + (self.cache_write_tokens or 0)
        return parts <= (self.input_tokens or 0) and (self.reasoning_tokens or 0) <= (self.output_tokens or 0)


NOTHING_SERVED = TokenUsage(
    input_tokens=0, cached_input_tokens=0, cache_write_tokens=0, output_tokens=0, reasoning_tokens=0
)
