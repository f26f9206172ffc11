"""Who runs the command, for the record of what was changed and by whom."""

from __future__ import annotations

import getpass
import os


def operator_name() -> str:
    """The operating system's user; containers without one record the number."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
