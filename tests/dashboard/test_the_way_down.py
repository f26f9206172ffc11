"""The reader's choices: the address decides them, they hold across pages, and each level of the way
from teams to single requests has its own.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from dashboard.shell import changes, period, ranked
from dashboard.shell.choices import Choices
from dashboard.shell.period import Period
from dashboard.shell.viewer import localised
from gateway.errors import BadUsage
from gateway.reports.question import ask
from gateway.reports.report import Column, ColumnKind, Dataset, Report
from tests.dashboard.conftest import Open
from tests.dashboard.test_pages import Write, events_page, latency_page, page, teams_page, texts
from tests.storage.factories import event


def test_the_address_names_each_level(look: Open, write: Write) -> None:
    """A colleague who opens the address sees the same level, with the way back."""
    write(event(1), event(2, model="small"), event(3, team="research"))
    for address, columns, crumbs in (
        ({}, "Team", 0),
        ({"team": "payments"}, "Model", 2),
        ({"team": "payments", "model": "gpt-5.5"}, "Project", 3),
        ({"team": "payments", "model": "gpt-5.5", "project": "checkout"}, "Key", 4),
    ):
        app = page(look, teams_page, **address)
        assert not app.exception
        assert app.dataframe[0].value.columns[0] == columns
        assert len([one for one in app.button if str(one.key).startswith("crumb_")]) == crumbs
    app.button(key="crumb_team").click().run()
    assert {"model", "project"} & {*app.query_params} == set()
    assert app.dataframe[0].value["Model"].tolist() == ["gpt-5.5", "small", "Total"]


def test_the_choices_stand_in_the_address(look: Open, write: Write) -> None:
    """A page opened without a time names the one that it shows from then on."""
    write(event(1))
    app = page(look, teams_page)
    assert app.query_params["month"] == "2026-11"
    app.selectbox(key="bar_compare").set_value("none").run()
    app.selectbox(key="bar_split").set_value("cost_centre").run()
    assert app.query_params["compare"] == "none"
    assert app.query_params["by"] == "cost_centre"
    app.selectbox(key="bar_period").set_value("2026-10").run()
    assert app.query_params["month"] == "2026-10"
    assert "No data in October 2026" in texts(app)


def test_a_range_of_days_is_the_time(look: Open, write: Write) -> None:
    """Days are UTC, both are in the range, and a filter by day is a range of one."""
    write(*(event(day, at=datetime(2026, 11, day, 12, tzinfo=UTC)) for day in (3, 4, 5)))
    for address, total in (
        ({"from": "2026-11-03", "to": "2026-11-04"}, "\\$0.001200"),
        ({"month": "2026-11", "day": "2026-11-05"}, "\\$0.0006000"),
        ({"from": "2026-11-05", "to": "2026-11-03"}, "\\$0.001800"),  # wrong: named, and not used
    ):
        app = page(look, teams_page, **address)
        assert not app.exception
        assert app.metric[0].value == total
    assert "before it begins" in texts(app)


def test_what_a_page_cannot_apply_is_named(look: Open, write: Write) -> None:
    """A filter that is silently ignored makes a wrong figure."""
    write(event(1))
    app = page(look, latency_page, team="payments", currency="EUR")
    assert "Not applied on this page:** EUR" in texts(app)
    app = page(look, events_page, team="payments")
    assert "Not applied" not in texts(app)


def test_a_currency_without_a_rate_says_what_to_do(look: Open, write: Write) -> None:
    """And the page can be shown in dollars with one click."""
    write(event(1))
    app = page(look, teams_page, currency="EUR")
    assert not app.exception
    assert "tollgate currency add EUR" in texts(app).replace("\\", "")
    next(one for one in app.button if one.label == "Show in USD").click().run()
    assert app.metric[0].value == "\\$0.0006000"


def test_many_teams_are_the_largest_and_the_rest() -> None:
    """A table of 300 rows is not read; its parts must still add up to the total."""
    report = report_of([Decimal(n) for n in range(40, 0, -1)])
    found = ranked.ranked(report, by="team", most=15)
    assert len(found.rows) == 15
    assert found.hidden == 25
    assert found.rest is not None
    shown = [row["total_usd"] for row in (*found.rows, found.rest)]
    assert sum(Decimal(str(one)) for one in shown) == sum(range(41))
    assert found.rest["share"] == Decimal(25) / 40


def test_one_row_too_many_is_no_rest() -> None:
    """ "1 other" takes the same room as its name."""
    assert ranked.ranked(report_of([Decimal(1)] * 16), by="team", most=15).rest is None


def test_what_no_part_has_is_not_one_of_the_others() -> None:
    """A fee of 250 USD without a model was shown as "3 other models"."""
    report = report_of([Decimal(2)] * 40 + [Decimal(250)])
    unallocated = ("unallocated", *report.rows[-1][1:])
    found = ranked.ranked(
        replace(report, rows=(*report.rows[:-1], unallocated)), by="team", most=15
    )
    assert (len(found.rows), found.hidden) == (16, 25)
    assert (found.rows[-1]["team"], found.rows[-1]["total_usd"]) == ("unallocated", 250)
    assert found.rest is not None
    assert found.rest["total_usd"] == 50


def test_unknown_amounts_stay_unknown_in_the_rest() -> None:
    """A rest of $0.00 would be a wrong figure."""
    found = ranked.ranked(report_of([None] * 40), by="team", most=15)
    assert found.rest is not None
    assert found.rest["total_usd"] is None


def test_periods_have_names_for_people() -> None:
    """A range names each part that differs."""
    days = [date(2026, 11, 1), date(2026, 11, 14), date(2025, 12, 30)]
    assert Period(month="2026-11").label == "November 2026"
    assert Period(days=(days[0], days[1])).label == "1 Nov to 14 Nov 2026"
    assert Period(days=(days[2], days[0])).label == "30 Dec 2025 to 1 Nov 2026"
    assert Period(days=(days[1], days[1])).label == "14 Nov 2026"
    for one in (Period(month="all"), Period(days=(days[0], days[1]))):
        assert period.period_of_key(period.key_of(one)) == one
    with pytest.raises(BadUsage, match="not a month"):
        period.period_of({"month": "Januember"})


def test_a_page_asks_the_question_of_the_command_line() -> None:
    """The reports alone decide which days are compared: a page adds no days of its own."""
    choices = Choices(dataset=Dataset.REAL, period=Period(month="2026-11"), where={})
    asked = changes.compared_question(choices, by=("team",))
    assert asked == ask(month="2026-11", by=["team"], compare="previous")
    everything = replace(choices, period=Period(month="all"))
    assert changes.compared_question(everything, by=("team",)) is None


def test_a_page_says_which_days_are_compared(look: Open, write: Write) -> None:
    """A change without its days cannot be checked."""
    write(event(1, at=datetime.now(UTC)))
    app = page(look, teams_page, month=f"{period.today():%Y-%m}")
    assert not app.exception
    assert "Before, USD" in app.dataframe[0].value.columns
    # In a month's first hour no hour of it is complete.
    words = ("running hour", "today", "Nothing is compared yet")
    assert any(word in one.value for one in app.caption for word in words)


@pytest.mark.parametrize("text", ["1,234.56", "< 0.01 %", "157.3 M"])
def test_numbers_without_a_browser_are_english(text: str) -> None:
    """As the command line writes them."""
    assert localised(text) == text


def report_of(amounts: list[Decimal | None]) -> Report:
    """A report of teams with these amounts, each with an equal share."""
    share = Decimal(1) / len(amounts)
    return Report(
        name="spend",
        title="",
        dataset="real",
        columns=(
            Column(name="team", unit="", kind=ColumnKind.TEXT),
            Column(name="total_usd", unit="USD", kind=ColumnKind.MONEY),
            Column(name="share", unit="share of total_usd", kind=ColumnKind.SHARE),
        ),
        rows=tuple((f"t{n}", amount, share) for n, amount in enumerate(amounts)),
        total={"total_usd": sum((one or Decimal(0) for one in amounts), Decimal(0)), "share": 1},
        complete_until=None,
        notes=(),
    )
