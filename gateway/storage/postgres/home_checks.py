"""Checks the owners and modes of Tollgate's home, its secrets and the embedded database, for
`tollgate doctor`; it changes nothing.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gateway.domain.checks import Check, Status
from gateway.storage import owned_files
from gateway.storage.postgres import logins, system_user

DASHBOARD_SECRETS = "The secret of the dashboard's sign-in"


def home_checks(home: Path, pepper: Path) -> list[Check]:
    """Return the findings about a home and the secrets that its commands read; empty before it is
    made.
    """
    if not home.exists():
        return []
    return [*_problems(home, pepper)] or [
        Check("home", Status.OK, f"{home} and its secrets are closed to other users")
    ]


def secrets_of(home: Path, pepper: Path) -> dict[Path, str]:
    """Return the files of the secrets that commands of a home read, each with its name in
    messages.
    """
    return {
        pepper: "The pepper",
        home / logins.FILE: "The file of logins",
        home / "pg" / "password": "The database's password",
        home / "demo-key": "The demo's key",
        **dict.fromkeys(dashboard_secrets(home), DASHBOARD_SECRETS),
    }


def require_own_secret(file: Path, *, home: Path, pepper: Path) -> None:
    """Raise `BadUsage` if a secret of a home is open to other users or another user's."""
    owned_files.require_own_secret(file, name=secrets_of(home, pepper)[file])


def dashboard_secrets(home: Path) -> tuple[Path, ...]:
    """Return the files in which the operator sets the dashboard's sign-in up; the last one wins."""
    return tuple(folder / ".streamlit" / "secrets.toml" for folder in (*_own_home(), home))


def _own_home() -> Iterator[Path]:
    """Yield the home of this process's user, if it has one."""
    with suppress(RuntimeError):
        yield Path.home()


def _problems(home: Path, pepper: Path) -> Iterator[Check]:
    """Yield the findings that are problems."""
    for folder in (home, home / "pg"):
        if problem := owned_files.folder_problem(folder):
            yield Check("home", Status.FAIL, problem)
    for path, name in secrets_of(home, pepper).items():
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
