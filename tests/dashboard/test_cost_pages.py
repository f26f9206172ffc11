"""The pages *Costs and savings* and *Meter quality*: the figures of their reports and no others."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from tests.dashboard.conftest import Open
from tests.dashboard.test_pages import page
from tests.storage.factories import event

UNKNOWN: dict[str, Any] = {
    "usage": TokenUsage(),
    "usage_source": UsageSource.UNKNOWN,
    "lines": (),
    "cost_nusd": None,
    "held_nusd": 40_000_000,
}


def costs_page() -> None:
    from dashboard.views import costs

    costs.show()


def quality_page() -> None:
    from dashboard.views import quality

    quality.show()


def test_each_question_shows_its_report(look: Open, write: Callable[..., None]) -> None:
    """One switch, four reports; only the chosen one is asked."""
    write(event(1), event(2, team="research", tags={"task": "t-1"}))
    app = page(look, costs_page)
    assert not app.exception
    assert [one.value for one in app.metric][:2] == ["\\$0.0006000", "\\$0.0006000"]
    (table,) = app.dataframe
    assert table.value["Team"].tolist() == ["payments", "research"]
    assert table.value["USD / request"].tolist() == [Decimal("0.0006")] * 2
    assert table.value["USD / task"].tolist() == ["–", "$0.0006000"]
    for question, heading, cells in (
        ("Tokens by kind", "Kind", ["output", "input"]),
        ("Savings by routing", "Compared", [0]),
        ("Top movers", "Change, USD", [Decimal("0.0006")] * 2),
    ):
        app.button_group(key="costs").set_value(question).run()
        assert not app.exception
        assert app.dataframe[0].value[heading].tolist() == cells, question


@pytest.mark.parametrize("script", [costs_page, quality_page])
def test_without_events_a_page_says_what_to_do(look: Open, script: Callable[[], None]) -> None:
    """An empty page looks broken."""
    app = page(look, script)
    assert not app.exception
    assert not app.dataframe


def test_quality_shows_open_holds(look: Open, write: Callable[..., None]) -> None:
    """The most that they can cost stands beside the share of sure figures."""
    write(event(1, **UNKNOWN), event(2))
    app = page(look, quality_page)
    assert not app.exception
    assert [one.value for one in app.metric] == ["1", "1", "\\$0.04", "0.00 %"]
    assert app.dataframe[0].value["Provider"].tolist() == ["openai"]
