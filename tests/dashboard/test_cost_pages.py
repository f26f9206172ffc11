"""Panels and pages of one report: unit costs, the cost of tokens, routing, and *Meter quality*."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from dashboard.charts import NOTHING_TO_DRAW
from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from tests.dashboard.conftest import Open
from tests.dashboard.test_pages import models_page, page, teams_page
from tests.storage.factories import event

UNKNOWN: dict[str, Any] = {
    "usage": TokenUsage(),
    "usage_source": UsageSource.UNKNOWN,
    "lines": (),
    "cost_nusd": None,
    "held_nusd": 40_000_000,
}


def quality_page() -> None:
    from dashboard.views import quality

    quality.show()


def test_a_time_of_nothing_is_compared_with_one_of_something(
    look: Open, write: Callable[..., None]
) -> None:
    """A quiet day after a busy one, and each address with such days, ended three pages with an
    exception.
    """
    write(event(1))  # on 20 November
    quiet = {"from": "2026-11-21", "to": "2026-11-21"}
    places = {"look": "Self-hosted and external"}
    for app in (
        look(**quiet),
        page(look, teams_page, **quiet),
        page(look, models_page, **quiet),
        page(look, models_page, **quiet, **places),
    ):
        assert not app.exception
        assert NOTHING_TO_DRAW in [one.value for one in app.caption]
        cards = {one.label: (one.value, one.delta) for one in app.metric}
        assert cards["Spend, USD"] == ("\\$0.00", "-100.0 %")


def test_a_panel_shows_its_report(look: Open, write: Callable[..., None]) -> None:
    """The address names the panel; its table has the split of the page."""
    write(event(1), event(2, team="research", tags={"task": "t-1"}))
    app = page(look, teams_page, look="Unit costs")
    assert not app.exception
    assert [one.value for one in app.metric][3:5] == ["\\$0.0006000", "\\$0.0006000"]
    table = app.dataframe[0].value
    assert table["Team"].tolist() == ["payments", "research"]
    assert table["USD / request"].tolist() == [Decimal("0.0006")] * 2
    assert table["USD / task"].tolist() == ["–", "$0.0006000"]
    for panel, heading, cells in (
        ("Cost of tokens", "Kind", ["output", "input"]),
        ("Routing", "Compared", [0]),
    ):
        app = page(look, models_page, look=panel)
        assert not app.exception
        assert app.dataframe[0].value[heading].tolist() == cells, panel


def test_without_events_a_page_says_what_to_do(look: Open) -> None:
    """An empty page looks broken."""
    app = page(look, quality_page)
    assert not app.exception
    assert not app.dataframe


def test_quality_shows_open_holds(look: Open, write: Callable[..., None]) -> None:
    """The most that they can cost stands beside the share of sure figures."""
    write(event(1, **UNKNOWN), event(2))
    app = page(look, quality_page)
    assert not app.exception
    assert [one.value for one in app.metric] == ["1", "1", "\\$0.04", "0.00 %"]
    assert app.dataframe[0].value["Provider"].tolist() == ["openai"]
