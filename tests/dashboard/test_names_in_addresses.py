"""Names of any text stand in the dashboard's addresses and file names as they are elsewhere."""

from __future__ import annotations

from datetime import date

import pytest

from dashboard.views.books.statements import file_name
from gateway.reports.statements.files import StatementFormat
from tests.dashboard.conftest import Open
from tests.dashboard.test_pages import Write, events_page, page, teams_page, texts
from tests.policy.test_policy_names import HARD
from tests.storage.factories import event

SHOWN = ("a/b?x=1&y#z", "$(id) `x` $y$", ":red[x] **b**", "100%2F+ 'q\"", "支払い\U0001f600")


@pytest.mark.parametrize("name", SHOWN)
def test_a_cost_centre_of_any_text_is_found_by_its_address(
    look: Open, write: Write, name: str
) -> None:
    """A colleague opens the address; it shows this cost centre's attempts and no other's."""
    write(event(1, team="its", cost_centre=name), event(2, cost_centre="CC-1"))
    app = page(look, teams_page, month="2026-11", cost_centre=name)
    assert not app.exception, texts(app)
    assert app.query_params["cost_centre"] == name
    assert app.dataframe[0].value["Team"].tolist() == ["its", "Total"]
    app = page(look, events_page, month="2026-11", cost_centre=name)
    assert not app.exception, texts(app)
    assert len(app.dataframe[0].value) == 1


def test_a_downloaded_statement_has_a_name_of_its_own() -> None:
    """Its name had the cost centre as it is: a path, or one that another one replaces."""
    names = {
        file_name(one, among=[*HARD], month=date(2026, 10, 1), kind=StatementFormat.PDF)
        for one in HARD
    }
    assert len({name.casefold() for name in names}) == len(HARD)
    assert not [name for name in names if {*name} & {*'/\\:*?"<>|%'} or not name.isprintable()]
