"""Starts the processes of `up`, each with its own log, shows their progress, raises if one ends too
early, and ends all of them together; it restarts none.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

from gateway.cli.child_process import die_with
from gateway.cli.terminal.progress import ProgressStep
from gateway.errors import OperatorError

STOP_GRACE_S = 40.0  # longer than the gateway's own drain and the engine's shutdown timeout
LOOK_EVERY_S = 0.2
# Of a child's log and of the one before it: a flood of lines must not fill the journal's disk.
MOST_LOG_BYTES = 16 * 2**20


class ChildFailed(OperatorError):
    """A process that ended too early; the message has the end of its log."""


class Children:
    """The running processes, in their starting order; `stop` ends them."""

    def __init__(self, logs: Path, *, most_log_bytes: int = MOST_LOG_BYTES) -> None:
        """Start without processes; make the folder of their logs."""
        self.logs, self._most_log_bytes = logs, most_log_bytes
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._may_end: set[str] = set()
        logs.mkdir(parents=True, exist_ok=True, mode=0o700)

    def log_path(self, name: str) -> Path:
        """Return the path of a child's log file."""
        return self.logs / f"{name}.log"

    def _open_log(self, name: str) -> BinaryIO:
        """Return a child's empty log; each write goes to its end, also after it was emptied."""
        path = self.log_path(name)
        path.unlink(missing_ok=True)
        return path.open("ab")

    def _turn_logs_over(self) -> None:
        """Keep the beginning of a log that has grown beside it, and empty the log.

        The child keeps its descriptor; lines that it writes during the copy may be lost.
        """
        for path in map(self.log_path, self._running):
            if path.exists() and path.stat().st_size > self._most_log_bytes:
                shutil.copyfile(path, path.with_suffix(".log.1"))
                os.truncate(path, 0)

    def start(
        self, name: str, argv: Sequence[str], variables: Mapping[str, str], *, may_end: bool = False
    ) -> None:
        """Start a process in its own session, so that only `stop` ends it on Ctrl-C.

        `may_end`: it is a task that ends when it is done.
        """
        self._may_end |= {name} if may_end else set()
        with self._open_log(name) as log:
            self._running[name] = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **variables},
                start_new_session=True,
                preexec_fn=partial(die_with, os.getpid()),  # one syscall, no locks
            )

    def begin(self, name: str, argv: Sequence[str], variables: Mapping[str, str]) -> None:
        """Start a process that reports its progress as JSON lines; `follow` waits for its end."""
        self._may_end.add(name)
        with self._open_log(name) as log:
            self._running[name] = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **variables},
                start_new_session=True,
                preexec_fn=partial(die_with, os.getpid()),  # as above
            )

    def follow(self, name: str, step: ProgressStep) -> None:
        """Show a started process's progress until its end. Raises `ChildFailed`."""
        child = self._running[name]
        for line in self._lines(name, child):
            _show(step, line)
        status = child.wait()
        del self._running[name]
        if status:
            raise ChildFailed(f"{step.title} failed.\n{self.log_tail(name)}")

    def _lines(self, name: str, child: subprocess.Popen[bytes]) -> Iterator[bytes]:
        """Yield a child's output, and check the others meanwhile: an ended one is reaped, or is
        an error.
        """
        assert child.stdout is not None
        rest = b""
        while True:
            self.require_alive(but=name)
            if not select.select([child.stdout], [], [], LOOK_EVERY_S)[0]:
                continue
            read = os.read(child.stdout.fileno(), 65536)
            *lines, rest = (rest + read).split(b"\n")
            yield from lines
            if not read:
                child.stdout.close()
                return

    def require_alive(self, *, but: str | None = None) -> None:
        """Raise `ChildFailed` if a process has ended, except a task that ended well and the process
        `but`, whose end the caller itself awaits. Logs that have grown are turned over.
        """
        self._turn_logs_over()
        for name, child in self._running.items():
            if name == but:
                continue
            is_done = name in self._may_end and child.poll() == 0
            if child.poll() is not None and not is_done:
                raise ChildFailed(
                    f"The {name} {_ending(child.returncode)}. The end of "
                    f"{self.log_path(name)}:\n"
                    f"{self.log_tail(name)}"
                )

    def finish(self, name: str) -> None:
        """Wait until a task, a process that may end by itself, has ended. Raises `ChildFailed` if
        it failed.
        """
        while self._running[name].poll() is None:
            self.require_alive()
            time.sleep(LOOK_EVERY_S)
        self.require_alive()

    def log_tail(self, name: str, lines: int = 15) -> str:
        """Return the last lines of a child's log."""
        return "\n".join(self.log_path(name).read_text(errors="replace").splitlines()[-lines:])

    def stop(self) -> None:
        """End all processes, last started first: SIGTERM, then SIGKILL to the remaining process
        groups.
        """
        for child in reversed(self._running.values()):
            _signal_group(child, signal.SIGTERM, whole_group=False)
        deadline = time.monotonic() + STOP_GRACE_S
        for child in reversed(self._running.values()):
            try:
                child.wait(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
            _signal_group(child, signal.SIGKILL, whole_group=True)
            child.wait()
        self._running.clear()


def _show(step: ProgressStep, line: bytes) -> None:
    """Show one JSON line of a child's progress in the step; ignore any other line."""
    try:
        event = json.loads(line)
    except ValueError:
        return
    if not isinstance(event, dict):
        return
    if event["done"] is None or not event["total"]:
        step.say(event["message"])
    else:
        step.advance(event["message"], done=event["done"] / event["total"], left_s=event["left_s"])


def _ending(code: int) -> str:
    """Describe the end of a process that nothing here stopped; a negative code is a signal's."""
    if code < 0:
        return f"was killed from outside (signal {-code})"
    return f"ended by itself (exit {code})"


def _signal_group(
    child: subprocess.Popen[bytes], number: signal.Signals, *, whole_group: bool
) -> None:
    """Send a signal to a process or its whole group, unless it has ended."""
    try:
        if whole_group:
            os.killpg(child.pid, number)
        elif child.poll() is None:
            child.send_signal(number)
    except ProcessLookupError:
        pass
