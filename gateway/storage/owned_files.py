"""Checks the owner and mode of folders and secrets before they are used, as sshd does: existence is
not ownership, and another user may have prepared them.

A container platform chooses some of them: a Kubernetes Secret belongs to root and to the group of
the process, mode 0440, and cannot be changed; the folder of a volume is root's and open to all.
"""

from __future__ import annotations

import os
import pwd
import shlex
import stat
from pathlib import Path

from gateway.errors import BadUsage

ROOT = 0


def require_folder(folder: Path) -> None:
    """Raise `BadUsage` if another user owns a folder or may change it; pass if it is missing."""
    if problem := folder_problem(folder):
        raise BadUsage(problem)


def require_secret(path: Path, *, name: str) -> None:
    """Raise `BadUsage` if another user owns a secret's file or may read it; pass if it is missing.

    `name` is the secret's, for the message.
    """
    if problem := secret_problem(path, name=name):
        raise BadUsage(problem)


def require_own_secret(path: Path, *, name: str) -> None:
    """Raise `BadUsage` if another user may read or replace a secret's file: by its owner or mode,
    or by those of its folder. Pass if it is missing.
    """
    if path.exists():
        require_folder(path.parent)
        require_secret(path, name=name)


def folder_problem(folder: Path) -> str | None:
    """Return the reason why a folder is not to be trusted, with the remedy; None if it is.

    A link counts if its own owner is trusted, and its target too. A folder of root's that all may
    write is the platform's volume (`is_open_volume`): each secret in it is checked by itself.
    """
    for status in (_found(folder, follows=False), _found(folder, follows=True)):
        if status is None:
            return None
        if status.st_uid not in (ROOT, os.geteuid()):
            return (
                f"{folder} belongs to user {_name(status.st_uid)}, who could read and replace "
                f"everything in it. Run as that user, or give it to {_name(os.geteuid())}: "
                f"chown -R {_name(os.geteuid())} {shlex.quote(str(folder))}. Or name another "
                "folder with TOLLGATE_HOME."
            )
    assert status is not None, "a missing folder has returned"
    if status.st_uid == os.geteuid() != ROOT and status.st_mode & stat.S_IWOTH:
        return _open_to_all(folder)
    return None


def is_open_volume(folder: Path) -> bool:
    """Return True if all users may write a folder of root's, as the volumes of some platforms."""
    status = _found(folder, follows=True)
    return status is not None and status.st_uid == ROOT and bool(status.st_mode & stat.S_IWOTH)


def secret_problem(path: Path, *, name: str) -> str | None:
    """Return the reason why a secret's file is not to be trusted, with the remedy; None if it is.

    Root's file may be readable by a group of this process: a mounted Secret is.
    """
    status = _found(path, follows=True)
    if status is None:
        return None
    if stat.S_ISDIR(status.st_mode):
        return f"{name} {path} is a folder, not a file. Move it away, then try again."
    owner, mode = status.st_uid, stat.S_IMODE(status.st_mode)
    if owner not in (ROOT, os.geteuid()):
        return (
            f"{name} {path} belongs to user {_name(owner)}, who knows it. Run as that user; or, if "
            f"you trust its content: chown {_name(os.geteuid())} {shlex.quote(str(path))}"
        )
    allowed = 0o700 | (0o040 if owner == ROOT and status.st_gid in _groups() else 0)
    if mode & ~allowed & 0o077:
        return (
            f"{name} {path} is open to other users. Run: chmod 600 {shlex.quote(str(path))} "
            "(a mounted Secret: defaultMode 0440, with the process's group as fsGroup)"
        )
    return None


def _open_to_all(folder: Path) -> str:
    """Return the problem of a folder that every user may write."""
    return (
        f"Every user may replace the files in {folder}. Run: chmod o-w {shlex.quote(str(folder))}"
    )


def _found(path: Path, *, follows: bool) -> os.stat_result | None:
    """Return a file's status, None if there is no such file."""
    try:
        return path.stat(follow_symlinks=follows)
    except OSError:  # whoever uses it says why
        return None


def _groups() -> set[int]:
    """Return the groups of this process."""
    return {os.getegid(), *os.getgroups()}


def _name(uid: int) -> str:
    """Return a user's name, or the number of a user without one."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
