"""The references of commands and settings cannot rot: the code lists itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import typer.main

from gateway.cli.app import build_app
from gateway.cli.toolbox import Toolbox
from gateway.settings import Settings

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
COMMANDS = (REFERENCE / "cli.md").read_text(encoding="utf-8")
SETTINGS = (REFERENCE / "settings.md").read_text(encoding="utf-8")

# Nothing in the ledger, the books or the policy; `up` and the servers run until they are stopped.
CHANGE_NOTHING = {
    *("up", "serve", "dashboard", "engine", "doctor", "db check", "db url"),
    *(f"policy {name}" for name in ("validate", "plan", "test", "schema", "show", "export")),
    *("policy history", "policy explain", "team list", "team show", "key list"),
    *("budget list", "budget show", "price list", "price show"),
    *(f"report {name}" for name in ("NAME", "list", "receipt", "selfhost-vs-api", "demand")),
    *("report statement", "report schedule list"),
    *("export events", "export adjustments", "export focus", "month status"),
    *("reconcile show", "reconcile dead-letters", "currency list", "reallocation list"),
    *("journal list", "audit verify", "audit head", "audit list", "audit residency"),
}


def commands() -> Iterator[tuple[str, Any]]:
    """Every command with its path."""

    def walk(command: Any, path: str) -> Iterator[tuple[str, Any]]:
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, f"{path} {name}")
        if not hasattr(command, "commands"):
            yield path, command

    yield from walk(typer.main.get_command(build_app(cast(Toolbox, None))), "tollgate")


@pytest.mark.parametrize(
    ("path", "command"), list(commands()), ids=[path for path, _ in commands()]
)
def test_every_command_has_a_section_and_its_options_a_meaning(path: str, command: Any) -> None:
    """An undocumented command is not found; its help is the reference of its options."""
    sections = [
        s for s in COMMANDS.split("\n### ") if s.splitlines()[0] == path or s.startswith(f"{path} ")
    ]
    assert len(sections) == 1, f"docs/reference/cli.md needs one section '### {path}'"
    assert " ".join(command.help.split("\n\n")[0].split()) in " ".join(sections[0].split())
    for parameter in command.params:
        if parameter.param_type_name == "option":
            assert parameter.hidden or parameter.help, f"{parameter.opts[0]} has no meaning"


def test_every_command_that_changes_something_takes_yes() -> None:
    """A script gives --yes to all of them alike; the others are listed here."""
    found = {
        path.removeprefix("tollgate ")
        for path, command in commands()
        if not any("--yes" in parameter.opts for parameter in command.params)
    }
    assert found == CHANGE_NOTHING


def test_a_reason_has_one_name() -> None:
    """`policy rollback` alone refused --reason. A rate's reason in the audit log is its source."""
    for path, command in commands():
        names = {name for parameter in command.params for name in parameter.opts}
        assert "--reason" in names or names.isdisjoint({"--message", "-m"}), path


def test_every_documented_command_exists() -> None:
    """Documentation of removed commands misleads."""
    known = [path for path, _ in commands()]
    for section in COMMANDS.split("\n### ")[1:]:
        heading = section.splitlines()[0]
        assert any(heading == path or heading.startswith(f"{path} ") for path in known), heading


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_is_documented(name: str) -> None:
    """An undocumented setting is not used."""
    meaning = Settings.model_fields[name].description
    assert meaning
    (line,) = [
        line for line in SETTINGS.splitlines() if line.startswith(f"| `TOLLGATE_{name.upper()}` |")
    ]
    assert line.endswith(f"| {meaning} |")


def test_every_command_has_an_example() -> None:
    """Help that teaches shows a line to copy."""
    for path, command in commands():
        if path != "tollgate up":
            assert "Example" in (command.epilog or ""), path
