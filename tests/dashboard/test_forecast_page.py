"""The forecast on the page *Budgets and forecast*: headlines, parts, months ahead and spikes, and
the words without enough data.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from streamlit.testing.v1 import AppTest

from gateway.storage.ledger import rollups
from gateway.storage.postgres.database import Database
from tests.dashboard.conftest import Open
from tests.dashboard.test_pages import page, texts
from tests.storage.factories import event

USD = 1_000_000_000


def forecast_page() -> None:
    from dashboard.views import budgets_and_forecast

    budgets_and_forecast.show()


def days_back(count: int) -> datetime:
    """Noon of a past day."""
    now = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)
    return now - timedelta(days=count)


def test_ten_weeks_give_a_forecast_months_ahead_and_a_spike(
    look: Open, write: Callable[..., None], database: Database
) -> None:
    """Every figure of the page, from one day that cost fifty times the usual."""
    days = [
        event(back, at=days_back(back), cost_nusd=(500 if back == 1 else 10) * USD, lines=())
        for back in range(70, 0, -1)
    ]
    write(*days)
    rollups.refresh(database)
    app: AppTest = page(look, forecast_page, look="Forecast")
    assert not app.exception
    parts, spikes = (table.value for table in app.dataframe)
    assert parts["Team"].tolist() == ["payments"]
    assert spikes["Change, USD"].tolist() == [Decimal(490)]
    assert len(app.get("vega_lite_chart")) == 1
    assert app.metric[1].label == "At the month's end, USD"
    assert "tollgate key pause" in texts(app)


def test_two_events_are_no_basis(look: Open, write: Callable[..., None]) -> None:
    """No forecast, no chart of nothing, and the reason."""
    write(event(1), event(2))
    app: AppTest = page(look, forecast_page)
    app.button_group(key="look").set_value("Forecast").run()
    assert app.query_params["look"] == "Forecast"
    assert not app.exception
    assert "No outlook: it needs 8 weeks" in texts(app).replace("\\", "")
    assert "None in the last four weeks." in texts(app)
