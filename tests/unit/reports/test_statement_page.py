"""The page of a statement: its parts add up, and unknown is never zero."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from gateway.domain.reports.statement import (
    MOST_LINES,
    MOST_REASON,
    CostCentreStatement,
    StatementAdjustment,
    StatementLine,
    StatementMonth,
    page_of,
    percent,
)

MONTH = StatementMonth(
    first_day=date(2026, 10, 1),
    state="closed",
    version=1,
    sha256="ab" * 32,
    as_of=datetime(2026, 11, 4, 9, 30, tzinfo=UTC),
)
STATEMENT = CostCentreStatement(
    cost_centre="CC-1207",
    title="Payments",
    owner="ana@example.com",
    month=MONTH,
    previous=replace(MONTH, first_day=date(2026, 9, 1)),
    currency="USD",
    cost=Decimal(110),
    adjusted=Decimal(-10),
    total=Decimal(100),
    all_total=Decimal(400),
    idle=Decimal(5),
    all_idle=Decimal(20),
    held=Decimal(1),
    compared_total=Decimal(100),
    previous_total=Decimal(80),
    by_team=(
        StatementLine(
            name="payments", amount=Decimal(100), compared=Decimal(100), previous=Decimal(80)
        ),
    ),
    by_model=(),
    adjustments=(
        StatementAdjustment(
            day=date(2026, 10, 3),
            kind="true_up",
            team="payments",
            reason="why\n" * 100,
            amount=Decimal(-7),
        ),
    ),
    adjustment_count=3,
    attempts=1000,
    unknown_attempts=2,
    derived_attempts=3,
    rate_source=None,
)


def test_the_page_says_the_total_its_change_and_its_share() -> None:
    """The three figures that an owner looks for."""
    page = page_of(STATEMENT)
    assert (page.total, page.change, page.share) == (
        "$100.00",
        "+$20.00 (+25.0 %) since September 2026",
        "25.0 % of all spending",
    )
    assert (page.cost_centre, page.state, page.is_final) == (
        "Payments · CC-1207",
        "Closed, version 1",
        True,
    )
    assert dict(page.beside)["Idle GPU time"] == "$5.00 (25.0 % of all idle time)"
    assert page.by_team.rows == (("payments", "$100.00", "100.0 %", "+$20.00"),)
    assert page.notes[0].startswith("October 2026 is closed: version 1")
    assert page.notes[2] == (
        "1,000 attempts; the cost of 2 is unknown, at most $1.00; the usage of 3 is the gateway's "
        "own count."
    )


def test_the_rest_of_a_table_is_one_line_so_it_adds_up() -> None:
    """A page with 300 teams must still add up to its total."""
    lines = tuple(
        StatementLine(
            name=f"t{n}", amount=Decimal(n), compared=Decimal(n), previous=None if n else Decimal(0)
        )
        for n in range(MOST_LINES + 5)
    )
    page = page_of(replace(STATEMENT, by_team=lines))
    assert page.by_team.rows[-1][:2] == (
        "5 others",
        f"${sum(range(MOST_LINES, MOST_LINES + 5))}.00",
    )
    (first, rest) = page.adjustments.rows
    assert (first[1], len(first[3]), first[3][-1]) == ("true up", MOST_REASON, "…")
    assert rest[3:] == ("2 smaller ones", "-$3.00")
    unknown = tuple(replace(line, amount=None) for line in lines)
    assert page_of(replace(STATEMENT, by_team=unknown)).by_team.rows[-1][1] == "unknown"


def test_one_line_too_many_is_listed_by_its_name() -> None:
    """ "1 others" takes as much room as the team that it hides."""
    lines = tuple(
        StatementLine(name=f"t{n}", amount=Decimal(n), compared=Decimal(n), previous=None)
        for n in range(MOST_LINES + 1)
    )
    page = page_of(replace(STATEMENT, by_team=lines))
    assert [row[0] for row in page.by_team.rows] == [line.name for line in lines]
    page = page_of(replace(STATEMENT, adjustment_count=STATEMENT.adjustment_count - 1))
    assert page.adjustments.rows[-1][3] == "1 smaller one"


def test_unknown_is_never_zero_and_no_statement_before_is_said() -> None:
    """A blank would be read as nothing spent."""
    page = page_of(
        replace(
            STATEMENT,
            title=None,
            owner=None,
            total=None,
            compared_total=None,
            idle=None,
            all_idle=None,
            adjustments=(),
            adjustment_count=0,
            unknown_attempts=0,
            derived_attempts=0,
            rate_source="rate_source: ECB",
        )
    )
    assert (page.total, page.change) == ("unknown", "The change since September 2026 is unknown")
    assert page.cost_centre == "CC-1207"
    assert dict(page.facts)["Owner"] == "—"
    assert dict(page.beside)["Idle GPU time"] == "unknown"
    assert page.adjustments.note == "None in this month."
    assert page.notes[1] == "rate_source: ECB"
    assert "unknown until" in page.notes[3]
    first = page_of(replace(STATEMENT, previous=None, previous_total=None))
    assert first.change == "There is no statement before this one"
    assert first.by_team.columns == ("Team", "Amount", "Share")
    from_nothing = page_of(replace(STATEMENT, previous_total=Decimal(0)))
    assert from_nothing.change == "+$100.00 since September 2026"


def test_a_running_month_says_which_days_its_changes_compare() -> None:
    """The total has today in it, its change does not: both are on the page."""
    sentence = "27 complete days against 27."
    month = StatementMonth(first_day=MONTH.first_day, state="open")
    running = replace(
        STATEMENT, month=month, compared_total=Decimal(90), comparison=sentence, by_team=()
    )
    page = page_of(running)
    assert (page.total, page.change) == (
        "$100.00",
        "+$10.00 (+12.5 %) in its complete days, against September 2026",
    )
    assert page.by_team.total == ("Total", "$100.00", "100.0 %", "+$10.00")
    assert page.notes[1] == f"Changes: {sentence}"


@pytest.mark.parametrize(
    ("state", "label"),
    [("provisional", "Provisional"), ("open", "Provisional, the month is not over")],
)
def test_a_month_that_is_not_closed_says_so(state: str, label: str) -> None:
    """A figure that can change must not be signed as final."""
    month = StatementMonth(first_day=MONTH.first_day, state=state)
    page = page_of(replace(STATEMENT, month=month))
    assert (page.state, page.is_final, page.created_at) == (label, False, None)
    assert "no event" in page.notes[0]
    later = page_of(replace(STATEMENT, month=replace(month, as_of=MONTH.as_of)))
    assert "2026-11-04 09:30 UTC" in later.notes[0]


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (None, "1", "—"),
        ("1", None, "—"),
        ("1", "0", "—"),
        ("0", "1", "0.0 %"),
        ("0.0001", "1", "< 0.1 %"),
        ("0.9999", "1", "> 99.9 %"),
        ("1", "1", "100.0 %"),
        ("-1", "4", "-25.0 %"),
        ("-0.0001", "1", "> -0.1 %"),
    ],
)
def test_a_share_is_never_rounded_to_nothing_or_all(
    part: str | None, whole: str | None, text: str
) -> None:
    """0.0 % of a bill is read as none of it."""
    amounts = [None if one is None else Decimal(one) for one in (part, whole)]
    assert percent(*amounts) == text
