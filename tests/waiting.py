"""Waiting for events elsewhere: for a condition, with a deadline, never for a fixed time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(look: Callable[[], T | None], what: str, *, within_s: float = 20.0) -> T:
    """Return the first truthy result of `look`; fail with a message if none came."""
    deadline_s = time.monotonic() + within_s
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline_s, f"{what} did not come within {within_s:.0f} s"
        time.sleep(0.05)


async def soon(look: Callable[[], T | None], what: str, *, within_s: float = 20.0) -> T:
    """The same inside a running loop, whose other tasks go on meanwhile."""
    deadline_s = time.monotonic() + within_s
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline_s, f"{what} did not come within {within_s:.0f} s"
        await asyncio.sleep(0.002)
