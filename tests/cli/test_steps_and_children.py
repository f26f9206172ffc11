"""The output while `up` works, and the end of the processes that it starts."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.cli.terminal.progress import ProgressStep
from gateway.cli.up.children import ChildFailed, Children
from tests.gateway_process import REPOSITORY

SILENT_STEP = """
import sys
from gateway.cli.terminal.progress import ProgressStep
with ProgressStep("Working", usual_s=60):
    sys.stdin.readline()
"""
WAIT_FOR_REAPING = """
import json, pathlib, sys, time
print(json.dumps({"message": "waiting", "done": None, "total": None, "left_s": None}), flush=True)
number = pathlib.Path(sys.argv[1])
end = time.monotonic() + 20
while not number.exists() or pathlib.Path("/proc", number.read_text()).exists():
    if time.monotonic() > end:
        sys.exit("the other child is still there")
    time.sleep(0.05)
"""


def test_a_silent_step_shows_on_a_terminal_that_it_goes_on_and_how_long_it_takes() -> None:
    """Nothing is reported by the step itself; a person would take the terminal for dead."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", SILENT_STEP], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=theirs
    ) as step:
        os.close(theirs)
        shown = ""
        while len(times := re.findall(r"Working: (\d+) s, about (\d+) s left", shown)) < 3:
            shown += os.read(ours, 4096).decode()
        assert [int(passed) + int(left) for passed, left in times] == [60] * len(times)
        assert step.stdin is not None
        step.stdin.close()
        while "done in" not in shown:
            shown += os.read(ours, 4096).decode()
    os.close(ours)


def test_a_silent_step_writes_a_line_each_ten_seconds_to_a_log() -> None:
    """A log of a CI run must show that it goes on, and not a thousand lines of it."""
    with subprocess.Popen(
        [sys.executable, "-c", SILENT_STEP],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as step:
        assert step.stdout is not None
        assert step.stdin is not None
        assert step.stdout.readline() == "▸ Working: ... (about 1 min 00 s)\n"
        assert re.fullmatch(r"▸ Working: 1\d s, about \d+ s left\n", step.stdout.readline())
        step.stdin.close()
        assert step.stdout.readline().startswith("▸ Working: done in 1")


def test_a_child_that_is_done_is_reaped_while_another_is_followed(tmp_path: Path) -> None:
    """The engine's installation takes minutes; a demo-data that was done stayed defunct all the
    while.
    """
    children = Children(tmp_path / "logs")
    number = tmp_path / "number"
    write_number = f"import os, pathlib; pathlib.Path({str(number)!r}).write_text(str(os.getpid()))"
    try:
        children.start("done", [sys.executable, "-c", write_number], {}, may_end=True)
        children.begin("following", [sys.executable, "-c", WAIT_FOR_REAPING, str(number)], {})
        with ProgressStep("Waiting") as step:
            children.follow("following", step)
    finally:
        children.stop()


def test_a_child_that_dies_is_noticed_while_another_is_followed(tmp_path: Path) -> None:
    """Else a gateway that could not start is found out minutes later, when the engine is ready."""
    children = Children(tmp_path / "logs")
    try:
        children.start("gateway", [sys.executable, "-c", "raise SystemExit('no port')"], {})
        children.begin(
            "following", [sys.executable, "-c", WAIT_FOR_REAPING, str(tmp_path / "never")], {}
        )
        with (
            ProgressStep("Waiting") as step,
            pytest.raises(ChildFailed, match=r"gateway ended by itself \(exit 1\)[\s\S]*no port"),
        ):
            children.follow("following", step)
    finally:
        children.stop()
