"""A disk that is full, and a command that is stopped: no file stays half written, and the same
command completes its work later.

Found on 2026-11-27 by an attacker who simulated an operator of a failing system.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.domain.ledger.usage_event import UsageEvent
from gateway.errors import OperatorError
from gateway.storage.ledger.bulk import BulkLedger
from tests.cli.conftest import Cli, cli, cli_at
from tests.factories import NOW
from tests.gateway_process import REPOSITORY
from tests.journal.factories import file_limit
from tests.waiting import eventually

__all__ = ["cli", "cli_at"]

SIZE = ("--months", "2", "--events", "3000", "--teams", "6")
LIMIT_S = 60
# The real entry, whose writer is held up: the file is open for as long as the signal needs.
HELD_UP = """
import signal, sys, time
from pathlib import Path
from gateway.cli.app import run_cli
from gateway.cli.terminal.replaced_file import replaced_file
import gateway.cli.team as team

@team.app.command("hold-up")
def hold_up() -> None:
    with replaced_file(Path(sys.argv[1])) as out:
        out.write(b"half")
        out.flush()
        time.sleep(60)

sys.exit(run_cli(lambda: None, ["team", "hold-up"]))
"""


def test_demo_files_on_a_full_disk_are_completed_by_the_next_run(cli: Cli, tmp_path: Path) -> None:
    """A half invoice was taken for another person's file, and the repeat was refused."""
    at_noon = Cli(replace(cli.toolbox, now=lambda: NOW))
    command = ("demo-data", *SIZE, "--as-ledger", "--format", "json", "--out", f"{tmp_path / 'd'}")
    with file_limit(8192):
        ran = at_noon(*command)
    assert ran.code == 1
    assert "The events are in the ledger" in ran.err
    there = {path.name: path.read_bytes() for path in (tmp_path / "d").iterdir()}
    made = json.loads(at_noon.ok(*command))
    assert made["new_events"] == 0
    assert len(made["files"]) > len(there)
    assert (
        there.items()
        <= {path.name: path.read_bytes() for path in (tmp_path / "d").iterdir()}.items()
    )


def _killed(_: int) -> tuple[list[UsageEvent], None]:
    """Make a slice in a process that runs out of memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    return [], None


def test_a_killed_writer_of_the_demo_is_no_fault_of_tollgate(database_url: str) -> None:
    """The kernel ends the largest process; the operator was asked to report a defect."""
    ledger = BulkLedger(database_url, role_if_member="tollgate_gateway")
    with pytest.raises(OperatorError, match="repeat the command"):
        list(ledger.copy([1, 2], _killed, processes=2))


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_workbook_on_a_full_disk_is_one_message(cli: Cli, tmp_path: Path) -> None:
    """Python's ZIP writer printed a traceback behind the message, when it was collected."""
    with file_limit(1024):
        ran = cli("report", "spend", "--out", str(tmp_path / "spend.xlsx"))
        gc.collect()
    assert ran.code == 2
    assert "spend.xlsx cannot be written: File too large" in ran.err
    assert not list(tmp_path.glob("*spend*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_stopped_command_leaves_no_unfinished_file(tmp_path: Path, number: int) -> None:
    """`timeout`, a supervisor or a closed terminal left a hidden file of any size at each run."""
    folder = tmp_path / "out"
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", HELD_UP, str(folder / "events.csv")], cwd=REPOSITORY
    )
    try:
        eventually(lambda: any(folder.iterdir()), "the new file", within_s=LIMIT_S)
        process.send_signal(number)
        assert process.wait(LIMIT_S) == 128 + number
    finally:
        process.kill()
    assert list(folder.iterdir()) == []


def test_an_ignored_hangup_stays_ignored(tmp_path: Path) -> None:
    """`nohup` promises that the command goes on."""
    folder = tmp_path / "out"
    folder.mkdir()
    process = subprocess.Popen(
        ["nohup", sys.executable, "-c", HELD_UP, str(folder / "events.csv")],
        cwd=REPOSITORY,
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: any(folder.iterdir()), "the new file", within_s=LIMIT_S)
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 128 + signal.SIGTERM
    finally:
        process.kill()
