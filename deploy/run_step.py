"""Runs one long command of the Makefile and shows its progress: `python -m deploy.run_step TITLE
-- COMMAND …`.

The command's output goes to a log, which is shown if the command fails. The output of pip is read
for its progress. Nothing is installed yet, so this imports the standard library alone.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TextIO

from engine.pip_output import PipOutput

LAST_LINES = 15
LOOK_EVERY_S = 1.0
PLAIN_LINE_EVERY_S = 10.0
TITLE_LEAST = 4  # columns
ERASE = "\r\x1b[2K"
MEANT_SHARE = 0.05  # below it the time left is a guess
FETCH_SHARE = (
    0.5  # of pip's time; unpacking and compiling is the rest (measured 2026-11-23, nearby mirror)
)
INSTALLING = "Installing collected packages: "


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m deploy.run_step")
    parser.add_argument("title")
    parser.add_argument(
        "--usual-s", type=float, required=True, help="how long it takes on two cores"
    )
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        step = StepLine(title=options.title, usual_s=options.usual_s)
        step.show(f"... (about {words(options.usual_s)})")
        try:
            status = run(options.command, step, log)
        except BaseException:
            step.show(f"stopped after {step.passed_s:.1f} s", stays=True)
            raise
        step.show(f"{'failed' if status else 'done'} in {step.passed_s:.1f} s", stays=True)
        if status:
            log.seek(0)
            print("".join(log.readlines()[-LAST_LINES:]), end="", file=sys.stderr)
    return status if status >= 0 else 1


def run(command: list[str], step: StepLine, log: TextIO) -> int:
    """Run a command to its end; return its status, negative if a signal ended it."""
    total = sum(packages_in(Path(name)) for flag, name in pairwise(command) if flag == "-r")
    site = next(Path(command[0]).parent.parent.glob("lib/python*/site-packages"), Path())
    pip = Pip(total=total, site=site, before=installed_in(site))
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as child:
        threading.Thread(target=read_into, args=(child, lines), daemon=True).start()
        line: str | None = ""
        while line is not None:
            log.write(line)
            pip.feed(line)
            step.advance(*pip.progress())
            try:
                line = lines.get(timeout=LOOK_EVERY_S)
            except queue.Empty:
                line = ""
    return child.returncode


@dataclass(slots=True, kw_only=True)
class StepLine:
    """The line of a step: it moves on a terminal, and is repeated every ten seconds elsewhere.

    The command line draws its own steps with rich, which is not installed yet.
    """

    title: str
    usual_s: float
    is_live: bool = field(
        default_factory=lambda: sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    )
    _began_s: float = field(default_factory=time.monotonic)
    _shown_s: float = field(default_factory=time.monotonic)

    @property
    def passed_s(self) -> float:
        return time.monotonic() - self._began_s

    def advance(self, share: float, state: str) -> None:
        """Show the share, the times and the state, if the last line is old enough."""
        every_s = LOOK_EVERY_S if self.is_live else PLAIN_LINE_EVERY_S
        if time.monotonic() - self._shown_s < every_s:
            return
        self._shown_s = time.monotonic()
        passed_s = self.passed_s
        whole_s = passed_s / share if share > MEANT_SHARE else self.usual_s
        left = f"about {words(whole_s - passed_s)} left" if whole_s > passed_s else "soon done"
        times = ", ".join([f"{share:.0%}"] * bool(share) + [words(passed_s), left])
        self.show(times, f", {state}" if state else "")

    def show(self, text: str, state: str = "", *, stays: bool = False) -> None:
        """Write a line; on a terminal the next one replaces it unless it stays.

        A narrow terminal cuts the title and the state, so that the text stays.
        """
        if not self.is_live:
            print(f"▸ {self.title}: {text}{state}", flush=True)
        elif stays:
            print(f"{ERASE}▸ {self.title}: {text}", flush=True)
        else:
            columns = shutil.get_terminal_size().columns - 1
            title = self.title[: max(columns - len(f"▸ : {text}"), TITLE_LEAST)]
            print(f"{ERASE}{f'▸ {title}: {text}{state}'[:columns]}", end="", flush=True)


def read_into(child: subprocess.Popen[str], lines: queue.SimpleQueue[str | None]) -> None:
    """Pass on a child's lines, then None. While pip unpacks it prints none."""
    assert child.stdout is not None
    for line in child.stdout:
        lines.put(line)
    lines.put(None)


@dataclass(slots=True, kw_only=True)
class Pip:
    """The progress of one run of pip."""

    total: int
    site: Path
    before: int
    output: PipOutput = field(default_factory=PipOutput)

    def feed(self, line: str) -> None:
        """Take one line of pip's output."""
        self.output.feed(line)
        if line.startswith(INSTALLING):
            self.total = line.count(",") + 1  # without those of the lock that other platforms need

    def progress(self) -> tuple[float, str]:
        """Return the share from 0 to 1 and the state; neither is known of another command."""
        if not self.total:
            return 0.0, ""
        if self.output.is_installing:
            unpacked = min(self.total, installed_in(self.site) - self.before)
            share = FETCH_SHARE + (1 - FETCH_SHARE) * unpacked / self.total
            return share, f"unpacked {unpacked} of {self.total} packages"
        share = FETCH_SHARE * min(1.0, self.output.collected / self.total)
        return share, f"{self.output.downloaded_bytes / 1e6:.0f} MB {self.output.current}".rstrip()


def words(duration_s: float) -> str:
    """Return "45 s" or "3 min 20 s"."""
    minutes, seconds = divmod(round(duration_s), 60)
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"


def installed_in(site: Path) -> int:
    """Count the packages that are unpacked."""
    return sum(1 for _ in site.glob("*.dist-info"))


def packages_in(lock: Path) -> int:
    """Count the packages that a requirements file pins for some platform."""
    return len(
        re.findall(
            r"^[a-z0-9][^\s=]*==",
            lock.read_text(encoding="utf-8"),
            flags=re.MULTILINE | re.IGNORECASE,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
