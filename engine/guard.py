"""Ends the process group named in its arguments as soon as its standard input closes, because the
supervisor that started this script is gone.

It is started by path and needs almost nothing else: it must work after everything above it was
killed. Its standard input is a pipe without a writer; it ends when the supervisor does, even after
SIGKILL.
"""

import os
import signal
import sys
import time

POLL_S = 0.2


def main() -> None:
    """Wait for the end of standard input, then end the process group: SIGTERM, and SIGKILL after
    the grace period.
    """
    group, grace_s = int(sys.argv[1]), float(sys.argv[2])
    sys.stdin.buffer.read()
    try:
        os.kill(group, signal.SIGTERM)
        deadline_s = time.monotonic() + grace_s
        while time.monotonic() < deadline_s and not has_ended(group):
            time.sleep(POLL_S)
    except ProcessLookupError:
        pass
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def has_ended(pid: int) -> bool:
    """Return True if a process is gone, or has ended and no parent has asked for its exit code."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


if __name__ == "__main__":
    main()
