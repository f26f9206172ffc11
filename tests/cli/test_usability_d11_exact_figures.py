"""Usability D11: figures that contradicted each other, or that were rounded away."""

from __future__ import annotations

from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests.cli.conftest import Cli
from tests.storage.factories import event


def test_an_example_request_is_priced_to_the_last_digit(cli: Cli) -> None:
    """The page exists to be exact: 1,000 tokens each way at $5 and $30 are $0.035, not $0.04."""
    text = cli.ok("price", "show", "gpt-5.5")
    assert "standard" in text
    assert "$0.035" in text


def test_nothing_is_held_for_a_cost_that_is_known(cli: Cli, database: Database) -> None:
    """`unknown` beside a known cost says that money is missing."""
    Ledger(database).write([event(1)])
    assert "unknown" not in cli.ok("report", "events")
