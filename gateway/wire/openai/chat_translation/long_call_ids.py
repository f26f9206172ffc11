"""Shortens the ids of tool calls in a chat's messages for providers with a bound.

A session that comes from another provider brings that one's ids. Those of Gemini hold a thought's
signature of hundreds of letters (`tool_call_ids`).
"""

from __future__ import annotations

import re
from hashlib import sha256

from gateway.wire.openai.tool_call_ids import without_signature

# A quote inside a string is escaped, so neither matches within a text of the caller. Ids of other
# things, as of an earlier answer's audio, are never a result's.
_OF_RESULTS = re.compile(rb'"tool_call_id"\s*:\s*"([^"\\]+)"')
_IDS = re.compile(rb'("(?:tool_call_)?id"\s*:\s*")([^"\\]+)"')
_PREFIX = "call_"


def with_short_ids(messages: bytes, most_chars: int) -> bytes:
    """Return the JSON of a chat's messages with no longer ids of answered calls; a call and its
    result keep the same one. Equal ids become equal ones in every turn, so cached prompts stay.
    """
    long = {one for one in _OF_RESULTS.findall(messages) if len(one) > most_chars}
    if not long:
        return messages
    short = {one: _short(one.decode("utf-8", "replace"), most_chars).encode() for one in long}
    return _IDS.sub(lambda at: at[1] + short.get(at[2], at[2]) + b'"', messages)


def _short(call_id: str, most_chars: int) -> str:
    """Return the provider's own id if that is short enough, else one made of the whole id."""
    own, _ = without_signature(call_id)
    if 0 < len(own) <= most_chars:
        return own
    return (_PREFIX + sha256(call_id.encode()).hexdigest())[:most_chars]
