"""A team chooses its tags and projects, and sends as many requests as it likes: no number of them
breaks a page of the dashboard.

Found by an attacker who played a hostile team lead, on 2026-11-27.
"""

from __future__ import annotations

import pytest
from streamlit.testing.v1 import AppTest

from dashboard.tables import MOST_LISTED
from dashboard.views import events
from dashboard.views.spend import drill
from tests.dashboard.conftest import TIMEOUT_S, Open, look, main_module, write
from tests.dashboard.test_pages import Write, events_page, page, teams_page, texts
from tests.storage.factories import event

__all__ = ["look", "main_module", "write"]


def many_projects() -> None:
    from decimal import Decimal

    from dashboard.tables import show_report
    from gateway.reports.report import Column, ColumnKind, Dataset, Report

    names = [f"usd_{number}" for number in range(12)]
    report = Report(
        name="spend",
        title="",
        dataset=Dataset.REAL,
        columns=(
            Column(name="project", unit="", kind=ColumnKind.TEXT),
            *(Column(name=name, unit="USD", kind=ColumnKind.MONEY) for name in names),
        ),
        rows=tuple((f"p{number}", *(Decimal(1) for _ in names)) for number in range(25_000)),
        total={},
        complete_until=None,
        notes=(),
    )
    show_report(report, ("project", *names))


def test_a_table_lists_as_many_rows_as_a_page_can_format() -> None:
    """Beyond 262,144 cells the page ended with an exception: 20,165 projects of one team did it."""
    app = AppTest.from_function(many_projects, default_timeout=TIMEOUT_S).run()
    assert not app.exception
    assert len(app.dataframe[0].value) == MOST_LISTED
    assert [one.value for one in app.caption] == [
        "The first 5,000 of 25,000 rows; the file has all."
    ]


def test_the_rows_that_are_not_listed_are_one_row(
    look: Open, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the reader asks for all rows, they still add up to the total on the page."""
    monkeypatch.setattr(drill, "MOST_LISTED", 20)
    write(*(event(number, project=f"p{number:02}") for number in range(25)))
    app = page(look, teams_page, by="project")
    assert app.button(key="all").label == "Show 20 of 25"
    app.button(key="all").click().run()
    assert not app.exception
    shown = app.dataframe[0].value
    assert shown["Project"].tolist()[-2:] == ["5 other projects", "Total"]
    assert len(shown) == 22
    spent = shown["Total, USD"].tolist()
    assert sum(spent[:-1]) == spent[-1]
    assert app.button(key="all").label == "Show fewer"


def residency_page() -> None:
    from dashboard.views.records import residency

    residency.show()


def test_a_filter_that_no_question_can_have_is_taken_out(look: Open, write: Write) -> None:
    """A link with a NUL character in a filter ended four of finance's pages with an exception."""
    write(event(1))
    app = page(look, residency_page, month="2026-11", team="a\0b", region="eu")
    assert not app.exception
    assert "No name has a NUL character" in texts(app)
    assert app.query_params == {"month": "2026-11", "region": "eu"}
    assert "Sent attempts 1" in texts(app)


def test_a_file_of_all_attempts_fits_into_memory(
    look: Open, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is made in the process that serves everybody."""
    monkeypatch.setattr(events, "MOST_ATTEMPTS", 2)
    write(event(1), event(2))
    buttons = [one.label for one in page(look, events_page).get("download_button")]
    assert buttons == ["This page", "All 2"]
    write(event(3))
    app = page(look, events_page)
    assert not app.exception
    assert [one.label for one in app.get("download_button")] == ["This page"]
    assert "at most 2 attempts" in texts(app)
