"""A home, or a secret in it, that another user prepared was taken as it was, and `doctor` called it
ok; a secret that Kubernetes mounts was refused, with a remedy that cannot be followed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.errors import BadUsage
from gateway.storage import owned_files
from gateway.storage.policy import pepper
from gateway.storage.postgres import logins
from gateway.storage.postgres.embedded import EmbeddedPostgres
from tests.attacks.test_security_f10_a_page_reads_the_dashboard import status
from tests.bare_environment import BARE
from tests.gateway_process import free_port
from tests.waiting import eventually

STRANGER, GROUP = 65_531, 65_532
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")
# As a process of another user and group: load a pepper, and say how it went.
LOAD = """
import os, sys
from pathlib import Path
from gateway.errors import BadUsage
from gateway.storage.policy import pepper
import encodings.ascii  # before the folder of the interpreter is closed to us
os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[3]))
try:
    print(len(pepper.load(Path(sys.argv[1]))))
except BadUsage as wrong:
    print(wrong.message)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """Yield a folder that every user may pass through."""
    made = Path(tempfile.mkdtemp(prefix="tollgate-home-", dir="/tmp"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made)


def tollgate(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command with this home, over a database that is never asked."""
    return subprocess.run(
        [sys.executable, "-m", "gateway.main", *arguments],
        env={
            **BARE,
            "HOME": str(home.parent),
            "TOLLGATE_HOME": str(home),
            "TOLLGATE_DATABASE_URL": "postgresql://tollgate@127.0.0.1:1/none",
        },
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def planted(folder: Path, name: str = "pepper") -> Path:
    """Return a file of a secret that a stranger wrote and closed to all others."""
    path = folder / name
    path.write_text("a" * 64 + "\n")
    path.chmod(0o600)
    os.chown(path, STRANGER, STRANGER)
    return path


@needs_root
@pytest.mark.parametrize("command", [("db", "upgrade"), ("serve",), ("key", "create", "payments")])
def test_a_home_of_another_user_is_refused(place: Path, command: tuple[str, ...]) -> None:
    """Who owns the home reads its secrets and replaces its files."""
    home = place / "home"
    home.mkdir(mode=0o777)
    os.chown(home, STRANGER, STRANGER)
    done = tollgate(home, *command)
    assert done.returncode == 2
    assert f"{home} belongs to user {STRANGER}" in done.stderr
    assert "chown -R root" in done.stderr
    assert list(home.iterdir()) == []


@needs_root
def test_doctor_names_a_strangers_home_and_secret(place: Path) -> None:
    """It called both ok."""
    home = place / "home"
    home.mkdir(mode=0o700)
    planted(home)
    found = json.loads(tollgate(home, "doctor", "--format", "json").stdout)
    lines = [(one["status"], one["finding"]) for one in found if one["check"] == "home"]
    assert [status for status, _ in lines] == ["fail"]
    assert f"The pepper {home / 'pepper'} belongs to user {STRANGER}, who knows it" in lines[0][1]


@needs_root
def test_a_planted_secret_is_refused_wherever_one_is_read(place: Path) -> None:
    """With a known pepper a stranger makes API keys; with a known password he reads the ledger."""
    with pytest.raises(BadUsage, match=f"belongs to user {STRANGER}, who knows it"):
        pepper.load(planted(place))
    planted(place, "logins")
    with pytest.raises(BadUsage, match=f"belongs to user {STRANGER}, who knows it"):
        logins.address_as("postgresql://a@127.0.0.1:1/b", logins.LoginPurpose.REPORTS, place)
    (place / "pg").mkdir()
    planted(place / "pg", "password")
    with pytest.raises(BadUsage, match=f"belongs to user {STRANGER}, who knows it"):
        EmbeddedPostgres(place)._password()


@pytest.mark.parametrize("is_tollgates", [True, False])
@pytest.mark.parametrize("mode", [0o644, 0o602])
def test_a_sign_in_secret_that_is_open_to_others_is_refused(
    place: Path, *, is_tollgates: bool, mode: int
) -> None:
    """Its cookie secret signs a person of finance in; its reader was any user of the machine."""
    path = sign_in_secret(place, is_tollgates=is_tollgates)
    path.chmod(mode)
    refused = tollgate(place / "home", "dashboard")
    assert refused.returncode == 2
    assert f"sign-in {path} is open to other users. Run: chmod 600 {path}" in refused.stderr
    found = json.loads(tollgate(place / "home", "doctor", "--format", "json").stdout)
    problems = [one for one in found if one["check"] == "home"]
    assert [one["status"] for one in problems] == ["fail"]
    assert str(path) in problems[0]["finding"]


@needs_root
@pytest.mark.parametrize("is_folder", [True, False])
def test_a_sign_in_secret_of_a_stranger_is_refused(place: Path, *, is_folder: bool) -> None:
    """Who planted it signs in as finance; so does who may replace it."""
    path = sign_in_secret(place, is_tollgates=True)
    os.chown(path.parent if is_folder else path, STRANGER, STRANGER)
    refused = tollgate(place / "home", "dashboard")
    assert refused.returncode == 2
    assert f"belongs to user {STRANGER}" in refused.stderr


def sign_in_secret(place: Path, *, is_tollgates: bool) -> Path:
    """Return a file that sets the dashboard's sign-in up, closed to others."""
    (place / "home").mkdir(mode=0o700)
    path = (place / "home" if is_tollgates else place) / ".streamlit" / "secrets.toml"
    path.parent.mkdir(mode=0o700)
    path.write_text(
        '[auth]\ncookie_secret = "c"\nredirect_uri = "http://127.0.0.1/oauth2callback"\n'
    )
    path.chmod(0o600)
    return path


@needs_root
def test_the_database_is_not_made_behind_a_strangers_link(place: Path) -> None:
    """`HOME/pg` as a link of somebody else led the database to his folder."""
    target = place / "target"
    target.mkdir(mode=0o777)
    home = place / "home"
    home.mkdir(mode=0o700)
    (home / "pg").symlink_to(target)
    assert owned_files.folder_problem(home / "pg") is None  # an operator's larger disk
    os.chown(home / "pg", STRANGER, STRANGER, follow_symlinks=False)
    with pytest.raises(BadUsage, match=f"{home / 'pg'} belongs to user {STRANGER}"):
        EmbeddedPostgres(home).start()
    os.chown(home / "pg", 0, 0, follow_symlinks=False)
    os.chown(target, STRANGER, STRANGER)
    with pytest.raises(BadUsage, match=f"{home / 'pg'} belongs to user {STRANGER}"):
        EmbeddedPostgres(home).start()
    assert list(target.iterdir()) == []


@needs_root
@pytest.mark.parametrize(
    ("owner", "group", "mode", "said"),
    [
        (0, GROUP, 0o440, "1"),  # a Secret of Kubernetes, with fsGroup
        (0, GROUP, 0o640, "1"),
        (STRANGER, GROUP, 0o400, "1"),  # the process's own
        (STRANGER, GROUP, 0o600, "1"),
        (0, GROUP, 0o444, "is open to other users"),
        (0, GROUP, 0o460, "is open to other users"),
        (STRANGER, GROUP, 0o440, "is open to other users"),
        (STRANGER + 2, GROUP, 0o440, "who knows it"),
        (0, 0, 0o400, "Permission denied"),
        (0, GROUP + 1, 0o440, "Permission denied"),
    ],
)
def test_a_secret_counts_by_owner_group_and_mode(
    place: Path, owner: int, group: int, mode: int, said: str
) -> None:
    """The platform chooses owner and mode of its mounts; no other user may read them."""
    path = planted(place)
    os.chown(path, owner, group)
    path.chmod(mode)
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(path), str(GROUP), str(STRANGER)],
        env={**BARE, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert said in done.stdout
    assert done.stdout.strip() == said or said != "1"


def test_a_folder_in_a_secrets_place_is_called_one(tmp_path: Path) -> None:
    """Its mode was blamed, and then Python's own words."""
    problem = owned_files.secret_problem(tmp_path, name="The pepper")
    assert (
        problem == f"The pepper {tmp_path} is a folder, not a file. Move it away, then try again."
    )


def test_an_own_folder_that_all_may_write_is_named(tmp_path: Path) -> None:
    """Its owner closes it. A volume of root's may be as it is: a finding, and no refusal."""
    folder = tmp_path / "home"
    folder.mkdir()
    folder.chmod(0o777)
    problem = owned_files.folder_problem(folder)
    if os.geteuid() == 0:
        assert (problem, owned_files.is_open_volume(folder)) == (None, True)
    else:
        assert problem is not None
        assert "chmod o-w" in problem
    assert owned_files.folder_problem(tmp_path / "missing") is None


# As a user without an entry, who may still read this interpreter below the home of root.
AS_STRANGER = (
    *("setpriv", "--reuid", str(STRANGER), "--regid", str(GROUP), "--clear-groups"),
    *("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"),
)
needs_setpriv = pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs util-linux")


def dashboard_without_home(more: dict[str, str]) -> subprocess.Popen[str]:
    """Start the dashboard as a user without an entry, over a database that is never asked."""
    return subprocess.Popen(
        [*AS_STRANGER, sys.executable, "-P", "-m", "gateway.main", "dashboard"],
        env={
            **BARE,
            "PYTHONDONTWRITEBYTECODE": "1",
            "TOLLGATE_DATABASE_URL": "postgresql://tollgate@127.0.0.1:1/none",
            **more,
        },
        cwd=Path(__file__).parents[2],
        stderr=subprocess.PIPE,
        text=True,
    )


@needs_root
@needs_setpriv
@pytest.mark.parametrize("home", [{}, {"HOME": "/nonexistent"}, {"HOME": "/"}])
def test_the_dashboard_starts_for_a_user_without_a_home(place: Path, home: dict[str, str]) -> None:
    """A container's user has no entry and often no HOME: a library of the charts ended it."""
    own = place / "own"
    own.mkdir(mode=0o700)
    os.chown(own, STRANGER, GROUP)
    port = free_port()
    more = {"TOLLGATE_HOME": str(own), "TOLLGATE_DASHBOARD_PORT": str(port)} | home
    with dashboard_without_home(more) as process:
        try:
            eventually(
                lambda: status(port, "/_stcore/health", "localhost") == 200,
                "the dashboard",
                within_s=120,
            )
        finally:
            process.terminate()


@needs_root
@needs_setpriv
def test_a_user_without_any_home_is_told_what_to_set() -> None:
    """Every command ended in a traceback of the standard library."""
    with dashboard_without_home({}) as process:
        _, said = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "Set TOLLGATE_HOME" in said
