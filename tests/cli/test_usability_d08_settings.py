"""Usability D8: a wrong address did not say which variable it came from, and a misspelt variable
was ignored.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.storage.postgres.database import Database

REPOSITORY = Path(__file__).parents[2]


def run(tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command that needs the settings and the database."""
    return subprocess.run(
        [sys.executable, "-m", "gateway.main", "policy", "history"],
        env={**os.environ, "TOLLGATE_HOME": str(tmp_path)} | variables,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("variable", ["DATABASE_URL", "ADMIN_DATABASE_URL", "REPORTS_DATABASE_URL"])
@pytest.mark.parametrize(("value", "why"), [("", "it is empty"), ("mysql://x/y", "another scheme")])
def test_a_wrong_address_names_its_variable(
    tmp_path: Path, variable: str, value: str, why: str
) -> None:
    """An empty variable is the usual slip of a pipeline; three of them take an address."""
    done = run(tmp_path, **{f"TOLLGATE_{variable}": value})
    assert done.returncode == 2
    assert f"TOLLGATE_{variable}: " in done.stderr
    assert why in done.stderr


def test_a_name_in_the_file_that_is_no_setting_is_named(tmp_path: Path) -> None:
    """`prot` and `reigon` were ignored without a word: the port and the region stayed unset."""
    file = tmp_path / "tollgate.toml"
    file.write_text('prot = 18090\nreigon = "eu"\nzzz = 1\nlog_level = "error"\n')
    done = run(
        tmp_path,
        TOLLGATE_CONFIG=str(file),
        TOLLGATE_DATABASE_URL="postgresql://nobody@127.0.0.1:9/none",
    )
    lines = [one for one in done.stderr.splitlines() if not one.startswith("Still working")]
    assert lines[:-1] == [
        f"'prot' in {file} is not a setting and is ignored; did you mean port?",
        f"'reigon' in {file} is not a setting and is ignored; did you mean region?",
        f"'zzz' in {file} is not a setting and is ignored.",
    ]


def test_a_misspelt_variable_is_named(tmp_path: Path) -> None:
    """It was ignored, and the port stayed the default."""
    done = run(
        tmp_path, TOLLGATE_PORTT="1", TOLLGATE_DATABASE_URL="postgresql://nobody@127.0.0.1:9/none"
    )
    assert (
        "TOLLGATE_PORTT is not a setting and is ignored; did you mean TOLLGATE_PORT?" in done.stderr
    )
    assert done.returncode == 3


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("PORT", "abc", "'abc' is not a whole number, for example 8080."),
        ("PORT", "0", "'0' is out of range; it takes at least 1, for example 8080."),
        ("SHED_LAG_S", "", "'' is not a number, for example 0.1."),
        ("JOURNAL_FSYNC", "maybe", "'maybe' is not true or false, for example true."),
        (
            "LOG_LEVEL",
            "loud",
            "'loud' does not fit ^(debug|info|warning|error)$, for example info.",
        ),
        (
            "ALLOWED_HOSTS",
            "a.example",
            "'a.example' is not valid: write JSON, for example [\"a.example\"].",
        ),
        (
            "DATABASE_URL",
            "postgres//x",
            "a database URL looks like postgresql://user:password@host:5432/tollgate;",
        ),
    ],
)
def test_a_wrong_value_is_shown_with_the_accepted_values(
    tmp_path: Path, variable: str, value: str, sentence: str
) -> None:
    """The words were pydantic's, without the value; a list that was no JSON was called a fault of
    Tollgate.
    """
    done = run(tmp_path, **{f"TOLLGATE_{variable}": value})
    assert done.returncode == 2
    assert f"TOLLGATE_{variable}: {sentence}" in " ".join(done.stderr.split())


def test_a_file_of_settings_that_is_no_toml_is_named(tmp_path: Path) -> None:
    """It was called a fault of Tollgate to report."""
    file = tmp_path / "wrong.toml"
    file.write_text("port = \n")
    done = run(tmp_path, TOLLGATE_CONFIG=str(file))
    assert done.returncode == 2
    assert "cannot be read as TOML: Invalid value (at line 1" in " ".join(done.stderr.split())


def test_the_address_in_a_message_has_its_port_and_no_password() -> None:
    """The port was wrong, and the message left it out."""
    assert (
        Database("postgresql://me:secret@127.0.0.1:5433/tollgate").name == "127.0.0.1:5433/tollgate"
    )
    assert Database("postgresql://me@/tollgate?host=/run/pg&port=5432").name == "/run/pg/tollgate"
