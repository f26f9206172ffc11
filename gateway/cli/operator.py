"""Finds the name of the person who runs a command (the system's user, and the one before sudo), and
declares `--reason`; both are for the audit log.
"""

from __future__ import annotations

import getpass
import os
from typing import Annotated

import typer

ReasonOption = Annotated[str, typer.Option("--reason", help="Why, for the audit log.")]


def operator_name() -> str:
    """Return the name of the person who runs the command: the system's user, and the one before
    `sudo`; the user's number without a name.
    """
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = f"uid {os.getuid()}"
    before = os.environ.get("SUDO_USER", "")
    return f"{before} as {name}" if before not in ("", name) else name
