"""A full disk or a closed output was called a fault of Tollgate, the help and an early Ctrl-C ended
in a traceback, and Ctrl-C at a question ended with 1.

Found on 2026-11-24 by an attacker who simulated an operator of a failing system.
"""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.gateway_process import REPOSITORY

TOLLGATE = [sys.executable, "-m", "gateway.main"]
LIMIT_S = 30
INTERRUPTED_IMPORT = """
import sys
wanted, sys.argv[1:] = sys.argv[1], ["team", "list"]
class Interrupts:
    def find_spec(self, name, *_):
        if name == wanted:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupts())
from gateway.main import run
run()
"""


@pytest.mark.parametrize("arguments", [["--help"], ["report", "list"], ["policy", "schema"]])
def test_a_full_disk_is_named_and_is_no_fault_of_tollgate(arguments: list[str]) -> None:
    """The operator was asked to report a defect, or shown a traceback."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*TOLLGATE, *arguments],
            cwd=REPOSITORY,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 3
    assert _told(done.stderr) == [
        "The output cannot be written: No space left on device. Make room, and run it again."
    ]


def test_a_closed_output_is_no_fault_of_tollgate() -> None:
    """Some supervisors start their jobs so."""
    command = f"{sys.executable} -m gateway.main report list >&-"
    done = subprocess.run(
        ["bash", "-c", command], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert (done.returncode, _told(done.stderr)) == (0, [])


def test_an_output_of_another_encoding_gets_escapes() -> None:
    """The dash of an unknown figure ended each report on a terminal of Latin-1."""
    done = subprocess.run(
        [*TOLLGATE, "report", "list"],
        cwd=REPOSITORY,
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "latin-1"},
        check=False,
    )
    assert done.returncode == 0
    assert b"\\u2014" in done.stdout


@pytest.mark.parametrize("module", ["gateway.settings", "gateway.cli.app", "typer.core"])
def test_ctrl_c_during_the_imports_prints_no_traceback(module: str) -> None:
    """They take a quarter of a second, and much more on a slow disk."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT, module],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, _told(done.stderr)) == (130, [])


def test_ctrl_c_at_a_question_ends_with_130(
    cli: Cli, database_url: str, policy_file: Path, tmp_path: Path
) -> None:
    """A script could not tell it from a rejected document."""
    environment = {"TOLLGATE_DATABASE_URL": database_url, "TOLLGATE_HOME": str(tmp_path / "home")}
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(REPOSITORY)
        command = [*TOLLGATE, "policy", "apply", str(policy_file)]
        os.execve(sys.executable, command, {**os.environ, **environment})
    shown = b""
    end_s = time.monotonic() + LIMIT_S
    while b"[y/N]" not in shown and time.monotonic() < end_s:
        shown += os.read(terminal, 65_536)
    status = _status_after_ctrl_c(pid, terminal)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 130
    assert "No policy was applied yet" in cli("policy", "history").err


def _told(errors: str) -> list[str]:
    """Return the lines of standard error without those that a slow machine adds."""
    return [line for line in errors.splitlines() if not line.startswith("Still working after")]


def _status_after_ctrl_c(pid: int, terminal: int) -> int:
    """Press Ctrl-C until a command ends; return its wait status.

    Python loses the key between the question and its wait for an answer; a person presses it again.
    """
    while True:
        os.write(terminal, b"\x03")
        again_s = time.monotonic() + LIMIT_S  # a second one in the command's last step kills it
        while time.monotonic() < again_s:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return status
            time.sleep(0.05)
