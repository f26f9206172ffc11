"""The embedded Postgres starts from a clone in any folder and for any user.

Each test installs the wheel's files in a separate folder, as pip would, and really starts a server
from there.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.errors import DatabaseUnavailable
from gateway.storage.postgres.server_account import ServerAccount, bundled_binaries, server_version

STARTED = "a server of PostgreSQL"
needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="needs root: the server must be another user than we are"
)

# Everything is imported before the rights are dropped: this interpreter may be in a folder that is
# closed to others.
PROGRAM = f"""
import os, sys
from pathlib import Path
import psycopg
from gateway.storage.postgres.embedded import EmbeddedPostgres
home, system_dir, user, group, umask = sys.argv[1:]
os.umask(int(umask, 8))
if int(user) != os.geteuid():
    os.setgroups([]); os.setgid(int(group)); os.setuid(int(user))
with EmbeddedPostgres(Path(home), system_dir=Path(system_dir)) as server:
    with psycopg.connect(server.start()) as connection:
        print("{STARTED}", connection.execute("SHOW server_version").fetchone()[0])
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """Yield a folder that every user may pass through."""
    path = Path(tempfile.mkdtemp(prefix="tollgate place ", dir="/tmp"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


def install(site: Path, *, umask: int = 0o022, owner: int | None = None) -> Path:
    """Put the wheel's Postgres and its libraries into a site folder, as pip does under this
    umask.
    """
    binaries = bundled_binaries()
    package = binaries.parent.parent
    libraries = package.with_name(f"{package.name}.libs")
    for folder in (binaries.parent, libraries):
        shutil.copytree(folder, site / folder.relative_to(package.parent), symlinks=True)
    (site / package.name / "__init__.py").touch()
    for path in (site, *site.rglob("*")):
        if not path.is_symlink():
            path.chmod(stat.S_IMODE(path.stat().st_mode) & ~umask)
        if owner is not None:
            os.chown(path, owner, owner, follow_symlinks=False)
    return site / binaries.relative_to(package.parent)


def start(
    site: Path, home: Path, system_dir: Path, *, user: int | None = None, umask: int = 0o022
) -> subprocess.CompletedProcess[str]:
    """Start and stop a server from this installation, in a separate process."""
    user_id = os.geteuid() if user is None else user
    return subprocess.run(
        [
            sys.executable,
            "-c",
            PROGRAM,
            str(home),
            str(system_dir),
            str(user_id),
            str(user_id),
            f"{umask:o}",
        ],
        env={**os.environ, "PYTHONPATH": f"{site}:{Path(__file__).parents[3]}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def has_started(done: subprocess.CompletedProcess[str]) -> bool:
    assert done.returncode == 0, done.stderr
    return done.stdout.startswith(STARTED)


@needs_root
def test_root_starts_a_server_from_a_private_folder(place: Path) -> None:
    """If a clone is below the closed /root, the server's user gets a copy with the libraries
    beside it.
    """
    private = place / "root"
    private.mkdir(mode=0o700)
    install(private / "site")
    assert has_started(start(private / "site", private / ".tollgate", place / "var"))
    assert stat.S_IMODE(private.stat().st_mode) == 0o700


@needs_root
def test_root_starts_a_server_from_a_clone_made_with_umask_077(place: Path) -> None:
    """Every file and folder of the virtualenv is then private, and so are those that this start
    makes.
    """
    install(place / "clone" / "site", umask=0o077)
    assert has_started(
        start(place / "clone" / "site", place / "clone" / ".tollgate", place / "var", umask=0o077)
    )


@needs_root
def test_an_ordinary_user_starts_a_server_in_a_private_home(place: Path) -> None:
    """Most homes are 0700. No copy is needed there, because the server runs as the user."""
    user = pwd.getpwnam("nobody").pw_uid
    home = place / "home"
    home.mkdir()
    install(home / "site", umask=0o077, owner=user)
    os.chown(home, user, user)
    home.chmod(0o700)
    assert has_started(
        start(home / "site", home / ".tollgate", place / "var", user=user, umask=0o077)
    )
    assert not (place / "var").exists()


def test_a_server_starts_in_a_path_with_a_blank(place: Path) -> None:
    """Postgres gets the paths of its data, socket and libraries."""
    install(place / "my clone" / "site")
    assert has_started(start(place / "my clone" / "site", place / "my home", place / "var"))
    if os.geteuid() == 0:
        private = place / "my root"
        private.mkdir(mode=0o700)
        assert has_started(start(place / "my clone" / "site", private / "home", place / "my var"))


@needs_root
def test_a_broken_copy_is_replaced(place: Path) -> None:
    """Releases up to 0.1.0 left copies without libraries; one of them made every later start
    fail.
    """
    binaries = install(place / "clone" / "site", umask=0o077)
    left = place / "var" / f"postgresql-{server_version(binaries)}"
    shutil.copytree(binaries.parent, left, symlinks=True)
    (left.parent / f"{left.name}.partial-1a2b").mkdir()
    assert has_started(start(place / "clone" / "site", place / "home", place / "var"))
    assert [path.name for path in left.parent.iterdir() if path.name.startswith("postgresql")] == [
        left.name
    ]
    made_at = left.stat().st_ctime_ns
    assert has_started(start(place / "clone" / "site", place / "home", place / "var"))
    assert left.stat().st_ctime_ns == made_at, "a copy that runs is kept"


@needs_root
def test_a_copy_that_does_not_run_does_not_get_its_name(place: Path) -> None:
    """Otherwise the next start would take it for a good copy. The error is the loader's own."""
    binaries = install(place / "clone" / "site", umask=0o077)
    package = binaries.parent.parent
    shutil.rmtree(package.with_name(f"{package.name}.libs"))
    with pytest.raises(DatabaseUnavailable, match=r"does not run as user .*: initdb: .*libpq"):
        ServerAccount.current().reachable(binaries, place / "var")
    assert [path.name for path in (place / "var").iterdir()] == ["copy.lock"]
