"""Progress of long steps: what, how far, how long. One moving line on a terminal, a few plain ones elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

PLAIN_LINE_EVERY_S = 10.0
_WIDTH = 78


class Step:
    """One step. Use as a context manager: it prints its title at once and how long it took at the end."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._is_live = sys.stdout.isatty()
        self._began_s = self._printed_s = time.monotonic()

    def __enter__(self) -> Step:
        self._line("...")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        took_s = time.monotonic() - self._began_s
        self._line(f"{'failed' if kind else 'done'} in {took_s:.1f} s", is_last=True)

    def say(self, text: str) -> None:
        """Say something worth keeping on the screen."""
        if self._is_live:
            sys.stdout.write("\r\x1b[2K")
        print(f"  {text}", flush=True)

    def advance(self, what: str, *, done: float | None = None, left_s: float | None = None) -> None:
        """Say how far it is: `done` from 0 to 1."""
        now_s = time.monotonic()
        if not self._is_live and now_s - self._printed_s < PLAIN_LINE_EVERY_S:
            return
        self._printed_s = now_s
        part = "" if done is None else f"{min(done, 1):4.0%} "
        left = "" if left_s is None else f", about {left_s:.0f} s left"
        self._line(f"{part}{what} ({now_s - self._began_s:.0f} s{left})")

    def _line(self, text: str, *, is_last: bool = False) -> None:
        if self._is_live:
            sys.stdout.write(f"\r\x1b[2K{f'▸ {self.title}: {text}'[:_WIDTH]}{chr(10) if is_last else ''}")
            sys.stdout.flush()
        else:
            print(f"▸ {self.title}: {text}", flush=True)
