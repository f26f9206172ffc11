"""The kernel's figures for processes and this machine: CPU seconds, memory, load."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path

from engine.preflight import build_flags

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> set[int]:
    """Return a process and all its living descendants."""
    found: set[int] = set()
    todo = [pid]
    while todo:
        current = todo.pop()
        try:
            tasks = os.listdir(f"/proc/{current}/task")
        except OSError:
            continue  # the process ended meanwhile
        for task in tasks:
            try:
                children = Path(f"/proc/{current}/task/{task}/children").read_text()
            except OSError:
                continue  # the thread ended meanwhile
            todo += [int(child) for child in children.split()]
        if Path(f"/proc/{current}").exists():
            found.add(current)
    return found


def cpu_s(pids: Iterable[int]) -> float:
    """Return the CPU seconds of processes, including their ended children."""
    ticks = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(int(field) for field in fields[11:15])  # utime, stime, cutime, cstime
    return ticks / _TICKS_PER_S


def pss_mib(pids: Iterable[int]) -> float:
    """Return the memory of processes, with shared pages split among their users."""
    return _rollup_mib(pids, "Pss:")


def own_mib(pids: Iterable[int]) -> float:
    """Return the memory of processes without the pages of files: their share of those depends on
    other processes.
    """
    return _rollup_mib(pids, "Pss_Anon:")


def _rollup_mib(pids: Iterable[int], member: str) -> float:
    kib = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        kib += sum(int(line.split()[1]) for line in lines if line.startswith(member))
    return kib / 1024


def busy_s() -> float:
    """Return the CPU seconds of all programs on this machine since its start."""
    user, nice, system, _idle, _iowait, irq, softirq, _steal = (
        int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq) / _TICKS_PER_S


def describe() -> str:
    """Return this machine in one line."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        "unknown CPU",
    )
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    python = f"Python {platform.python_version()} {build_flags()}"
    return f"{os.cpu_count()} × {model}, {gib:.0f} GiB, Linux {platform.release()}, {python}"


def commit() -> str:
    """Return the checked-out commit, and whether it has uncommitted changes."""

    def git(*arguments: str) -> str:
        here = Path(__file__).parent
        done = subprocess.run(
            ["git", *arguments], cwd=here, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    changed = " with uncommitted changes" if git("status", "--porcelain") else ""
    return (git("rev-parse", "--short=12", "HEAD") or "unknown") + changed
