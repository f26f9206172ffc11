"""The variables of this process that a program with an environment of its own needs too: the
places of programs, and the moved clock of `tests.days`.
"""

from __future__ import annotations

import os

BARE = {
    name: os.environ[name] for name in ("PATH", "LD_PRELOAD", "SHIFTED_CLOCK") if name in os.environ
}
