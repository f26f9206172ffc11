"""The dashboard as a reader sees it: the real Streamlit, a real database, headless Chromium."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from random import Random

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from dashboard.display import money
from gateway.reports.question import ask
from gateway.reports.reports import open_reports
from gateway.reports.scope import WHOLE_ORGANISATION
from tests.dashboard.browser import (
    NEEDS_BROWSER,
    click_button,
    opened,
    pick_row,
    served,
    severe,
    tables,
    until_shown,
    until_still,
    wait_for,
)
from tests.reports.random_events import random_event
from tests.storage.factories import event

SCREENSHOTS = "TOLLGATE_TEST_SCREENSHOTS"  # a folder to keep them in; default: the test's own

pytestmark = NEEDS_BROWSER


@pytest.fixture
def address(database_url: str, tmp_path: Path) -> Iterator[str]:
    """The address of a running dashboard."""
    with served(database_url, tmp_path) as found:
        yield found


@pytest.fixture
def browser() -> Iterator[webdriver.Chrome]:
    """Headless Chromium that keeps its console."""
    with opened() as driver:
        yield driver


def test_the_pages_show_the_figures_of_the_report(
    address: str,
    browser: webdriver.Chrome,
    database_url: str,
    write: Callable[..., None],
    rng: Random,
    tmp_path: Path,
) -> None:
    """From the ledger to the reader's eye: each team's spend on the page is the report's, to the
    nano-dollar; the total is on both pages.
    """
    write(*(random_event(number, rng) for number in range(60)))
    with open_reports(database_url, scope=WHOLE_ORGANISATION) as finance:
        month = f"{finance.run('months', ask()).records()[0]['month']:%Y-%m}"
        report = finance.run("spend", ask(month=month))
        total = report.total["total_usd"]
    assert isinstance(total, Decimal)

    browser.get(address)
    until_still(browser)
    assert _headline(browser) == money(total)
    assert f"month={month}" in browser.current_url
    _keep_screenshot(browser, tmp_path / "overview.png")

    browser.get(f"{address}teams?month={month}")
    until_still(browser)
    assert _headline(browser) == money(total)
    wait_for(browser, lambda b: tables(b) and tables(b)[0])  # it is drawn after the script's end
    (table,) = tables(browser)
    shown = {row["Team"]: row["Total, USD"] for row in table}
    wanted = {row["team"]: row["total_usd"] for row in report.records()} | {"Total": total}
    assert {team: None if cost == "unknown" else Decimal(cost) for team, cost in shown.items()} == (
        wanted
    )
    assert len(browser.find_elements(By.CSS_SELECTOR, "[data-testid=stVegaLiteChart] svg")) == 1
    assert severe(browser) == []


def test_back_shows_the_filters_that_were_left(
    address: str, browser: webdriver.Chrome, write: Callable[..., None]
) -> None:
    """Usability D3: "back" from a receipt showed all attempts; "back" from Requests, Spend under
    its filter. And a row of a table leads one level down, to an address of its own.
    """
    write(event(1), event(2, team="research"), event(3, team="research"))
    part = "2 attempts"

    browser.get(f"{address}teams?month=2026-11")
    until_still(browser)
    pick_row(browser)
    wait_for(browser, lambda b: "team=research" in b.current_url)
    until_shown(browser, "Share of all spending")
    click_button(browser, "Requests")
    until_shown(browser, part)
    assert "team=research" in browser.current_url
    wait_for(browser, lambda b: tables(b) and len(tables(b)[0]) == 2)
    pick_row(browser)
    until_shown(browser, "Attempt total")
    until_still(browser)
    browser.back()
    until_shown(browser, part)
    assert "team=research" in browser.current_url
    assert "request=" not in browser.current_url


def _headline(browser: webdriver.Chrome) -> str:
    """The first figure of the page."""
    return browser.find_elements(By.CSS_SELECTOR, "[data-testid=stMetricValue]")[0].text


def _keep_screenshot(browser: webdriver.Chrome, default: Path) -> None:
    """Save a picture of the window."""
    folder = os.environ.get(SCREENSHOTS)
    browser.save_screenshot(str(Path(folder) / default.name if folder else default))
