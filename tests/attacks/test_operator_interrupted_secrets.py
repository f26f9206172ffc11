"""A full disk, or a kill, left an empty file in place of a secret, and no command repaired it.

Found by an attacker who simulated an operator of a failing system, on 2026-11-23.
"""

from __future__ import annotations

import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.errors import BadUsage
from gateway.storage import private_files
from gateway.storage.policy import pepper


def test_an_empty_pepper_is_made_again(tmp_path: Path) -> None:
    """No key can have been made with an empty pepper."""
    path = tmp_path / "pepper"
    path.touch(mode=0o600)
    with pytest.raises(BadUsage, match="db upgrade"):
        pepper.load(path)
    pepper.create(path)
    assert len(pepper.load(path)) == 1


def test_a_full_disk_leaves_no_file(tmp_path: Path) -> None:
    """The next run begins as if there had been no file."""
    code = (
        "import resource, signal, sys; from pathlib import Path; from gateway.storage.policy "
        "import pepper\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "pepper.create(Path(sys.argv[1]))"
    )
    path = tmp_path / "pepper"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
    )
    assert "cannot be written: File too large" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_many_first_starts_make_one_secret(tmp_path: Path) -> None:
    """Otherwise each process would use its own secret."""
    path = tmp_path / "password"
    path.touch(mode=0o600)

    def start(number: int) -> str:
        private_files.create(path, f"secret {number}")
        return path.read_text()

    with ThreadPoolExecutor(8) as starts:
        (secret,) = set(starts.map(start, range(100)))
    assert secret.startswith("secret ")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["password"]
