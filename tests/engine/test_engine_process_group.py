"""The processes of a group: which of them must live as long as the engine."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_factories import eventually

from engine.process_group import kill_group, members_of, workers_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

LEADER = "import subprocess, sys; [subprocess.Popen(c.split()) for c in sys.argv[1:]]; input()"


@pytest.fixture
def group(tmp_path: Path) -> Iterator[int]:
    """A leader with a worker and a compiler, which is a copy of `sleep` under another name."""
    compiler = tmp_path / "ninja"
    sleep = shutil.which("sleep")
    assert sleep is not None
    shutil.copy(sleep, compiler)
    leader = subprocess.Popen(
        [sys.executable, "-c", LEADER, "sleep 600", f"{compiler} 600"],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert eventually(
            lambda: {member.name for member in members_of(leader.pid)} >= {"sleep", "ninja"},
            deadline_s=120,
        )
        yield leader.pid
    finally:
        kill_group(leader.pid)
        leader.wait()
        assert leader.stdin is not None
        leader.stdin.close()


def test_a_compiler_is_no_worker(group: int) -> None:
    """It ends when its file is made; the engine must not be started again for that."""
    assert len(members_of(group)) == 3
    (worker,) = workers_of(group)
    assert worker.name == "sleep"
    assert worker.is_alive
    os.kill(worker.pid, signal.SIGKILL)
    assert eventually(lambda: not worker.is_alive, deadline_s=120)  # a zombie of its leader


def test_a_killed_group_has_no_member(group: int) -> None:
    """A restart beside the old workers would find their memory taken."""
    kill_group(group)
    assert members_of(group) == []
