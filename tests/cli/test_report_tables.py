"""Every report prints as a table, whatever it has to show."""

from __future__ import annotations

import pytest

from gateway.reports import REPORTS
from gateway.storage.database import Database
from gateway.storage.ledger import Ledger
from tests.cli.conftest import Cli
from tests.storage.factories import event


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_prints_with_and_without_events(cli: Cli, database: Database, name: str) -> None:
    """`report shadow` crashed where events were there and nothing was in shadow."""
    assert cli.ok("report", name)
    Ledger(database).write([event(1)])
    assert cli.ok("report", name)
