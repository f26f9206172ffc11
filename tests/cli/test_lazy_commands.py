"""The table of commands: it is written by hand, so that the help needs no import of a command."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.cli.app import COMMANDS, Command, LazyCommands

WIDE = 1_000


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_of_commands_says_the_same_as_the_command(name: str) -> None:
    """`tollgate --help` and `tollgate NAME --help` must not differ."""
    command = COMMANDS[name].load()
    assert command.name == name
    assert COMMANDS[name].summary in command.get_short_help_str(WIDE) + "."


def test_a_command_that_cannot_be_imported_is_not_an_unknown_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mapping takes any `KeyError` for a name that is not there, also one of the import: the
    command line then said "No such command", with exit code 2.
    """
    (tmp_path / "breaks_when_imported.py").write_text("{}['a setting']")
    monkeypatch.syspath_prepend(tmp_path)
    commands = LazyCommands({"broken": Command("breaks_when_imported", "Breaks.")})
    assert "broken" in commands
    assert commands.get("other") is None
    with pytest.raises(KeyError, match="a setting"):
        commands.get("broken")
