"""The table of commands: it is written by hand, so that the help needs no import of a command."""

from __future__ import annotations

import pytest

from gateway.cli.app import COMMANDS

WIDE = 1_000


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_of_commands_says_the_same_as_the_command(name: str) -> None:
    """`tollgate --help` and `tollgate NAME --help` must not differ."""
    command = COMMANDS[name].load()
    assert command.name == name
    assert COMMANDS[name].summary in command.get_short_help_str(WIDE) + "."
