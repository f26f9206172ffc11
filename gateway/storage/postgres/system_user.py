"""Finds or makes the system user that runs the embedded Postgres for root, and takes over data that
an earlier release gave to another user.

Whoever is the server's user is superuser of the ledger. `nobody` is what squashed network users and
many daemons run as, so it is never used; a user `postgres` may run another server here.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from gateway.errors import BadUsage

NAME = "tollgate-postgres"
SHARED = "postgres"
RUN_LIMIT_S = 30
# Where the programs that make users are; root's PATH may lack them after `su`.
PATH = f"{os.defpath}:/usr/sbin:/sbin"


def found_or_made(name: str = NAME, *, shared: str = SHARED, path: str = PATH) -> pwd.struct_passwd:
    """Return the user of this name, which is made if it is missing; else the user `shared`, which
    `doctor` warns of. Raises `BadUsage` if there is neither.
    """
    user = _user(name)
    if user is not None:
        return user
    problem = _made(name, path)
    user = _user(name) or _user(shared)
    if user is None:
        raise BadUsage(
            f"Postgres does not run as root, and no system user {name} can be made for it: "
            f"{problem}. Make one (useradd --system --user-group {name}), run as a normal user, "
            "or set TOLLGATE_DATABASE_URL."
        )
    return user


def take_over(data: Path, user: pwd.struct_passwd, *, rewritten: Mapping[str, str]) -> None:
    """Give a stopped server's data to a user, with new files in place of those of these names.

    The folder is root's meanwhile: its former owner cannot enter it, and a repeat goes on with a
    take-over that was killed. No link is followed: the former owner could have planted one.
    """
    os.chown(data, 0, 0)
    data.chmod(0o700)
    for name, text in rewritten.items():
        (data / name).unlink(missing_ok=True)
        (data / name).write_text(text)
        (data / name).chmod(0o600)
    for _, folders, files, handle in os.fwalk(data, follow_symlinks=False):
        for name in (*folders, *files):
            os.chown(name, user.pw_uid, user.pw_gid, dir_fd=handle, follow_symlinks=False)
    os.chown(data, user.pw_uid, user.pw_gid)


def _user(name: str) -> pwd.struct_passwd | None:
    """Return the user of a name, None if there is none."""
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def _made(name: str, path: str) -> str:
    """Make a system user without home, shell and password, and return the reason why this failed,
    if it did. A second process may make it at the same time.
    """
    shell = "/usr/sbin/nologin"
    if program := shutil.which("useradd", path=path):  # Debian, Ubuntu, Fedora, SUSE
        options = ("--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent")
        return _run((program, *options, "--shell", shell, name))
    group, program = shutil.which("addgroup", path=path), shutil.which("adduser", path=path)
    if group and program:  # Alpine
        return _run((group, "-S", name)) or _run(
            (program, "-S", "-D", "-H", "-G", name, "-s", shell, name)
        )
    return "there is neither useradd nor adduser"


def _run(command: Sequence[str]) -> str:
    """Run a program and return its complaint, empty if it succeeded."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as broken:
        return str(broken)
    return (done.stderr.strip() or f"exit {done.returncode}") if done.returncode else ""
