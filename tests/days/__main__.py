"""Runs the tests once for each moment, with the wall clock of every program moved there.

`python -m tests.days` or `make test-days`: DAYS="31 January;29 February" picks some moments, and
TESTS="tests/cli tests/reports" some tests. The monotonic clock stays real. Browsers and the engine
are left out: their certificates and caches have dates of their own. It needs root, for a mount that
only its own programs see: a variable would not reach those that are started with an environment of
their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.days.moments import MOMENTS
from tests.days.shifted_clock import ShiftedClock
from tests.postgres import home_of_server

NEEDED = "not browser and not engine"
TESTS = "tests"
PRELOADED = Path("/etc/ld.so.preload")  # man ld.so: loaded by every program
MOUNTED = f'mount --bind "$1" {PRELOADED} && shift && exec "$@"'
# They start browsers or engines without a mark, or shift the clock themselves.
LEFT_OUT = ("tests/days", "tests/engine", "tests/engines", "tests/e2e", "tests/deploy")


def main() -> int:
    """Run the tests at each moment; return 1 if any failed."""
    wanted = [name.strip() for name in os.environ.get("DAYS", "").split(";") if name.strip()]
    tests = os.environ.get("TESTS", TESTS).split()
    if os.getuid() != 0:
        sys.exit("make test-days needs root: each moment is a mount that only its programs see.")
    PRELOADED.touch()  # something to mount over; empty, it changes nothing
    failed = []
    for name, moment in MOMENTS.items():
        if wanted and name not in wanted:
            continue
        began_s = time.monotonic()
        with home_of_server() as folder:
            folder.chmod(0o755)  # Postgres may run as another user, and reads the library
            clock = ShiftedClock(folder)
            clock.move_to(moment)
            preloaded = folder / PRELOADED.name
            preloaded.write_text(f"{clock.library}\n")
            command = ["unshare", "--mount", "sh", "-c", MOUNTED, "sh", str(preloaded)]
            command += [sys.executable, "-m", "pytest", "-q", "-n", "4", "--dist", "loadfile"]
            command += ["--no-loadscope-reorder", "-p", "no:cacheprovider", "-m", NEEDED]
            command += [f"--ignore={path}" for path in LEFT_OUT]
            code = subprocess.run([*command, *tests], check=False).returncode
        print(
            f"{name}: {'passed' if code == 0 else 'FAILED'} in {time.monotonic() - began_s:.0f} s"
        )
        failed += [name] * (code != 0)
    print(f"{len(failed)} of the moments failed{': ' if failed else ''}{'; '.join(failed)}")
    return min(len(failed), 1)


if __name__ == "__main__":
    sys.exit(main())
