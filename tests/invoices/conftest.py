"""The command line and its database, as for the tests of commands."""

from __future__ import annotations

from tests.cli.conftest import cli, cli_at

__all__ = ["cli", "cli_at"]
