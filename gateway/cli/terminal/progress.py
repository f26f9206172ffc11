"""Progress of long steps: their state, share and time.

One moving line on a terminal, a few plain ones elsewhere.

It imports only the standard library: the Makefile uses it before anything is installed.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from types import TracebackType

LIVE_LINE_EVERY_S = 1.0
LIVE_LINE_AT_MOST_EVERY_S = 0.2
PLAIN_LINE_EVERY_S = 10.0


class ProgressStep:
    """One step.

    Use it as a context manager: it prints its title at once and its duration at the end.

    In between a thread shows that it continues, even without reports. `usual_s` is the step's usual
    duration on two cores. The remaining time is computed from it until the step reports a better
    figure.
    """

    def __init__(self, title: str, *, usual_s: float | None = None) -> None:
        self.title = title
        self._is_live = sys.stdout.isatty()
        self._began_s = self._printed_s = time.monotonic()
        self._state = ""
        self._left_s = usual_s
        self._left_at_s = self._began_s
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True, name="progress")

    def __enter__(self) -> ProgressStep:
        self._line("..." if self._left_s is None else f"... (about {_words(self._left_s)})")
        self._ticker.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._ticker.join()
        took_s = time.monotonic() - self._began_s
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            ending = "stopped after"
        else:
            ending = "failed in" if kind else "done in"
        self._line(f"{ending} {took_s:.1f} s", is_last=True)

    def say(self, text: str) -> None:
        """Print a line that stays on the screen."""
        with self._lock:
            if self._is_live:
                sys.stdout.write("\r\x1b[2K")
            print(f"  {text}", flush=True)

    def advance(self, what: str, *, done: float | None = None, left_s: float | None = None) -> None:
        """Report the progress: `done` from 0 to 1."""
        with self._lock:
            self._state = ("" if done is None else f"{min(done, 1):4.0%} ") + what
            if left_s is not None:
                self._left_s, self._left_at_s = left_s, time.monotonic()
            self._show_if_due()

    def _tick(self) -> None:
        while not self._ended.wait(LIVE_LINE_EVERY_S):
            with self._lock:
                self._show_if_due()

    def _show_if_due(self) -> None:
        now_s = time.monotonic()
        if now_s - self._printed_s < (
            LIVE_LINE_AT_MOST_EVERY_S if self._is_live else PLAIN_LINE_EVERY_S
        ):
            return
        self._printed_s = now_s
        parts = [_words(now_s - self._began_s)]
        if self._left_s is not None:
            left_s = self._left_s - (now_s - self._left_at_s)
            parts.append(f"about {_words(left_s)} left" if left_s >= 1 else "soon done")
        # The times come first: a narrow terminal cuts off the end of the line.
        self._line(", ".join(parts + ([self._state] if self._state else [])))

    def _line(self, text: str, *, is_last: bool = False) -> None:
        if self._is_live:
            width = shutil.get_terminal_size().columns - 1
            sys.stdout.write(
                f"\r\x1b[2K{f'▸ {self.title}: {text}'[:width]}{chr(10) if is_last else ''}"
            )
            sys.stdout.flush()
        else:
            print(f"▸ {self.title}: {text}", flush=True)


def _words(duration_s: float) -> str:
    minutes, seconds = divmod(round(duration_s), 60)
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
