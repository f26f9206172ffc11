"""Adopts the journal below argv[1], finishes it, and kills itself before its argv[2]th change of a
directory.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from gateway.storage.journal import adopt_free

CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree", "fcntl.flock"}


def main(root: Path, left: int) -> None:
    def count(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if event in CHANGES:
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    [found] = adopt_free(root)
    found.finish()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
