"""Lists and ends the processes of a process group, by Linux's /proc."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

KILL_LIMIT_S = 10.0
POLL_S = 0.05
PASSING = frozenset(
    {
        *("as", "c++", "cc", "cc1", "cc1plus", "cicc", "cudafe++", "fatbinary", "g++", "gcc", "ld"),
        *("ldconfig", "lscpu", "ninja", "nvcc", "nvlink", "ptxas"),
    }
)
"""Programs that a healthy engine starts for a moment: compilers and questions about the machine."""
WORKER_TITLE = "VLLM::"
"""The beginning of the titles of vLLM's own processes, in place of their command lines (vLLM 0.32,
vllm/utils/system_utils.py). They live as long as the engine, also while it loads.
"""
PASSING_WORKER = "compile_worker"  # torch's pool of compilers, which ends when it is idle


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One process: a number can be used again, but not with the same start."""

    pid: int
    started_ticks: int
    """Clock ticks from the machine's start to the process's."""
    name: str

    @property
    def is_alive(self) -> bool:
        """Return True if the process still runs; one that has ended and awaits its parent does
        not.
        """
        now = _stat(self.pid)
        return now is not None and now.started_ticks == self.started_ticks and now.state != "Z"


@dataclass(frozen=True, slots=True)
class _Stat:
    """The fields of `/proc/PID/stat` that are used here (man 5 proc)."""

    name: str
    state: str
    group: int
    started_ticks: int


def _stat(pid: int) -> _Stat | None:
    """Return a process's state, or None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    return _Stat(name, fields[0], int(fields[2]), int(fields[19]))


def members_of(group: int) -> list[GroupMember]:
    """Return the running processes of a group."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        state = _stat(int(entry.name))
        if state is not None and state.group == group and state.state != "Z":
            found.append(GroupMember(int(entry.name), state.started_ticks, state.name))
    return found


def workers_of(group: int) -> list[GroupMember]:
    """Return a group's processes that must live as long as the engine: without its leader, and
    without programs that end by themselves.
    """
    return [
        member for member in members_of(group) if member.pid != group and not _is_passing(member)
    ]


def titled_workers_of(group: int) -> list[GroupMember]:
    """Return a group's processes that are known to be workers of vLLM by their titles."""
    return [
        member for member in workers_of(group) if _argv_of(member.pid)[0].startswith(WORKER_TITLE)
    ]


def _argv_of(pid: int) -> list[str]:
    """Return a process's command line, at least one empty part."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return [""]


def _is_passing(member: GroupMember) -> bool:
    """Return True if a process ends by itself while its engine is healthy."""
    argv = _argv_of(member.pid)
    has_ended = argv == [""]
    return (
        has_ended
        or os.path.basename(argv[0]) in PASSING
        or any(PASSING_WORKER in part for part in argv)
    )


def kill_group(group: int) -> None:
    """Kill every process that is left in a group, and wait until none of them runs."""
    deadline_s = time.monotonic() + KILL_LIMIT_S
    while True:
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return
        if not members_of(group) or time.monotonic() > deadline_s:
            return
        time.sleep(POLL_S)
