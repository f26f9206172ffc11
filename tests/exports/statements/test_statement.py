"""`tollgate report statement`: the figures of the reports, one page, and the same bytes for a
closed month after any later change.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gateway.domain.allocation.currency import new_rate
from gateway.domain.reports.statement import (
    MOST_ADJUSTMENTS,
    CostCentreStatement,
    StatementAdjustment,
    StatementLine,
    StatementMonth,
    page_of,
)
from gateway.errors import BadUsage, NothingFound, OperatorError
from gateway.reports.question import ask
from gateway.reports.reports import Reports
from gateway.reports.statements.files import StatementFormat, statement_file
from gateway.reports.statements.pdf import MISSING_NOTE, missing_letters
from gateway.reports.statements.statement import ask_statement
from gateway.storage.allocation.currencies import CurrencyStore
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.ledger.months import MonthStore
from gateway.storage.postgres.database import Database
from tests.cli.conftest import Cli
from tests.exports.statements.statement_ledger import (
    OCTOBER,
    REASON,
    SEPTEMBER,
    adjust,
    declare,
    fill,
    moment,
)
from tests.storage.factories import event
from tests.storage.ledger.months.test_month_states import close


@pytest.fixture
def filled(database: Database) -> Database:
    """A ledger of two months."""
    fill(database)
    return database


def read(reports: Reports, cost_centre: str, month: str = "2026-10", **asked: Any) -> Any:
    with reports.statements(ask_statement(month=month, **asked)) as statements:
        return statements.of(cost_centre)


def test_the_figures_are_those_of_the_report(filled: Database, finance: Reports) -> None:
    """The owner compares the page with the dashboard: to the nano-dollar."""
    found = read(finance, "CC-0042")
    of_centre = finance.run("spend", ask(month="2026-10", by=["cost_centre"], limit=None))
    (row,) = [one for one in of_centre.records() if one["cost_centre"] == "CC-0042"]
    assert (found.cost, found.adjusted, found.total) == (
        row["cost_usd"],
        row["adjustments_usd"],
        row["total_usd"],
    )
    # A quarter of team payments: of 2 USD, and of the adjustment.
    assert found.total == Decimal(4 + 6 + 8) + Decimal("0.5") - Decimal("0.1")
    assert found.all_total == of_centre.total["total_usd"]
    for lines in (found.by_team, found.by_model):
        assert sum(line.amount for line in lines) == found.total
        assert sum(line.previous for line in lines) == found.previous_total
    assert [line.name for line in found.by_team] == ["search", "支払い", "payments"]
    assert found.adjustments == (
        StatementAdjustment(
            day=OCTOBER, kind="resolution", team="payments", reason=REASON, amount=Decimal("-0.1")
        ),
    )
    assert (found.title, found.owner) == ("Поиск и данные", "ana@example.com")
    assert (found.month.state, found.previous.first_day) == ("provisional", SEPTEMBER)


def test_a_closed_statement_has_the_same_bytes_whatever_comes_later(
    filled: Database, finance: Reports
) -> None:
    """It was signed. A renamed cost centre, a new rate and a late event change nothing in it."""
    CurrencyStore(filled).add(
        new_rate(
            currency="EUR", first_day=date(2026, 8, 1), usd_per_unit=Decimal("1.25"), source="ECB"
        )
    )

    def files(**asked: Any) -> list[bytes]:
        made = [read(finance, "CC-0042", currency=currency, **asked) for currency in (None, "EUR")]
        return [statement_file(one, format) for one in made for format in StatementFormat]

    with pytest.raises(OperatorError, match="2026-10 is not closed"):
        files(as_closed=True)
    provisional = files()
    for month in (SEPTEMBER, OCTOBER):
        close(filled, month)
    closed = files()
    assert closed != provisional
    assert b"Closed, version 1" in closed[1]
    assert b"(ECB)" in closed[3]
    declare(filled, "Renamed", at=datetime.now(UTC))
    Ledger(filled).write([event(99, at=moment(OCTOBER), team="search", cost_centre="CC-0042")])
    adjust(filled, date(2026, 11, 1), 5_000_000)
    assert files(as_closed=True) == files() == closed
    # Reopened, it is provisional again; its first version stays reproducible.
    MonthStore(filled).reopen(OCTOBER, reason="one event is missing")
    assert b"Provisional" in files()[1]
    close(filled, OCTOBER)
    assert b"Closed, version 2" in files()[1]
    assert files(as_closed=True, close_version=1) == closed
    with pytest.raises(OperatorError, match="in version 3"):
        files(as_closed=True, close_version=3)


def test_a_cost_centre_without_use_has_a_statement_and_an_unknown_one_has_none(
    filled: Database, finance: Reports
) -> None:
    """Zero is a figure to sign; a typing error is not."""
    found = read(finance, "CC-1207", "2026-11")
    assert (found.total, found.previous_total, found.by_team[0].amount) == (
        Decimal(0),
        Decimal("1.2"),
        Decimal(0),
    )
    assert read(finance, "CC-1207", "2026-08").previous is None
    with pytest.raises(NothingFound, match="There is: CC-0042, CC-1207"):
        read(finance, "CC-9")
    with pytest.raises(BadUsage):
        ask_statement(month="all")


def worst_case() -> CostCentreStatement:
    """Return a statement with every table full and every text long, of letters of all scripts."""
    month = StatementMonth(
        first_day=OCTOBER,
        state="closed",
        version=12,
        sha256="f" * 64,
        as_of=datetime(2026, 11, 4, 9, tzinfo=UTC),
    )
    lines = tuple(
        StatementLine(name=f"team-{n}-" + "W" * 80, amount=Decimal(n), compared=None, previous=None)
        for n in range(300)
    )
    amount = Decimal("-123456789.123456789")
    return CostCentreStatement(
        cost_centre="CC-" + "W" * 100,
        title="<script>alert(1)</script> " + "Ж" * 100,
        owner="支払い " * 20,
        month=month,
        previous=replace(month, first_day=SEPTEMBER),
        currency="EUR",
        cost=amount,
        adjusted=amount,
        total=amount,
        all_total=None,
        idle=None,
        all_idle=None,
        held=Decimal("0.0000001"),
        compared_total=None,
        previous_total=None,
        by_team=lines,
        by_model=lines,
        adjustments=tuple(
            StatementAdjustment(
                day=OCTOBER + timedelta(days=n),
                kind="reallocation",
                team="W" * 80,
                reason="why " * 200,
                amount=amount,
            )
            for n in range(MOST_ADJUSTMENTS)
        ),
        adjustment_count=1_000_000,
        attempts=10**12,
        unknown_attempts=10**9,
        derived_attempts=10**9,
        rate_source="rate_source: " + "from 2026-10-01: 1 EUR = 1.0850 USD (ECB); " * 6,
        comparison="27 complete days, 2026-10-01 to 2026-10-27, against 2026-09-01 to 2026-09-27; "
        "today, 2026-10-28, is in neither.",
        demo_note="Demo ledger: its events were generated, they are not real spend.",
    )


def pages(pdf: bytes) -> int:
    """Return the number of pages of a PDF."""
    return len(re.findall(rb"/Type /Page\b", pdf))


def test_the_longest_statement_is_one_page() -> None:
    """It is printed, signed and filed."""
    statement = worst_case()
    assert pages(statement_file(statement, StatementFormat.PDF)) == 1
    empty = replace(statement, by_team=(), by_model=(), adjustments=(), adjustment_count=0)
    assert pages(statement_file(empty, StatementFormat.PDF)) == 1


def test_a_name_of_any_length_is_cut() -> None:
    """Each letter that was cut measured all others: these would hold the command for minutes."""
    long = replace(worst_case(), cost_centre="l" * 100_000)
    assert pages(statement_file(long, StatementFormat.PDF)) == 1


def test_a_letter_that_the_font_lacks_is_named_and_html_has_it() -> None:
    """A name that turned into question marks would be signed unread."""
    page = page_of(worst_case())
    assert missing_letters(page.facts[2][1]) == {"支", "払", "い"}
    assert missing_letters("Zürich Łódź Поиск Πληρωμές €") == set()
    assert "HTML" in MISSING_NOTE
    html = statement_file(worst_case(), StatementFormat.HTML).decode()
    assert "支払い" in html
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert not re.search(r"(src|href|url|@import)\s*[=(]", html)


def test_the_command_writes_both_formats(filled: Database, cli: Cli, tmp_path: Path) -> None:
    """A month that is not closed says so, on the page and in the terminal."""
    for name, start in (("a.pdf", b"%PDF-"), ("a.html", b"<!doctype html>")):
        out = tmp_path / name
        ran = cli(
            *("report", "statement", "--cost-centre", "CC-0042", "--month", "2026-10"),
            *("--out", str(out), "--format", "json"),
        )
        record = json.loads(ran.out)
        content = out.read_bytes()
        assert ran.code == 0
        assert content.startswith(start)
        assert record["sha256"] == hashlib.sha256(content).hexdigest()
        assert (record["state"], record["version"]) == ("provisional", None)
        assert "month status 2026-10" in ran.err
    html = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "invoice &lt;b&gt;4711&lt;/b&gt; &amp; &quot;more&quot;" in html


def test_the_printed_total_has_the_currency_of_the_page(
    filled: Database, cli: Cli, tmp_path: Path
) -> None:
    """An amount of 14.72 EUR was printed as $14.72."""
    cli.ok(
        *("currency", "add", "EUR", "--usd-per-unit", "1.25"),
        *("--from", "2026-08-01", "--source", "ECB"),
    )
    asked = ("report", "statement", "--cost-centre", "CC-0042", "--month", "2026-10")
    out = ("--currency", "EUR", "--out", str(tmp_path / "eur.html"))
    printed = cli.ok(*asked, *out)
    assert re.search(r"^total +14\.72 EUR$", printed, re.M)
    assert "14.72 EUR" in (tmp_path / "eur.html").read_text(encoding="utf-8")
    assert json.loads(cli.ok(*asked, *out, "--format", "json"))["total"] == 14.72


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"--out": "a.txt"}, 2, ".pdf or .html"),
        ({"--out": "missing/a.pdf"}, 2, "no folder"),
        ({"--month": "October"}, 2, "YYYY-MM"),
        ({"--cost-centre": "CC-9"}, 1, "CC-0042"),
        ({"--currency": "EUR"}, 1, "currency add"),
        ({"--close-version": "2"}, 2, "--as-closed"),
    ],
)
def test_an_error_names_the_next_step_and_writes_nothing(
    filled: Database, cli: Cli, tmp_path: Path, changes: dict[str, str], code: int, words: str
) -> None:
    """The statement of yesterday is better than half of today's."""
    given = {
        "--cost-centre": "CC-0042",
        "--month": "2026-10",
        "--out": "a.pdf",
    } | changes
    given["--out"] = str(tmp_path / given["--out"])
    ran = cli("report", "statement", *(word for pair in given.items() for word in pair))
    assert (ran.code, words in ran.err) == (code, True), ran
    assert not list(tmp_path.glob("*.pdf"))
