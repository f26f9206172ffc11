"""Recorded streams, event by event."""

from __future__ import annotations

from functools import cache
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden"


def events_of(transcript: bytes) -> tuple[bytes, ...]:
    """Return a recorded stream by events, each with its empty line."""
    return tuple(part + b"\n\n" for part in transcript.split(b"\n\n") if part)


@cache
def transcript(case: str) -> tuple[bytes, ...]:
    """Return the events of a recorded case."""
    return events_of((GOLDEN / case / "upstream.sse").read_bytes())
