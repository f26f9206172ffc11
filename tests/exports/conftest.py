"""The command line and the reports of a test's database, for the tests of exports."""

from __future__ import annotations

from tests.cli.conftest import cli, cli_at
from tests.reports.conftest import finance

__all__ = ["cli", "cli_at", "finance"]
