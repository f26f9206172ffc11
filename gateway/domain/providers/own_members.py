"""Names the members that the gateway adds to requests, and the field of a deployment that leaves
each of them out, for servers that refuse unknown members.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum

from gateway.domain.providers.table import ProviderFacts

_UNASKED = "`stream_usage: unasked` leaves it out, and usage of streams is an estimate then"
_FINAL = "`stream_usage: final` leaves it out"
_MAXIMUM = "`output_limit` chooses the member of the maximum"
_SALT = "`prompt_cache: trusted` or `shared` leaves it out"
# Each member or part of one, and the field of the deployment that decides about it.
SWITCHES: Mapping[str, str] = {
    "continuous_usage_stats": _FINAL,
    "timings_per_token": _FINAL,
    "include_usage": _UNASKED,
    "stream_options": _UNASKED,
    "max_tokens": _MAXIMUM,
    "max_completion_tokens": _MAXIMUM,
    "cache_salt": _SALT,
    "store": "`allows: [store]` leaves it out",
    "num_ctx": "without `context_window` it is left out",
}


class StreamUsage(StrEnum):
    """How much of a stream's usage a deployment is asked for, if less than its provider reports."""

    FINAL = "final"  # at its end alone
    UNASKED = "unasked"


def asked_for(facts: ProviderFacts, stream_usage: StreamUsage | None) -> ProviderFacts:
    """Return the facts of a provider of which a deployment asks no more usage than this."""
    if stream_usage is None:
        return facts
    takes_options = facts.takes_stream_options and stream_usage is not StreamUsage.UNASKED
    return replace(facts, running_usage=None, takes_stream_options=takes_options)
