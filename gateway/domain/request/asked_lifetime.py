"""Finds the longest lifetime that a request asks for its writes to a provider's prompt cache."""

from __future__ import annotations

import re

# By the words of the members `ttl` and `prompt_cache_retention`, the longest first. A prompt that
# has one as a whole text looks like it, and costs more only if the usage names no lifetime.
_LIFETIMES = (
    (re.compile(rb'"(?:12h|24h)"'), "cache_write_12h_tokens"),
    (re.compile(rb'"(?:1h|60m|3600s?)"'), "cache_write_1h_tokens"),
    (re.compile(rb'"(?:30m|1800s?)"'), "cache_write_30m_tokens"),
)


def asked_lifetime(body: bytes) -> str | None:
    """Return the count of the longest lifetime that a request's body names; None if it names none,
    so that its writes are for the provider's own shortest time.
    """
    return next((name for word, name in _LIFETIMES if word.search(body)), None)
