"""Who runs the command and why, for the record of what was changed and by whom."""

from __future__ import annotations

import getpass
import os
from typing import Annotated

import typer

ReasonOption = Annotated[str, typer.Option("--reason", help="Why, for the audit log.")]


def operator_name() -> str:
    """The operating system's user, and who it was before `sudo`; containers without one record the
    number.
    """
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = f"uid {os.getuid()}"
    before = os.environ.get("SUDO_USER", "")
    return f"{before} as {name}" if before not in ("", name) else name
