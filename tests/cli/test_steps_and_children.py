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
LOADING_STEP = """
import sys, time
from gateway.cli.terminal.progress import ProgressStep
with ProgressStep("Engine: vLLM in its own environment", usual_s=100) as step:
    step.advance("fetching packages", done=0.25, left_s=90)
    step.say("a line that stays")
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


def shown_on_a_terminal(script: str, **variables: str) -> str:
    """Return everything that a script writes on a terminal until its step is done."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=REPOSITORY,
        env={**os.environ, **variables},
        stdin=subprocess.PIPE,
        stdout=theirs,
        stderr=theirs,
    ) as step:
        os.close(theirs)
        shown = b""
        while b"a line that stays" not in shown:
            shown += os.read(ours, 4096)
        assert step.stdin is not None
        step.stdin.close()
        while b"done in" not in shown:
            shown += os.read(ours, 4096)
    os.close(ours)
    return shown.decode()


@pytest.mark.parametrize("columns", [40, 120])
def test_a_narrow_terminal_keeps_the_times(columns: int) -> None:
    """The title is known by then, and a line that wraps cannot be replaced."""
    shown = shown_on_a_terminal(
        LOADING_STEP, COLUMNS=str(columns), NO_COLOR="1", TERM="xterm-256color"
    )
    moving = [
        frame
        for frame in re.split(r"\r|\n|\x1b\[[?0-9]*[A-Za-z]", shown)
        if frame.startswith(("⠋ ", "⠙ ", "⠹ "))
    ]
    assert moving
    assert all(len(frame) <= columns for frame in moving)
    assert re.search(r": 25%, \d s, about 1 min (30|29) s left", moving[-1])
    assert ("fetching packages" in moving[-1]) == (columns == 120)
    assert "  a line that stays\r\n" in shown


@pytest.mark.parametrize(
    "variables",
    [
        {"TERM": "dumb"},
        {"TERM": "dumb", "FORCE_COLOR": "1"},
        {"TERM": "xterm", "TTY_COMPATIBLE": "0"},
        {"TERM": "xterm", "TTY_INTERACTIVE": "0"},
        {"TERM": "xterm", "FORCE_COLOR": ""},
    ],
)
def test_a_terminal_that_cannot_move_its_cursor_gets_lines(variables: dict[str, str]) -> None:
    """The terminal of an editor or of a build server shows escape sequences as letters. For rich
    three variables decide about that, and a line that it does not move it does not show.
    """
    shown = shown_on_a_terminal(LOADING_STEP, **variables)
    assert "\x1b" not in shown
    assert shown.startswith("▸ Engine: vLLM in its own environment: ... (about 1 min 40 s)\r\n")


def test_a_short_step_may_stay_silent(capsys: pytest.CaptureFixture[str]) -> None:
    """Most replays of a plan take a second: a line about them would be noise in a script."""
    with ProgressStep("Replaying", quiet_s=60) as step:
        step.advance("1,000 requests", done=0.5)
    assert capsys.readouterr().out == ""
    with ProgressStep("Replaying", quiet_s=1e-9) as step:
        step.advance("1,000 requests", done=0.5)
    assert re.fullmatch(
        r"▸ Replaying: \.\.\.\n▸ Replaying: done in 0\.\d s\n", capsys.readouterr().out
    )


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


def test_a_killed_child_is_reported_with_its_signal(tmp_path: Path) -> None:
    """After `kill -9` the line read "ended by itself (exit -9)": the kernel kills so too, if memory
    is short.
    """
    children = Children(tmp_path / "logs")
    kill_itself = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    try:
        children.start("gateway", [sys.executable, "-c", kill_itself], {})
        with pytest.raises(ChildFailed, match=r"gateway was killed from outside \(signal 9\)"):
            children.finish("gateway")
    finally:
        children.stop()
