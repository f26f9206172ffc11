"""Runs one long command of the Makefile and shows how far it is: `python -m deploy.run_step TITLE
-- COMMAND …`.

What the command prints goes to a log, which is shown if it fails. The output of pip is read for its
progress. It imports nothing that has to be installed.
"""

from __future__ import annotations

import argparse
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TextIO

from engine.pip_output import PipOutput
from gateway.cli.terminal.progress import ProgressStep

LAST_LINES = 15
LOOK_EVERY_S = 1.0
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
        step = ProgressStep(options.title, usual_s=options.usual_s)
        try:
            with step:
                run(options.command, step, log)
        except subprocess.CalledProcessError as failed:
            log.seek(0)
            print("".join(log.readlines()[-LAST_LINES:]), end="", file=sys.stderr)
            return failed.returncode if failed.returncode > 0 else 1
    return 0


def run(command: list[str], step: ProgressStep, log: TextIO) -> None:
    """Run a command to its end. Raises `CalledProcessError`."""
    total = sum(packages_in(Path(name)) for flag, name in pairwise(command) if flag == "-r")
    site = next(Path(command[0]).parent.parent.glob("lib/python*/site-packages"), Path())
    pip = Pip(total=total, site=site, began_s=time.monotonic(), before=installed_in(site))
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as child:
        reader = threading.Thread(target=read_into, args=(child, lines), daemon=True)
        reader.start()
        while reader.is_alive() or not lines.empty():
            with suppress(queue.Empty):
                line = lines.get(timeout=LOOK_EVERY_S)
                log.write(line)
                pip.feed(line)
            if total:
                pip.show(step)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command)


def read_into(child: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
    """Pass on what a child prints: pip is silent while it unpacks, and its progress is looked up
    then.
    """
    assert child.stdout is not None
    for line in child.stdout:
        lines.put(line)


@dataclass(slots=True, kw_only=True)
class Pip:
    """How far one run of pip is."""

    total: int
    site: Path
    began_s: float
    before: int
    output: PipOutput = field(default_factory=PipOutput)

    def feed(self, line: str) -> None:
        """Take one line of pip's output."""
        self.output.feed(line)
        if line.startswith(INSTALLING):
            self.total = line.count(",") + 1  # without those of the lock that other platforms need

    def show(self, step: ProgressStep) -> None:
        """Say how many packages are fetched, or unpacked, and how long the rest takes at this
        pace.
        """
        if self.output.is_installing:
            unpacked = min(self.total, installed_in(self.site) - self.before)
            share = FETCH_SHARE + (1 - FETCH_SHARE) * unpacked / self.total
            what = f"unpacked {unpacked} of {self.total} packages"
        else:
            share = FETCH_SHARE * min(1.0, self.output.collected / self.total)
            what = f"{self.output.downloaded_bytes / 1e6:.0f} MB, {self.output.current}"
        elapsed_s = time.monotonic() - self.began_s
        step.advance(
            what, done=share, left_s=elapsed_s * (1 / share - 1) if share > MEANT_SHARE else None
        )


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
