"""Attack on 2026-11-29: of two `tollgate db upgrade` on a fresh database, one crashed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from gateway.domain.logins import LoginPurpose, login_name
from gateway.storage.postgres import logins
from tests.gateway_process import REPOSITORY


def test_two_upgrades_at_once_make_each_login_once(empty_database_url: str, tmp_path: Path) -> None:
    """A Job that is retried, and a person: both made the same role, and each its own password."""
    environment = os.environ | {
        "TOLLGATE_HOME": str(tmp_path / "home"),
        "TOLLGATE_DATABASE_URL": empty_database_url,
    }
    upgrades = [
        subprocess.Popen(
            [sys.executable, "-m", "gateway.main", "db", "upgrade"],
            cwd=REPOSITORY,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(2)
    ]
    said = [upgrade.communicate(timeout=120)[0] for upgrade in upgrades]
    assert [upgrade.returncode for upgrade in upgrades] == [0, 0], said
    name = str(conninfo_to_dict(empty_database_url)["dbname"])
    for purpose in LoginPurpose:
        address = logins.address_as(empty_database_url, purpose, tmp_path / "home")
        assert conninfo_to_dict(address)["user"] == login_name(name, purpose)
        assert logins.login_problem(address) is None
