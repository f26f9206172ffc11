"""Usability D7: a command printed nothing for 40 seconds if Postgres accepts connections and
stays silent.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from gateway.cli.terminal.heartbeat import heartbeat

REPOSITORY = Path(__file__).parents[2]


def test_a_command_says_that_it_waits_and_gives_up(tmp_path: Path) -> None:
    """A person who sees nothing kills the command, and learns nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"postgresql://u:p@127.0.0.1:{silent.getsockname()[1]}/tollgate"
        done = subprocess.run(
            [sys.executable, "-m", "gateway.main", "budget", "list"],
            env={**os.environ, "TOLLGATE_DATABASE_URL": address, "TOLLGATE_HOME": str(tmp_path)},
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 3, done
    assert "Still working after" in done.stderr
    assert "Postgres cannot be reached at 127.0.0.1:" in done.stderr


def test_a_command_that_prints_is_left_alone() -> None:
    """Progress of its own is enough; a second voice in between would only disturb."""
    written: list[str] = []

    class Stream:
        def write(self, text: str) -> int:
            written.append(text)
            return len(text)

        def flush(self) -> None:
            pass

    before = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = Stream()  # type: ignore[assignment]
    try:
        with heartbeat(["report", "spend"], silent_s=30):
            print("a row")
        with heartbeat(["serve"], silent_s=0.001):
            assert isinstance(sys.stdout, Stream)
        with heartbeat(["report", "spend"], silent_s=0.001):
            while not any("Still working" in text for text in written):
                time.sleep(0.001)
    finally:
        sys.stdout, sys.stderr = before
    assert written[0] == "a row"
