"""Finds the name of the person who runs a command (signed in to the dashboard, else the system's
user), and declares the options of commands that change something: `--reason` for the audit log,
and `--yes`.
"""

from __future__ import annotations

import getpass
import os
from typing import Annotated

import typer

ReasonOption = Annotated[str, typer.Option("--reason", help="Why, for the audit log.")]
# Scripts give --yes to every command that changes something, also to one that never asks.
TakesYesOption = Annotated[
    bool, typer.Option("--yes", "-y", hidden=True, help="Accepted; it never asks.")
]


PERSON_VARIABLE = "TOLLGATE_OPERATOR"


def signed_in_person() -> str | None:
    """Return the person for whom the dashboard runs this command; None without a sign-in."""
    return os.environ.get(PERSON_VARIABLE, "").strip() or None


def operator_name() -> str:
    """Return the name of the person who runs the command: the signed-in one, else the system's
    user, and the one before `sudo`; the user's number without a name.
    """
    if person := signed_in_person():
        return person
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = f"uid {os.getuid()}"
    before = os.environ.get("SUDO_USER", "")
    return f"{before} as {name}" if before not in ("", name) else name
