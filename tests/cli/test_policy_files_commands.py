"""`policy init` and `policy set` write files: never over another one, and never an invalid one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import cast

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.app import build_app
from gateway.cli.policy.init import STARTER
from gateway.cli.toolbox import Toolbox
from gateway.wire.parsed_policy import parse
from tests.policy.documents import ALLOWED, EXAMPLE


def ran(*arguments: str) -> Result:
    """Run a command that needs neither settings nor a database."""
    return CliRunner().invoke(build_app(cast(Toolbox, None)), list(arguments))


def test_the_starter_is_valid_and_short(tmp_path: Path) -> None:
    """Its reader changes one thing after the other; a note would send them elsewhere first."""
    file = tmp_path / "policy.yaml"
    result = ran("policy", "init", str(file))
    assert (result.exit_code, file.read_text()) == (0, STARTER)
    assert "Next: edit it, then tollgate policy validate" in result.stderr
    assert parse(STARTER).notes == ()
    assert len(STARTER.splitlines()) <= 60
    assert ran("policy", "init", "-").stdout == STARTER


def test_the_starter_never_overwrites(tmp_path: Path) -> None:
    """A year's policy would be gone by a command run twice."""
    file = tmp_path / "policy.yaml"
    file.write_text(EXAMPLE)
    result = ran("policy", "init", str(file))
    assert (result.exit_code, file.read_text()) == (2, EXAMPLE)
    assert "is there already. Name another file" in result.stderr
    assert ran("policy", "init", str(tmp_path / "no" / "p.yaml")).exit_code == 2


def test_a_value_is_set_in_place(tmp_path: Path) -> None:
    """Mode and links stay: the file may be shared, and may be a link into a checkout."""
    file, link = tmp_path / "policy.yaml", tmp_path / "link.yaml"
    file.write_bytes(ALLOWED.replace("\n", "\r\n").encode())
    file.chmod(0o640)
    link.symlink_to(file)
    result = ran(
        "policy", "set", str(link), "teams.payments.limits.concurrent", "80", "--format", "json"
    )
    assert json.loads(result.stdout) == {
        "file": str(link),
        "line": 46,
        "is_changed": True,
        "is_new": False,
    }
    assert "Next: tollgate policy plan" in result.stderr
    expected = ALLOWED.replace("concurrent: 50}", "concurrent: 80}").replace("\n", "\r\n")
    assert file.read_bytes() == expected.encode()
    assert (link.is_symlink(), file.stat().st_mode & 0o777) == (True, 0o640)
    assert sorted(os.listdir(tmp_path)) == ["link.yaml", "policy.yaml"]


def test_the_same_value_again_writes_nothing(tmp_path: Path) -> None:
    """A script may run twice; the file's time then stays."""
    file = tmp_path / "policy.yaml"
    file.write_text(ALLOWED)
    before = file.stat()
    result = ran("policy", "set", str(file), "teams.payments.limits.concurrent", "50")
    assert (result.exit_code, file.stat().st_ino) == (0, before.st_ino)
    assert "Nothing changed: the file has that value already." in result.stderr


@pytest.mark.parametrize(
    ("path", "value", "code", "message"),
    [
        (
            "teams.payments.limits.concurrent",
            "many",
            1,
            "line 46: error: teams[0].limits.concurrent",
        ),
        ("teams.payments.limts.concurrent", "80", 1, "has no such field; did you mean 'limits'?"),
        ("teams.paymnts.priority", "low", 1, "did you mean 'payments'?"),
        ("teams.payments", "x", 2, "is a block of several lines"),
    ],
)
def test_a_wrong_value_changes_nothing(
    tmp_path: Path, path: str, value: str, code: int, message: str
) -> None:
    """The file is in git and in a pipeline: it must be valid after each command."""
    file = tmp_path / "policy.yaml"
    file.write_text(ALLOWED)
    result = ran("policy", "set", str(file), path, value)
    assert (result.exit_code, file.read_text()) == (code, ALLOWED)
    assert message in result.stderr


def test_one_of_several_files_is_checked_with_the_others(tmp_path: Path) -> None:
    """A team's own file is no whole document."""
    base, team = tmp_path / "base.yaml", tmp_path / "team.yaml"
    head, _, teams = EXAMPLE.partition("teams:\n")
    base.write_text(head)
    team.write_text("teams:\n" + teams)
    alone = ran("policy", "set", str(team), "teams.search.priority", "low")
    assert (alone.exit_code, team.read_text()) == (1, "teams:\n" + teams)
    assert "name the others: --with FILE" in alone.stderr
    together = ran("policy", "set", str(team), "teams.search.priority", "low", "--with", str(base))
    assert together.exit_code == 0, together.stderr
    assert team.read_text().endswith("partner-chat], priority: low}\n")
    assert f"tollgate policy plan {team} {base}" in together.stderr


def test_a_file_that_cannot_be_replaced_stays(tmp_path: Path) -> None:
    """Standard input and a missing file are answered before anything is written."""
    assert ran("policy", "set", "-", "version", "1").exit_code == 2
    assert ran("policy", "set", str(tmp_path / "none.yaml"), "version", "1").exit_code == 2
    assert os.listdir(tmp_path) == []
