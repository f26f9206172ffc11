"""Makes SIGTERM and SIGHUP end a command as Ctrl-C does: `timeout`, a supervisor or a closed
terminal then leaves no unfinished file and no running query.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from gateway.cli.terminal.heartbeat import RUNS_ON

STOPS = (signal.SIGTERM, signal.SIGHUP)
SIGNALLED = 128  # a shell adds the signal's number to it


@contextmanager
def stop_signals(arguments: list[str]) -> Iterator[list[int]]:
    """Raise `KeyboardInterrupt` in the block at a signal to stop, and yield the list that then has
    its number. A second signal ends the process at once.

    A signal that is ignored stays ignored (nohup). serve, dashboard, up and engine have handlers of
    their own.
    """
    taken: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        for each in handled:
            signal.signal(each, signal.SIG_DFL)
        taken.append(number)
        raise KeyboardInterrupt

    is_main = threading.current_thread() is threading.main_thread()
    handled = [
        number
        for number in STOPS
        if is_main and RUNS_ON.isdisjoint(arguments) and signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in handled:
        signal.signal(number, stop)
    try:
        yield taken
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)
