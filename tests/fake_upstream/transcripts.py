"""Recorded streams, event by event."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden"


def events_of(transcript: bytes) -> tuple[bytes, ...]:
    """Return a recorded stream by events, each with its empty line."""
    return tuple(re.findall(rb".+?(?:\r?\n\r?\n|\Z)", transcript, re.DOTALL))


def messages_of(transcript: bytes) -> tuple[bytes, ...]:
    """Return a recorded AWS event stream by messages: each begins with its length."""
    found = []
    while transcript:
        length = int.from_bytes(transcript[:4])
        found.append(transcript[:length])
        transcript = transcript[length:]
    return tuple(found)


@cache
def transcript(case: str) -> tuple[bytes, ...]:
    """Return the events of a recorded case, in its dialect's framing."""
    (path,) = (GOLDEN / case).glob("upstream.*")
    recorded = path.read_bytes()
    if path.suffix == ".bin":
        return messages_of(recorded)
    if path.suffix == ".ndjson":
        return tuple(recorded.splitlines(keepends=True))
    return events_of(recorded)
