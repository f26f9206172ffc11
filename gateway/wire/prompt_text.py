"""Checks whether a request has any text for a model; if it has, settlement believes no reported
prompt of 0 tokens.
"""

from __future__ import annotations

import msgspec

from gateway.domain.policy.known_members import SCORED_TEXTS
from gateway.domain.request.request import RequestBody

SHORT_BYTES = 4096
_PROMPTS = (
    "messages",
    "prompt",
    "input",
    "inputs",
    "content",
    "texts",
    "instructions",
    "system",
    "tools",
    *SCORED_TEXTS,
)
_LABELS = frozenset({"role", "type"})


def has_prompt_text(read: RequestBody) -> bool:
    """Return True if a model has something to read besides its template.

    Long inputs are not inspected.
    """
    places = [read.members[name] for name in _PROMPTS if name in read.members]
    if any(place.end - place.start > SHORT_BYTES for place in places):
        return True
    todo = [msgspec.json.decode(read.body[place.start : place.end]) for place in places]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            todo.extend(inner for name, inner in value.items() if name not in _LABELS)
        elif isinstance(value, list):
            todo.extend(value)
        elif value not in ("", None):  # token ids are numbers
            return True
    return False
