"""Names the members that the gateway adds to requests, and the field of a deployment that leaves
each of them out, for servers that refuse unknown members.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from enum import StrEnum

from gateway.domain.providers.hosted_tools import RoundLimit
from gateway.domain.providers.table import ProviderFacts

DEVELOPER, TOOL_CHOICE = "developer", "tool_choice"
# Words that a deployment may have in `refuses`: such a server is not sent them.
REFUSABLE = (DEVELOPER, TOOL_CHOICE)
# The role of the caller's messages that some servers do not know.
ROLE_SWITCH = f"`refuses: [{DEVELOPER}]` sends it as `system`"
_UNASKED = "`stream_usage: unasked` leaves it out, and usage of streams is an estimate then"
_FINAL = "`stream_usage: final` leaves it out"
_MAXIMUM = "`output_limit` chooses the member of the maximum"
_SALT = "`prompt_cache: trusted` or `shared` leaves it out"
_ROUNDS = "`hosted_rounds` chooses it, and requests without a hard budget go without it"
# Each member or part of one, and the field of the deployment that decides about it.
SWITCHES: Mapping[str, str] = {
    "continuous_usage_stats": _FINAL,
    "timings_per_token": _FINAL,
    "include_usage": _UNASKED,
    "stream_options": _UNASKED,
    "max_tokens": _MAXIMUM,
    "max_completion_tokens": _MAXIMUM,
    "max_output_tokens": "without `max_output_tokens` and a hard budget it is left out",
    "cache_salt": _SALT,
    "store": "`allows: [store]` leaves it out",
    "num_ctx": "without `context_window` it is left out",
    TOOL_CHOICE: f"`refuses: [{TOOL_CHOICE}]` leaves it out",
    **dict.fromkeys((*RoundLimit, "parallel_tool_calls"), _ROUNDS),
}
# The word by which callers of messages ask for a member of a chat.
ASKED_AS: Mapping[str, str] = {"parallel_tool_calls": "disable_parallel_tool_use"}


class StreamUsage(StrEnum):
    """How much of a stream's usage a deployment is asked for, if less than its provider reports."""

    FINAL = "final"  # at its end alone
    UNASKED = "unasked"


def asked_for(
    facts: ProviderFacts, stream_usage: StreamUsage | None, refuses: Set[str]
) -> ProviderFacts:
    """Return the facts of a provider of which a deployment asks no more usage than this, and which
    refuses these words, too.
    """
    if refuses:
        facts = replace(
            facts,
            takes_developer=facts.takes_developer and DEVELOPER not in refuses,
            needs_tool_choice=facts.needs_tool_choice and TOOL_CHOICE not in refuses,
        )
    if stream_usage is None:
        return facts
    takes_options = facts.takes_stream_options and stream_usage is not StreamUsage.UNASKED
    return replace(facts, running_usage=None, takes_stream_options=takes_options)
