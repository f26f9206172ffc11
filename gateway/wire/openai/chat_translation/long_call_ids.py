"""Shortens the ids of tool calls in a chat's messages for providers with a bound or a length.

A session that comes from another provider brings that one's ids. Those of Gemini hold a thought's
signature of hundreds of letters (`tool_call_ids`).
"""

from __future__ import annotations

import re
from hashlib import sha256

import msgspec

from gateway.wire.openai.tool_call_ids import without_signature

# A quote inside a string is escaped, so neither matches within a text of the caller. Ids of other
# things, as of an earlier answer's audio, are never a result's.
_OF_RESULTS = re.compile(rb'"tool_call_id"\s*:\s*"((?:[^"\\]|\\.)+)"')
_IDS = re.compile(rb'("(?:tool_call_)?id"\s*:\s*")((?:[^"\\]|\\.)+)"')
_PREFIX = "call_"


def with_short_ids(messages: bytes, most_chars: int, *, is_exact: bool = False) -> bytes:
    """Return the JSON of a chat's messages with no longer ids of answered calls; a call and its
    result keep the same one. Equal ids become equal ones in every turn, so cached prompts stay.
    `is_exact`: an id has just so many letters and digits.
    """
    letters, least = ("[a-zA-Z0-9]", most_chars) if is_exact else (".", 1)
    legal = re.compile(f"{letters}{{{least},{most_chars}}}")
    sent = {one: msgspec.json.decode(b'"%b"' % one) for one in _OF_RESULTS.findall(messages)}
    long = {one: text for one, text in sent.items() if not legal.fullmatch(text)}
    if not long:
        return messages
    prefix = "" if is_exact else _PREFIX
    short = {
        one: msgspec.json.encode(_short(text, legal, prefix=prefix)[:most_chars])[1:-1]
        for one, text in long.items()
    }
    return _IDS.sub(lambda at: at[1] + short.get(at[2], at[2]) + b'"', messages)


def _short(call_id: str, legal: re.Pattern[str], *, prefix: str) -> str:
    """Return the provider's own id if that is a legal one, else a long one made of the whole id."""
    own, _ = without_signature(call_id)
    return own if legal.fullmatch(own) else prefix + sha256(call_id.encode()).hexdigest()
