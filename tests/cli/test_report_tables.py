"""Every report prints as a table, with any content."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from gateway.domain.pricing.pricing import Line, cost_nusd
from gateway.domain.pricing.tokens import TokenKind, TokenUsage
from gateway.reports.registry import REPORTS
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests.cli.conftest import Cli
from tests.storage.factories import event, request_id


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_prints_with_and_without_events(cli: Cli, database: Database, name: str) -> None:
    """`report shadow` crashed if events existed and nothing was in shadow mode."""
    assert cli.ok("report", name)
    Ledger(database).write([event(1)])
    assert cli.ok("report", name)


def test_a_misspelt_report_or_split_names_the_one_that_was_meant(cli: Cli) -> None:
    """Every other word of the commands did; the usage had two blanks in place of the report's
    name.
    """
    assert "Did you mean 'spend'?" in cli("report", "spned").err
    assert "Did you mean 'team'?" in cli("report", "spend", "--by", "teem").err
    assert "Usage: tollgate report spend [OPTIONS]\n" in cli("report", "spend", "--bye", "team").err


def test_a_limit_cuts_every_report_and_says_so(cli: Cli, database: Database) -> None:
    """`report tokens --limit 3` printed 90 days, without a word that the limit was ignored."""
    Ledger(database).write([event(number, team=f"team-{number}") for number in range(1, 6)])
    whole = json.loads(cli.ok("report", "spend", "--by", "team", "--format", "json"))
    page = json.loads(
        cli.ok(
            "report", "spend", "--by", "team", "--format", "json", "--limit", "2", "--offset", "1"
        )
    )
    assert page["rows"] == whole["rows"][1:3]
    assert page["total"] == whole["total"]
    assert page["notes"] == ["Rows 2 to 3 of 5.", *whole["notes"]]
    # Head, two rows, total.
    assert len(cli.ok("report", "spend", "--by", "team", "--limit", "2").splitlines()) == 4
    past = json.loads(
        cli.ok("report", "spend", "--by", "team", "--format", "json", "--offset", "9")
    )
    assert (past["rows"], past["notes"][0]) == ([], "No rows here; there are 5.")


def test_a_page_of_unsettled_attempts_counts_the_omitted_rows(cli: Cli, database: Database) -> None:
    """Its page ended after 100 rows as if there were no others."""
    Ledger(database).write([event(number, cost_nusd=None, held_nusd=50) for number in range(1, 4)])
    page = json.loads(cli.ok("report", "unsettled", "--format", "json", "--limit", "2"))
    assert (len(page["rows"]), page["notes"][0]) == (2, "Attempts 1 to 2 of 3.")


@pytest.mark.parametrize(
    ("kind", "usd_per_mtok", "words"),
    [
        (TokenKind.CACHED_INPUT, "0.3", "50% of the prompt was cached: $2.70 less than"),
        (TokenKind.CACHE_WRITE, "3.75", "0% of the prompt was cached: $0.75 more than"),
    ],
)
def test_a_receipt_says_what_the_cache_saved(
    cli: Cli, database: Database, kind: TokenKind, usd_per_mtok: str, words: str
) -> None:
    """Only the JSON had it: who reads the table saw lines at three rates and no difference."""
    rates = {TokenKind.INPUT: Decimal(3), kind: Decimal(usd_per_mtok)}
    receipt = tuple(
        Line(kind=one, tokens=10**6, usd_per_mtok=rate, cost_nusd=int(rate * 10**9))
        for one, rate in rates.items()
    )
    is_read = kind is TokenKind.CACHED_INPUT
    usage = TokenUsage(
        input_tokens=2 * 10**6,
        cached_input_tokens=10**6 if is_read else 0,
        cache_write_tokens=0 if is_read else 10**6,
        output_tokens=0,
    )
    Ledger(database).write([event(1, usage=usage, lines=receipt, cost_nusd=cost_nusd(receipt))])

    assert words in cli.ok("report", "receipt", str(request_id(1)))
