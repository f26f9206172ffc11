"""Progress of a long command, for people or for the program that called it.

Text goes to standard output as one changing line on a terminal and as a few plain lines elsewhere.
JSON is one object per line: `{"stage", "step", "message", "done", "total", "unit", "elapsed_s",
"left_s"}`; unknown values are null.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TextIO

Format = Literal["text", "json"]
QUIET_LINE_EVERY_S = 10.0
"""Pace of the text lines if the output is a file, not a terminal."""


@dataclass(slots=True, kw_only=True)
class StageProgress:
    """Reports the steps of one stage ("setup", "model", "wait")."""

    stage: str
    format: Format
    out: TextIO = field(default_factory=lambda: sys.stdout)
    clock: Callable[[], float] = time.monotonic
    _start_s: float = field(init=False)
    _last_line_s: float = field(init=False, default=float("-inf"))
    _is_line_open: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._start_s = self.clock()

    @property
    def elapsed_s(self) -> float:
        return self.clock() - self._start_s

    def say(self, step: str, message: str) -> None:
        """Report a single event."""
        self._write(step, message, done=None, total=None, unit=None, left_s=None, is_passing=False)

    def advance(
        self,
        step: str,
        message: str,
        *,
        done: float,
        total: float,
        unit: str,
        left_s: float | None = None,
    ) -> None:
        """Report a step's progress; on a terminal the line is written over."""
        self._write(
            step, message, done=done, total=total, unit=unit, left_s=left_s, is_passing=True
        )

    def _write(
        self,
        step: str,
        message: str,
        *,
        done: float | None,
        total: float | None,
        unit: str | None,
        left_s: float | None,
        is_passing: bool,
    ) -> None:
        if self.format == "json":
            line = {
                "stage": self.stage,
                "step": step,
                "message": message,
                "done": done,
                "total": total,
                "unit": unit,
                "elapsed_s": round(self.elapsed_s, 1),
                "left_s": None if left_s is None else round(left_s, 1),
            }
            print(json.dumps(line), file=self.out, flush=True)
            return
        text = message
        if done is not None and total is not None:
            text += f": {done:.0f} of {total:.0f} {unit}"
        if left_s is not None:
            text += f", about {duration_text(left_s)} left"
        self._write_text(text, is_passing=is_passing)

    def _write_text(self, text: str, *, is_passing: bool) -> None:
        if self.out.isatty():
            end = "" if is_passing else "\n"
            print(f"\r\x1b[2K{text}", end=end, file=self.out, flush=True)
            self._is_line_open = is_passing
            return
        if is_passing and self.clock() - self._last_line_s < QUIET_LINE_EVERY_S:
            return
        self._last_line_s = self.clock()
        print(text, file=self.out, flush=True)

    def close(self) -> None:
        """End a line that is still being written over."""
        if self._is_line_open:
            print(file=self.out, flush=True)
            self._is_line_open = False


def duration_text(duration_s: float) -> str:
    """Return "45 s" or "3 min 20 s"."""
    minutes, seconds = divmod(round(duration_s), 60)
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
