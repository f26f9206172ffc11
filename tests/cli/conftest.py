"""The command line over real stores: a home of its own and a migrated database for each test."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli.app import build_app
from gateway.cli.toolbox import Toolbox
from gateway.main import build_toolbox
from gateway.settings import Settings
from tests.policy.documents import EXAMPLE


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class Cli:
    """Runs commands as a person without a terminal would."""

    toolbox: Toolbox

    def __call__(self, *arguments: str, given: str | None = None) -> Ran:
        result = CliRunner().invoke(build_app(self.toolbox), list(arguments), input=given)
        return Ran(result.exit_code, result.stdout, result.stderr)

    def ok(self, *arguments: str, given: str | None = None) -> str:
        """Run a command that must succeed; return its output."""
        ran = self(*arguments, given=given)
        assert ran.code == 0, ran
        return ran.out

    def month_check(self, month: str, check: str) -> str:
        """Return the status of one check of `month status`. Others may depend on the day: a bill
        is missed once the month is over.
        """
        rows = json.loads(self("month", "status", month, "--format", "json").out)
        return next(str(row["status"]) for row in rows if row["check"] == check)


@pytest.fixture
def cli_at(tmp_path: Path) -> Callable[[str], Cli]:
    """A command line on any database."""
    return lambda url: Cli(build_toolbox(Settings(home=tmp_path / "home", database_url=url)))


@pytest.fixture
def cli(cli_at: Callable[[str], Cli], database_url: str) -> Cli:
    """A command line on a migrated database, with a pepper."""
    made = cli_at(database_url)
    made.ok("db", "upgrade")
    return made


@pytest.fixture
def policy_file(tmp_path: Path) -> Path:
    """The example policy as a file."""
    path = tmp_path / "policy.yaml"
    path.write_text(EXAMPLE)
    return path


@pytest.fixture
def applied(cli: Cli, policy_file: Path) -> Cli:
    """A command line with the example policy in force."""
    cli.ok("policy", "apply", str(policy_file), "--yes", "--message", "first")
    return cli
