"""Checks the owners and modes of Tollgate's home, its secrets and the embedded database, for
`tollgate doctor`; it changes nothing.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from pathlib import Path

from gateway.domain.checks import Check, Status
from gateway.storage import owned_files
from gateway.storage.postgres import logins, system_user


def home_checks(home: Path, pepper: Path) -> list[Check]:
    """Return the findings about a home; empty before it is made."""
    if not home.exists():
        return []
    return [*_problems(home, pepper)] or [
        Check("home", Status.OK, f"{home} and its secrets are closed to other users")
    ]


def _problems(home: Path, pepper: Path) -> Iterator[Check]:
    """Yield the findings that are problems."""
    for folder in (home, home / "pg"):
        if problem := owned_files.folder_problem(folder):
            yield Check("home", Status.FAIL, problem)
    secrets = {
        "The pepper": pepper,
        "The file of logins": home / logins.FILE,
        "The database's password": home / "pg" / "password",
    }
    for name, path in secrets.items():
        if problem := owned_files.secret_problem(path, name=name):
            yield Check("home", Status.FAIL, problem)
    if owned_files.is_open_volume(home):
        yield Check(
            "home",
            Status.WARN,
            f"every user of this machine may change the files in {home}",
            f"chmod o-w {home}; a volume of which this process is the only user may stay so",
        )
    yield from _server_user(home / "pg" / "data")


def _server_user(data: Path) -> Iterator[Check]:
    """Yield a warning if another user than one of its own runs the embedded Postgres for root."""
    if os.geteuid() != owned_files.ROOT or not data.exists():
        return
    owner = data.stat().st_uid
    try:
        name = pwd.getpwuid(owner).pw_name
    except KeyError:
        name = str(owner)
    if name != system_user.NAME:
        yield Check(
            "embedded database",
            Status.WARN,
            f"every process of user {name} is superuser of the ledger",
            f"useradd --system --user-group {system_user.NAME}; then stop every tollgate: the next "
            "start gives the database to it",
        )
