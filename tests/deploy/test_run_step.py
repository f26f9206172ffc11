"""The steps of the Makefile, which run before anything is installed."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.gateway_process import REPOSITORY


def run_step(script: str) -> subprocess.CompletedProcess[str]:
    """Run a step as the Makefile does, without any installed package: -S leaves them out."""
    bare = [sys.executable, "-S"]
    step = [*bare, "-m", "deploy.run_step", "Making it", "--usual-s", "90", "--"]
    return subprocess.run(
        [*step, *bare, "-c", script],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_step_has_one_line_at_its_start_and_one_at_its_end() -> None:
    """The output of pip would bury them."""
    step = run_step("print('a thousand lines')")
    assert step.returncode == 0
    assert re.fullmatch(
        r"▸ Making it: \.\.\. \(about 1 min 30 s\)\n▸ Making it: done in \d+\.\d s\n", step.stdout
    )
    assert step.stderr == ""


def test_a_step_that_fails_shows_the_end_of_its_log() -> None:
    """The status of the command ends make, and the reason stands below the step."""
    step = run_step("print('the reason'); raise SystemExit(3)")
    assert step.returncode == 3
    assert re.search(r"▸ Making it: failed in \d+\.\d s\n$", step.stdout)
    assert step.stderr == "the reason\n"


def test_a_step_that_a_signal_ended_has_failed() -> None:
    """A status below zero is no exit code: make would read it as success or as another number."""
    assert run_step("import os; os.kill(os.getpid(), 9)").returncode == 1
