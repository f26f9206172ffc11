"""Runs one program, vLLM, as the leader of a process group until it ends or a stop is requested,
and then ends the whole group; it restarts nothing.

vLLM is three processes or more. Killing only its API process leaves EngineCore and Worker running
with all the memory (seen in 0.32.0). So there are three safeguards. This process ends the group
when it is asked to, when its parent dies, or when the program ends. A guard ends the group when
this process is killed. The kernel signals the program when its parent is gone.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType

from engine import home as homes
from engine.children import start_bound

POLL_S = 0.2
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(slots=True)
class StopRequests:
    """The signals that asked this process to end."""

    taken: list[int] = field(default_factory=list)

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Record a signal; it is the handler of `STOP_SIGNALS`."""
        self.taken.append(number)

    @property
    def is_urgent(self) -> bool:
        """Return True if the same signal came twice, so the engine is to stop at once; Ctrl-C
        reaches us and our parent, which then sends SIGTERM once.
        """
        return len(set(self.taken)) < len(self.taken)


def run(
    argv: Sequence[str], environment: Mapping[str, str], *, grace_s: float, is_bound_to_parent: bool
) -> int:
    """Run a program as a process group until it ends or is asked to end.

    Return 0 if it was asked to end, else its own exit code, at least 1. `grace_s` is the program's
    time after SIGTERM before its group is killed.
    """
    stop = StopRequests()
    for number in STOP_SIGNALS:
        signal.signal(number, stop.on_signal)
    # Polled, because the kernel's PR_SET_PDEATHSIG would fire when the *thread* that started us
    # ends.
    parent = os.getppid() if is_bound_to_parent else None
    program = start_bound(argv, environment, is_group_leader=True)
    guard = _start_guard(program.pid, grace_s)
    try:
        was_asked = _wait(program, stop, parent)
        if was_asked:
            _stop_gracefully(program, stop, grace_s)
    finally:
        kill_group(program.pid)
        program.wait()
        _dismiss(guard)
    return 0 if was_asked else max(1, abs(program.returncode))


def _wait(program: subprocess.Popen[str], stop: StopRequests, parent: int | None) -> bool:
    """Wait until the program ends or must end; return True if an end was requested, False if it
    ended by itself.
    """
    while program.poll() is None:
        if stop.taken:
            return True
        if parent is not None and os.getppid() != parent:
            print(
                "The program that started the engine is gone: stopping.",
                file=sys.stderr,
                flush=True,
            )
            return True
        time.sleep(POLL_S)
    return bool(stop.taken)


def _stop_gracefully(program: subprocess.Popen[str], stop: StopRequests, grace_s: float) -> None:
    """Ask the leader to end and wait for it, at most `grace_s` or until a second signal."""
    # Only the leader: its workers must live until it has drained them.
    program.send_signal(signal.SIGTERM)
    deadline_s = time.monotonic() + grace_s
    while program.poll() is None and time.monotonic() < deadline_s and not stop.is_urgent:
        time.sleep(POLL_S)


def kill_group(group: int) -> None:
    """Kill every process that is left in a group, if there is one."""
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _start_guard(group: int, grace_s: float) -> subprocess.Popen[bytes]:
    """Start the guard process, which briefly outlives us and ends the group; the end of its
    standard input is its signal.
    """
    argv = [sys.executable, str(homes.PACKAGE / "guard.py"), str(group), str(grace_s)]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True)


def _dismiss(guard: subprocess.Popen[bytes]) -> None:
    """Kill the guard process, which is not needed after the program's end."""
    guard.kill()
    guard.wait()
