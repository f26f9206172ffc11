"""Prints the progress of one stage of a `python -m engine` command: text lines for people, or JSON
lines for the program that called it.

Text is a few plain lines on standard output, or on a terminal a bar for each step. JSON is one
object per line, and `tollgate up` draws a moving line from it: `{"stage", "step", "message",
"done", "total", "unit", "elapsed_s", "left_s"}`; unknown values are null.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TextIO

from engine.arguments.called import named

Format = Literal["text", "json"]
LINE_EVERY_S = 10.0  # pace of the text lines of one step
BAR_CELLS = 30
BAR_EVERY_S = 0.1


@dataclass(slots=True, kw_only=True)
class StageProgress:
    """Reports the steps of one stage ("setup", "model", "wait")."""

    stage: str
    format: Format
    out: TextIO = field(default_factory=lambda: sys.stdout)
    clock: Callable[[], float] = time.monotonic
    _start_s: float = field(init=False)
    _last_line_s: float = field(init=False, default=float("-inf"))
    _has_bar: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        """Start the stage's clock."""
        self._start_s = self.clock()

    @property
    def elapsed_s(self) -> float:
        """Return the seconds since the stage began."""
        return self.clock() - self._start_s

    def say(self, step: str, message: str) -> None:
        """Print a message about a step at once, without figures."""
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
        """Report the progress of a step in figures; as text only every ten seconds, as JSON each
        time.
        """
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
        """Print a report as a JSON line or as text; passing text is printed only every ten
        seconds.
        """
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
        text = named(message)
        if done is not None and total is not None:
            text += f": {done:.0f} of {total:.0f} {unit}"
        if left_s is not None:
            text += f", about {duration_text(left_s)} left"
        if is_passing and self.out.isatty() and done is not None and total:
            self._draw(text, share=done / total)
            return
        if is_passing and self.clock() - self._last_line_s < LINE_EVERY_S:
            return
        self._last_line_s = self.clock()
        if self._has_bar:
            print(file=self.out)
            self._has_bar = False
        print(text, file=self.out, flush=True)

    def _draw(self, text: str, *, share: float) -> None:
        """Draw a bar over the last one; end its line when the step is done."""
        if share < 1 and self.clock() - self._last_line_s < BAR_EVERY_S:
            return
        self._last_line_s = self.clock()
        cells = round(min(1.0, share) * BAR_CELLS)
        bar = "#" * cells + "." * (BAR_CELLS - cells)
        self._has_bar = share < 1
        end = "" if self._has_bar else "\n"
        print(f"\r\x1b[K[{bar}] {text}", end=end, file=self.out, flush=True)


def duration_text(duration_s: float) -> str:
    """Return a duration as text for people: "45 s" or "3 min 20 s"."""
    minutes, seconds = divmod(round(duration_s), 60)
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
