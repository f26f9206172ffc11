"""Attacks on 2026-11-29: an address that `db url` had printed could not be reached by the command
it was printed for.

The embedded server ends with the last process that uses it. A command with its address in a
variable used another server, as it thought, and started none.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.domain.logins import LoginPurpose
from tests.postgres import home_of_server

REPOSITORY = Path(__file__).parents[2]
OUTAGE = 3  # the exit code of a database that does not answer
NOBODYS = "00000000-0000-7000-8000-000000000000"
# For each variable a command that asks Postgres with its login, and words of its answer.
COMMANDS = {
    "DATABASE_URL": (["db", "check"], "is_current"),
    "GATEWAY_DATABASE_URL": (["reconcile", "retry"], "No record waits."),
    "ADMIN_DATABASE_URL": (["policy", "history"], "No policy was applied yet"),
    "REPORTS_DATABASE_URL": (["report", "spend"], "No events."),
    "FINANCE_DATABASE_URL": (
        ["reallocation", "approve", NOBODYS, "--reason", "tried", "--yes"],
        "no re-allocation",
    ),
}


def tollgate(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway.main", *arguments],
        env={**os.environ, "TOLLGATE_HOME": str(home)} | variables,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_each_printed_address_is_reached_when_nothing_else_runs() -> None:
    """Also the owner's, and in a home whose path is too long for a socket."""
    assert {name.removesuffix("_DATABASE_URL").lower() for name in COMMANDS} >= set(LoginPurpose)
    with home_of_server() as home:
        assert tollgate(home, "db", "upgrade").returncode == 0
        for variable, (command, words) in COMMANDS.items():
            purpose = variable.removesuffix("DATABASE_URL").strip("_").lower()
            asked = ["--as", purpose] if purpose else []
            address = tollgate(home, "db", "url", *asked).stdout.strip()
            assert address.startswith("postgresql://")
            done = tollgate(home, *command, **{f"TOLLGATE_{variable}": address})
            assert done.returncode != OUTAGE, (variable, done.stderr)
            assert words in done.stdout + done.stderr
            assert not (home / "pg" / "data" / "postmaster.pid").exists(), "it ended with it"


@pytest.mark.parametrize("host", ["localhost", "/nowhere/run"])
def test_the_address_of_another_server_starts_nothing(tmp_path: Path, host: str) -> None:
    address = f"postgresql://tollgate:wrong@/tollgate?host={host}&port=1"
    done = tollgate(tmp_path, "policy", "history", TOLLGATE_ADMIN_DATABASE_URL=address)
    assert done.returncode == OUTAGE
    assert not (tmp_path / "pg").exists()
