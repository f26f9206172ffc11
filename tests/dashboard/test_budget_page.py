"""The budgets on the page *Budgets and forecast*: the remaining amounts, in words as well as in
colours, and the first step without any budget.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import text

from dashboard.views.budgets import OVER, USED_UP, WITHIN, outlook
from gateway.domain.budgets.budgets import BudgetPeriod, Hold
from gateway.storage.postgres.database import Database
from tests.dashboard.conftest import Open
from tests.dashboard.test_pages import page, texts
from tests.storage.budget_books import declare, team_rule
from tests.storage.factories import event

USD = 10**9


def budgets_page() -> None:
    from dashboard.views import budgets_and_forecast

    budgets_and_forecast.show()


def test_budgets_stand_by_the_share_that_is_used(
    look: Open, write: Callable[..., None], database: Database
) -> None:
    """The one that will refuse next is the first that is read."""
    full = team_rule(
        USD, rule_id="research/once", team="research", owner="research", period=BudgetPeriod.ONCE
    )
    declare(
        database,
        team_rule(),
        full,
        team_rule(5 * USD, rule_id="**bold**", period=BudgetPeriod.ONCE),
    )
    write(event(1, cost_nusd=USD, lines=(), team="research", holds=(Hold("research/once", 0, 1),)))
    app = page(look, budgets_page)
    assert not app.exception
    table = app.dataframe[0].value
    assert table["Budget"].tolist() == ["research/once", "**bold**", "payments/month"]
    assert table["Outlook"].tolist() == [USED_UP, WITHIN, WITHIN]
    assert table["Left"].tolist()[:2] == [Decimal(0), Decimal(5)]
    assert table["Forecast"].tolist()[:2] == ["–", "–"]
    assert table["Resets (UTC)"].tolist()[0] == "never"
    assert [metric.value for metric in app.metric] == ["3", "1", "0"]
    assert "at the present rate" in texts(app)
    (chart,) = app.get("vega_lite_chart")
    assert '"columns": 1' in chart.proto.spec, "at 390 pixels its legend was cut at the edge"


def test_without_a_budget_the_page_shows_how_to_declare_one(look: Open, database: Database) -> None:
    """An empty page is a dead end."""
    app = page(look, budgets_page)
    assert not app.exception
    assert "No budget yet" in texts(app)
    assert "limit_usd: 5000" in texts(app)


def test_a_limit_of_nothing_draws_no_bar_and_does_not_fail(look: Open, database: Database) -> None:
    """A team may be stopped by a limit of zero."""
    declare(database, team_rule(0))
    app = page(look, budgets_page)
    assert not app.exception
    assert app.dataframe[0].value["Outlook"].tolist() == [USED_UP]
    with database.begin() as connection:
        assert connection.execute(text("SELECT count(*) FROM finance.budgets")).scalar_one() == 1


@pytest.mark.parametrize(
    ("spent", "left", "forecast", "expected"),
    [
        (1, 9, None, WITHIN),
        (1, 9, 10, WITHIN),
        (1, 9, 11, OVER),
        (10, 0, 11, USED_UP),
        (4, 0, 5, USED_UP),
    ],
)
def test_the_outlook_is_words(spent: int, left: int, forecast: int | None, expected: str) -> None:
    """Whoever sees no colours reads whether a budget will last."""
    row: dict[str, Any] = {
        "limit_usd": Decimal(8),
        "granted_usd": Decimal(2),
        "spent_usd": Decimal(spent),
        "remaining_usd": Decimal(left),
        "forecast_usd": None if forecast is None else Decimal(forecast),
    }
    assert outlook(row) == expected
