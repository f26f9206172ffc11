"""Waiting for events elsewhere: for a condition, with a deadline, never for a fixed time.

No test asserts how long something takes: a deadline here only ends a test that would hang.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def eventually(look: Callable[[], T | None], what: str, *, within_s: float = 60.0) -> T:
    """Return the first truthy result of `look`; fail with a message if none came."""
    deadline_s = time.monotonic() + within_s
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline_s, f"{what} did not come within {within_s:.0f} s"
        time.sleep(0.05)


async def soon(look: Callable[[], T | None], what: str, *, within_s: float = 60.0) -> T:
    """The same inside a running loop, whose other tasks go on meanwhile."""
    deadline_s = time.monotonic() + within_s
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline_s, f"{what} did not come within {within_s:.0f} s"
        await asyncio.sleep(0.002)


def without_hanging(call: Callable[[], T], *, within_s: float = 60.0) -> T:
    """Return the result of a call that may block its thread for good, or raise its error; fail with
    `TimeoutError` if it has not ended.
    """
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, daemon=True, name="a call that may hang").start()
    return result.result(within_s)


def plain_loop_s(count: int) -> float:
    """Return the CPU seconds of this thread for a plain loop of `count` steps: a measure of work
    that is slow on a slow machine, too.
    """
    began_s = time.thread_time()
    for _ in range(count):
        pass
    return time.thread_time() - began_s
