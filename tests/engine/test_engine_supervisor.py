"""The promise of the supervisor: no process of an engine outlives the one that asked for it."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from engine_factories import PARENT_PROGRAM, eventually, is_alive, python_variables, supervised

from engine.supervisor import RestartWaits

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="looks for processes in /proc, which Linux alone has"
)


@contextmanager
def running(arguments: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    program = subprocess.Popen([sys.executable, *arguments], env=python_variables())
    try:
        yield program
    finally:
        program.kill()
        program.wait()


def pids_of(folder: Path) -> tuple[int, int]:
    """Return the pids of the stand-in's leader and worker, once both run."""
    assert eventually(
        lambda: (folder / "leader").exists() and (folder / "leader").read_text() != ""
    )
    return int((folder / "leader").read_text()), int((folder / "worker").read_text())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_whole_group(tmp_path: Path, number: signal.Signals) -> None:
    """vLLM's workers do not end with its API process; whoever stops the engine must get their
    memory back.
    """
    with running(supervised(tmp_path, grace_s=5)) as supervisor:
        pids = pids_of(tmp_path)
        supervisor.send_signal(number)
        assert supervisor.wait(timeout=20) == 0
    assert eventually(lambda: not any(map(is_alive, pids)))


def test_an_engine_deaf_to_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    """A hung engine must not hold up the shutdown of everything else."""
    with running(supervised(tmp_path, grace_s=0.5, is_deaf=True)) as supervisor:
        pids = pids_of(tmp_path)
        supervisor.terminate()
        assert supervisor.wait(timeout=20) == 0
    assert eventually(lambda: not any(map(is_alive, pids)))


def test_the_same_signal_twice_does_not_wait_for_the_grace(tmp_path: Path) -> None:
    """A person who presses Ctrl-C twice means now."""
    with running(supervised(tmp_path, grace_s=600, is_deaf=True)) as supervisor:
        pids = pids_of(tmp_path)

        def has_ended_after_another() -> bool:
            supervisor.send_signal(signal.SIGINT)
            return supervisor.poll() is not None

        assert eventually(has_ended_after_another)
    assert eventually(lambda: not any(map(is_alive, pids)))


def test_a_killed_parent_takes_the_engine_with_it(tmp_path: Path) -> None:
    """After `kill -9` of `tollgate up` no process is left to send a signal."""
    with running(["-c", PARENT_PROGRAM, *supervised(tmp_path, grace_s=5)]) as parent:
        pids = pids_of(tmp_path)
        parent.kill()
        assert eventually(lambda: not any(map(is_alive, pids)))


def test_a_killed_supervisor_takes_the_engine_with_it(tmp_path: Path) -> None:
    """The supervisor itself can be killed too, by the kernel when memory runs out for one."""
    with running(supervised(tmp_path, grace_s=5)) as supervisor:
        pids = pids_of(tmp_path)
        supervisor.kill()
        assert eventually(lambda: not any(map(is_alive, pids)))


def test_a_killed_leader_takes_its_workers_with_it(tmp_path: Path) -> None:
    """An API process that crashed would leave its workers on the GPU; the exit code must say that
    it crashed.
    """
    with running(supervised(tmp_path, grace_s=5)) as supervisor:
        leader, worker = pids_of(tmp_path)
        subprocess.run(["kill", "-9", str(leader)], check=True)
        assert supervisor.wait(timeout=20) == signal.SIGKILL
        assert eventually(lambda: not is_alive(worker))


def test_waits_double_to_a_minute_and_are_short_again_after_a_ready_engine() -> None:
    """A broken engine must not take a core for itself, and a healthy one must be back at once."""
    waits = RestartWaits()
    taken = [waits.next_s() for _ in range(9)]
    assert taken == [0.5, 1, 2, 4, 8, 16, 32, 60, 60]
    waits.reset()
    assert waits.next_s() == 0.5
