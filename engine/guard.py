"""Ends a process group when the supervisor that started this script is gone.

Started by path, with as little around it as can be: it must work when everything above it has been
killed. Its standard input is a pipe that nobody writes to; it ends when the supervisor does, also
after SIGKILL.
"""

import os
import signal
import sys
import time

POLL_S = 0.2


def main() -> None:
    group, grace_s = int(sys.argv[1]), float(sys.argv[2])
    sys.stdin.buffer.read()
    try:
        os.kill(group, signal.SIGTERM)
        deadline_s = time.monotonic() + grace_s
        while time.monotonic() < deadline_s:
            os.kill(group, 0)
            time.sleep(POLL_S)
    except ProcessLookupError:
        pass
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    main()
