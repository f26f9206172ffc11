"""Shows a command's long step while it runs: one moving line with share and times on a terminal, or
a plain line every 10 s elsewhere.

The library rich draws the moving line.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.live import Live

PLAIN_LINE_EVERY_S = 10.0
MOVES_PER_S = 8
TITLE_LEAST = 4  # columns that the narrowest terminal leaves to the title


class ProgressStep:
    """One long step whose progress is shown on the terminal.

    Use it as a context manager: it shows its title at once and its duration at the end.

    In between a thread shows that it continues, even without reports. `usual_s` is the step's usual
    duration on two cores. The remaining time is computed from it until the step reports a better
    figure. A step that may be short shows nothing in its first `quiet_s` seconds.
    """

    def __init__(
        self,
        title: str,
        *,
        usual_s: float | None = None,
        quiet_s: float = 0.0,
        out: TextIO | None = None,
    ) -> None:
        """Make a step that shows nothing yet; `out` is standard output if left out."""
        self.title = title
        self._quiet_s = quiet_s
        self._figures = _Figures(began_s=monotonic(), usual_s=usual_s)
        self._out = sys.stdout if out is None else out
        self._display: _MovingLine | _PlainLines | None = None

    def __enter__(self) -> ProgressStep:
        """Show the step at once, unless it is to stay quiet for its first seconds."""
        if not self._quiet_s:
            self._show()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Stop the display and print the step's ending: done, failed or stopped, with its
        duration.
        """
        if self._display is None:
            return
        self._display.stop()
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            ending = "stopped after"
        else:
            ending = "failed in" if kind else "done in"
        line = f"▸ {self.title}: {ending} {self._figures.passed_s:.1f} s"
        print(line, file=self._out, flush=True)

    def say(self, text: str) -> None:
        """Print a line about the step that stays on the screen; the display must have started."""
        assert self._display is not None
        self._display.say(f"  {text}")

    def advance(self, part: str, *, done: float | None = None, left_s: float | None = None) -> None:
        """Show the step's progress: the `part` that it works on now, and the share `done` from 0 to
        1.
        """
        self._out.write("")  # the heartbeat takes a write as a sign of life
        self._figures.note(part, done=done, left_s=left_s)
        if self._display is None and self._figures.passed_s >= self._quiet_s:
            self._show()

    def _show(self) -> None:
        """Start the display: a moving line on a terminal, plain lines elsewhere."""
        console = _moving_console(self._out)
        if console is None:
            self._display = _PlainLines(self.title, self._figures, self._out)
        else:
            self._display = _MovingLine(self.title, self._figures, console)
        self._display.start()


def _moving_console(out: TextIO) -> Console | None:
    """Return rich's console if it moves a line on this stream.

    Otherwise rich would show nothing before the end: the environment can say that a terminal takes
    no escape sequences.
    """
    if not out.isatty():
        return None
    from rich.console import Console

    console = Console(file=out, highlight=False)
    can_move = console.is_terminal and console.is_interactive and not console.is_dumb_terminal
    return console if can_move else None


@dataclass(slots=True, kw_only=True)
class _Figures:
    """The share, times and state of a step; one thread writes it and another shows it."""

    began_s: float
    usual_s: float | None
    _part: str = ""
    _done: float | None = None
    _ends_s: float | None = None

    def __post_init__(self) -> None:
        """Set the expected end from the usual duration, if there is one."""
        if self.usual_s is not None:
            self._ends_s = self.began_s + self.usual_s

    @property
    def passed_s(self) -> float:
        """Return the seconds since the step began."""
        return monotonic() - self.began_s

    def note(self, part: str, *, done: float | None, left_s: float | None) -> None:
        """Record the present part, share and time left; without a usual duration the time left
        follows from the share.
        """
        if left_s is None and self.usual_s is None and done:
            left_s = self.passed_s * (1 / min(done, 1.0) - 1)
        if left_s is not None:
            self._ends_s = monotonic() + left_s
        self._part, self._done = part, done

    def times(self) -> str:
        """Return the step's share, its duration so far and the expected time left as text."""
        now_s = monotonic()
        parts = [] if self._done is None else [f"{min(max(self._done, 0.0), 1.0):.0%}"]
        parts.append(_duration_text(now_s - self.began_s))
        if self._ends_s is not None:
            left_s = self._ends_s - now_s
            parts.append(f"about {_duration_text(left_s)} left" if left_s >= 1 else "soon done")
        return ", ".join(parts)

    def part_suffix(self) -> str:
        """Return the present part as the progress line's end, `, PART`; empty without one."""
        return f", {self._part}" if self._part else ""


class _MovingLine:
    """The line on a terminal, and the renderable that rich asks for it at each move.

    A narrow terminal cuts the title and then the state, so that the times stay.
    """

    def __init__(self, title: str, figures: _Figures, console: Console) -> None:
        """Make the line without drawing it."""
        self._title, self._figures, self._console = title, figures, console
        self._live: Live | None = None

    def start(self) -> None:
        """Start drawing the moving line on the terminal."""
        from rich.live import Live
        from rich.spinner import Spinner

        self._spinner = Spinner("dots", style="cyan")
        self._live = Live(
            self,
            console=self._console,
            refresh_per_second=MOVES_PER_S,
            transient=True,
            # Text of others goes above the line, if it goes to a terminal.
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),
        )
        self._live.start()

    def stop(self) -> None:
        """Stop drawing, and remove the line from the terminal."""
        assert self._live is not None
        self._live.stop()

    def say(self, text: str) -> None:
        """Print a text above the moving line; it stays on the screen."""
        self._console.print(text, markup=False, soft_wrap=True)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the line as it is now, for rich: spinner, title, times and present part."""
        from rich.text import Text

        times = self._figures.times()
        title = Text(self._title)
        title.truncate(
            max(options.max_width - len(f"  : {times}…"), TITLE_LEAST), overflow="ellipsis"
        )
        frame = self._spinner.render(console.get_time())
        assert isinstance(frame, Text)
        text = f" {title}: {times}{self._figures.part_suffix()}"
        yield Text.assemble(frame, text, no_wrap=True, overflow="ellipsis")


class _PlainLines:
    """Progress as a few plain lines, for a file, a pipe or a terminal that cannot move its
    cursor.
    """

    def __init__(self, title: str, figures: _Figures, out: TextIO) -> None:
        """Make the display and its thread without starting them."""
        self._title, self._figures, self._out = title, figures, out
        self._ended = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True, name="progress")

    def start(self) -> None:
        """Print the step's title and usual duration, and start the thread for its progress."""
        usual_s = self._figures.usual_s
        self.say(
            f"▸ {self._title}: ..." + (f" (about {_duration_text(usual_s)})" if usual_s else "")
        )
        self._ticker.start()

    def stop(self) -> None:
        """Stop the thread that prints the progress."""
        self._ended.set()
        self._ticker.join()

    def say(self, text: str) -> None:
        """Print a line at once."""
        print(text, file=self._out, flush=True)

    def _tick(self) -> None:
        """Print a progress line every 10 s until the step ends. Runs in the display's thread."""
        while not self._ended.wait(PLAIN_LINE_EVERY_S):
            self.say(f"▸ {self._title}: {self._figures.times()}{self._figures.part_suffix()}")


def _duration_text(duration_s: float) -> str:
    """Return a duration for people: `45 s` or `3 min 20 s`."""
    minutes, seconds = divmod(round(duration_s), 60)
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
