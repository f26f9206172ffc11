"""Meters whole answers of a shape that is not their dialect's: a proxy's wrapper, a ticket for an
answer that is made later. Something may have been generated, so without a usage inside they stay
unknown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from gateway.domain.pricing.tokens import TokenUsage
from gateway.wire.foreign_json import object_of
from gateway.wire.observed import Observed

MOST_OBJECTS = 64  # that are looked at
MOST_LEVELS = 4  # each level is encoded once more


def note_unknown(
    observed: Observed, body: bytes, usage_in: Callable[[bytes], TokenUsage | None]
) -> None:
    """Record an answer of an unknown shape, and each usage inside it; `usage_in` reads that of one
    object of the dialect.
    """
    observed.note_unread()
    for usage in usages_within(body, usage_in):
        observed.note_final(usage)


def usages_within(
    body: bytes, usage_in: Callable[[bytes], TokenUsage | None]
) -> Iterator[TokenUsage]:
    """Yield the usages of the outermost objects in a body that report one; none of a body that is
    too large to be decoded at once.
    """
    todo: deque[tuple[Any, int]] = deque([(object_of(body), MOST_LEVELS)])
    left = MOST_OBJECTS
    while todo and left:
        value, levels = todo.popleft()
        if isinstance(value, dict):
            left -= 1
            usage = usage_in(msgspec.json.encode(value))
            if usage is not None:
                yield usage
                continue
        if levels and isinstance(value, dict | list):
            inner = value.values() if isinstance(value, dict) else value[:MOST_OBJECTS]
            todo.extend((one, levels - 1) for one in inner if isinstance(one, dict | list))
