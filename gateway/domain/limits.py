"""Limits: how many requests and tokens in any 60 seconds, and how many requests at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """None is no limit. Tokens are those of prompt and answer together."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent: int | None = None

    @property
    def is_limited(self) -> bool:
        """Whether anything is limited."""
        return self != NO_LIMITS


NO_LIMITS = Limits()
