"""The one variable of this process that a program with an environment of its own needs too."""

from __future__ import annotations

import os

BARE = {"PATH": os.environ["PATH"]}
