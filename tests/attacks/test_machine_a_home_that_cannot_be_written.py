"""On a home that is mounted read-only, or another user's, `doctor` printed no check at all and
asked for a bug report, at the moment at which the runbooks send an operator to it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bare_environment import BARE

ROOT = Path(__file__).parents[2]
NOBODY = 65_531
# Mounted read-only for this program alone.
READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"'
JOURNAL = """
import sys
from pathlib import Path
from gateway.errors import BadUsage
from gateway.storage.journal.journal import Journal
try:
    Journal.create(Path(sys.argv[1]), max_bytes=2**30, on_failed_sync=print)
except BadUsage as wrong:
    print(wrong.message)
"""
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts and gives files away")


@pytest.fixture
def home() -> Iterator[Path]:
    """Yield a home of root with a folder of journals."""
    with tempfile.TemporaryDirectory(prefix="tollgate-home-", dir="/tmp") as made:
        folder = Path(made)
        folder.chmod(0o755)
        (folder / "journal").mkdir(mode=0o755)
        yield folder


def tollgate(
    home: Path, *arguments: str, before: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a command with this home, over a database that never answers."""
    return subprocess.run(
        [*before, sys.executable, "-m", "gateway.main", *arguments],
        env={
            **BARE,
            "HOME": str(home.parent),
            "TOLLGATE_HOME": str(home),
            "TOLLGATE_DATABASE_URL": "postgresql://tollgate@127.0.0.1:1/none",
        },
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def read_only(home: Path) -> tuple[str, ...]:
    """Return the beginning of a command line that sees the home mounted read-only."""
    return ("unshare", "--mount", "sh", "-c", READ_ONLY, "sh", str(home))


def other_user(_: Path) -> tuple[str, ...]:
    """Return the beginning of a command line of another user."""
    return ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")


@pytest.mark.parametrize("as_seen_by", [read_only, other_user])
def test_doctor_names_it_and_goes_on(home: Path, as_seen_by: object) -> None:
    assert callable(as_seen_by)
    told = tollgate(home, "doctor", "--format", "json", before=as_seen_by(home))
    assert "should not" not in told.stderr, told.stderr
    checks = {row["check"]: row for row in json.loads(told.stdout)}
    journals = checks["journals"]
    assert journals["status"] == "fail"
    assert str(home) in journals["finding"]
    assert journals["what to do"]
    assert {"database", "ports"} & checks.keys(), "the other checks are there"


def test_a_gateway_says_that_the_disk_is_read_only(home: Path) -> None:
    """The remedy was to make room, which nobody can there."""
    told = subprocess.run(
        [*read_only(home), sys.executable, "-c", JOURNAL, str(home / "journal")],
        cwd=ROOT,
        env=BARE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Read-only file system. Mount its file system for writing" in told.stdout, told.stderr
