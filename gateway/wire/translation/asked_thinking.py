"""Reads whether a request asks its model to think, in the members of every dialect of callers.

Asked only about an answer without usage, so nothing here is on the way of an ordinary request.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from gateway.domain.request.request import RequestBody

# OpenAI's and OpenRouter's, Anthropic's (DeepSeek's and Z.ai's too), Ollama's, and Qwen's.
_MEMBERS = ("reasoning_effort", "reasoning", "thinking", "think", "enable_thinking")
_OFF = frozenset({"none", "disabled", "off", "false"})
# The members of an object that decide; a summary or a visibility alone asks for nothing.
_DECIDING = ("effort", "type", "enabled", "max_tokens", "budget_tokens")


def asks_thinking(read: RequestBody, *, left_out: Iterable[str] = ()) -> bool | None:
    """Return True if a request asks for thinking, False if it asks for none, None if it leaves that
    to the model. `left_out` are the members that were not sent.
    """
    lost = {name.split(".")[0] for name in left_out}
    found = [
        _decided(msgspec.json.decode(read.body[place.start : place.end]))
        for name in _MEMBERS
        if name not in lost and (place := read.members.get(name)) is not None
    ]
    known = [one for one in found if one is not None]
    return any(known) if known else None


def _decided(value: Any) -> bool | None:
    """Return the decision in the value of a member; None if there is none."""
    if isinstance(value, dict):
        found = [_decided(value[name]) for name in _DECIDING if name in value]
        known = [one for one in found if one is not None]
        return all(known) if known else None
    if isinstance(value, str):
        return value.lower() not in _OFF
    if isinstance(value, bool):
        return value
    return value > 0 if isinstance(value, int) else None
