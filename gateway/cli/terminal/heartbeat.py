"""Prints a line on standard error after two silent seconds of a command, and then more rarely, so
that a person sees it working; not for serve, dashboard, up and engine.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

SILENT_S, MOST_SILENT_S = 2.0, 30.0
# These are silent because nothing happens.
RUNS_ON = frozenset({"serve", "dashboard", "up", "engine"})


@contextmanager
def heartbeat(arguments: list[str], *, silent_s: float = SILENT_S) -> Iterator[None]:
    """Print a line on standard error after `silent_s` seconds in which the command prints nothing,
    each next one after twice the time.
    """
    if not RUNS_ON.isdisjoint(arguments):
        yield
        return
    streams = sys.stdout, sys.stderr
    began_s = monotonic()
    watched = tuple(_Watched(stream) for stream in streams)
    done = threading.Event()
    thread = threading.Thread(
        target=_print_when_silent, args=(watched, began_s, silent_s, done), daemon=True
    )
    sys.stdout, sys.stderr = watched
    thread.start()
    try:
        yield
    finally:
        done.set()
        sys.stdout, sys.stderr = streams


class _Watched:
    """A standard stream that records the time of its last write."""

    def __init__(self, stream: Any) -> None:
        """Watch a stream; the time begins now."""
        self._stream = stream
        self.written_s = monotonic()

    def write(self, text: str) -> int:
        """Write the text unchanged, and record the time."""
        self.written_s = monotonic()
        return int(self._stream.write(text))

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the watched stream."""
        return getattr(self._stream, name)


def _print_when_silent(
    watched: tuple[_Watched, ...], began_s: float, silent_s: float, done: threading.Event
) -> None:
    """Print the line after each silent time, until `done` is set. Runs in a thread beside the
    command.
    """
    waits_s = silent_s
    while not done.wait(waits_s):
        silent_since_s = max(stream.written_s for stream in watched)
        waits_s = silent_s - (monotonic() - silent_since_s)
        if waits_s <= 0:
            waits_s = silent_s = min(2 * silent_s, MOST_SILENT_S)
            working_s = monotonic() - began_s
            sys.stderr.write(f"Still working after {working_s:.0f} s. Ctrl-C stops it.\n")
            sys.stderr.flush()
