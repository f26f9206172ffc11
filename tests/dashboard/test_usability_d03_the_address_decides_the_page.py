"""Usability D3: a link that named a filter or a month without data showed another total than it
named.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.dashboard.conftest import Open
from tests.dashboard.test_pages import events_page, latency_page, page, texts
from tests.storage.factories import event

Write = Callable[..., None]


def test_the_first_page_shows_the_team_of_its_address(look: Open, write: Write) -> None:
    """A link to one team's spend showed everybody's total: $228.02 in place of $54.62."""
    write(event(1), event(2, team="research"), event(3, team="research"))
    app = look(team="payments")
    assert not app.exception
    assert app.metric[0].value == "\\$0.0006000"
    app.button(key="without_team").click().run()
    assert app.metric[0].value == "\\$0.001800"


@pytest.mark.parametrize("name", ["team", "cost_centre", "tag", "model"])
def test_a_name_that_matches_nothing_is_not_ignored(look: Open, write: Write, name: str) -> None:
    """The sum over everything in place of "nothing" is a wrong figure."""
    write(event(1))
    for app in (look(**{name: "nowhere"}), page(look, events_page, **{name: "nowhere"})):
        assert not app.exception
        assert "No events match these filters" in texts(app)


def test_a_month_without_data_says_so(look: Open, write: Write) -> None:
    """`?month=2020-01` showed the newest month, without a word."""
    write(event(1))
    for app in (
        look(month="2020-01"),
        page(look, events_page, month="2020-01"),
        page(look, latency_page, month="2020-01"),
    ):
        assert not app.exception
        assert "No data in January 2020." in texts(app)
    app = look(month="Januember")
    assert "'Januember' is not a month" in texts(app)
    assert app.metric[0].value == "\\$0.0006000"


def test_latency_applies_each_filter_of_its_address(look: Open, write: Write) -> None:
    """The same address means the same events on every page."""
    write(event(1, ttft_s=0.238), event(2, ttft_s=4.0, team="research"))
    app = page(look, latency_page, team="payments")
    assert app.metric[0].value == "0.24 s"
    assert app.metric[3].value == "1"
