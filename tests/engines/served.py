"""Serves the tiny model with `engine serve`, as an operator does; finds the engine's processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.gateway_process import REPOSITORY, free_port

PROGRAM = (sys.executable, "-m", "engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedEngine:
    """A running `engine serve`; `log` has everything that it and vLLM printed."""

    url: str
    pid: int
    log: Path

    def leader(self) -> int | None:
        """Return the process that serves HTTP, the leader of the engine's group; None without."""
        return next((pid for pid in _children(self.pid) if _is_leader(pid)), None)

    def cores(self) -> list[int]:
        """Return the processes that run the model; they have a title of vLLM's."""
        leader = self.leader()
        found = [] if leader is None else _below(leader)
        return [pid for pid in found if b"EngineCore" in _title(pid) or b"Worker" in _title(pid)]

    def says(self) -> str:
        """Return the log so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")


@contextmanager
def served(log: Path, *arguments: str) -> Iterator[ServedEngine]:
    """Serve the tiny model until the end of the block; it is ready at the beginning."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as out:
        serve = subprocess.Popen(
            [*PROGRAM, "serve", "--port", str(port), *arguments],
            cwd=REPOSITORY,
            stdout=out,
            stderr=out,
        )
    try:
        wait = [*PROGRAM, "wait", "--url", url, "--timeout", "900"]
        subprocess.run(wait, cwd=REPOSITORY, check=True)
        yield ServedEngine(url=url, pid=serve.pid, log=log)
    finally:
        serve.send_signal(signal.SIGTERM)
        serve.wait(90)


def _children(pid: int) -> list[int]:
    """Return the children of a process."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                found += map(int, (task / "children").read_text(encoding="utf-8").split())
    return found


def _below(pid: int) -> list[int]:
    """Return all processes below one."""
    found = _children(pid)
    return [*found, *(lower for child in found for lower in _below(child))]


def _is_leader(pid: int) -> bool:
    """Return True if a process leads a group and is not the supervisor's guard."""
    with suppress(OSError):
        return os.getpgid(pid) == pid and b"guard.py" not in _title(pid)
    return False


def _title(pid: int) -> bytes:
    """Return a process's command line and name."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/comm").read_bytes()
    return b""
