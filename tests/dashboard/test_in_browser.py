"""The dashboard as a reader sees it: the real Streamlit, a real database, headless Chromium."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from random import Random

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from dashboard.display import money
from dashboard.source import URL_VARIABLE
from gateway import reports
from tests.gateway_process import free_port
from tests.reports.random_events import random_event
from tests.storage.factories import event
from tests.waiting import eventually

BROWSERS = ("chromium", "chromium-browser", "google-chrome")  # as in tests/install_tools.sh
CHROMIUM, DRIVER = (
    next(filter(None, map(shutil.which, BROWSERS)), None),
    shutil.which("chromedriver"),
)
ROOT = Path(__file__).parents[2]
START_S, PAGE_S = 60, 60
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--window-size=1280,1700",
)
SCREENSHOTS = "TOLLGATE_TEST_SCREENSHOTS"  # a folder to keep them in; default: the test's own

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER),
        reason="needs a browser and its driver: bash tests/install_tools.sh",
    ),
]


@pytest.fixture
def address(database_url: str, tmp_path: Path) -> Iterator[str]:
    """The address of a running dashboard."""
    port = free_port()
    log = tmp_path / "dashboard.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "dashboard",
                "--server.headless=true",
                "--server.address=127.0.0.1",
                f"--server.port={port}",
            ],
            cwd=tmp_path,
            env=os.environ | {URL_VARIABLE: database_url, "PYTHONPATH": str(ROOT)},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        eventually(
            lambda: _listens(port) or process.poll() is not None, "the dashboard", within_s=START_S
        )
        assert process.poll() is None, log.read_text()
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture
def browser() -> Iterator[webdriver.Chrome]:
    """Headless Chromium that keeps its console."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.set_page_load_timeout(PAGE_S)
    yield driver
    driver.quit()


def test_the_page_shows_the_figures_of_the_report(
    address: str,
    browser: webdriver.Chrome,
    database_url: str,
    write: Callable[..., None],
    rng: Random,
    tmp_path: Path,
) -> None:
    """From the ledger to the reader's eye: each team's spend on the page is the report's, to the
    nano-dollar.
    """
    write(*(random_event(number, rng) for number in range(60)))
    with reports.open_reports(database_url, scope=reports.WHOLE_ORGANISATION) as finance:
        month = f"{finance.run('months', reports.ask()).records()[0]['month']:%Y-%m}"
        report = finance.run("spend", reports.ask(month=month))
        total = report.total["cost_usd"]
    assert isinstance(total, Decimal)

    browser.get(address)
    WebDriverWait(browser, PAGE_S).until(
        lambda b: len(_cells(b)) >= len(report.rows) and _is_still(b)
    )

    shown = {row["Team"]: row["Cost, USD"] for row in _cells(browser)}
    assert {team: None if cost == "unknown" else Decimal(cost) for team, cost in shown.items()} == {
        row["team"]: row["cost_usd"] for row in report.records()
    }
    cards = browser.find_elements(By.CSS_SELECTOR, "[data-testid=stMetricValue]")
    assert cards[0].text == money(total)
    assert len(browser.find_elements(By.CSS_SELECTOR, "[data-testid=stVegaLiteChart] svg")) == 3
    _keep_screenshot(browser, tmp_path / "spend.png")
    console = browser.get_log("browser")  # type: ignore[no-untyped-call]  # selenium leaves this one untyped
    assert [entry for entry in console if entry["level"] == "SEVERE"] == []


def test_back_shows_the_filters_that_were_left(
    address: str, browser: webdriver.Chrome, write: Callable[..., None]
) -> None:
    """Usability D3: "back" from a receipt showed all attempts; "back" from Requests, Spend under
    its filter.
    """
    write(event(1), event(2, team="research"), event(3, team="research"))
    whole, part = "3 attempts", "2 attempts"

    browser.get(address)
    _until_shown(browser, whole)
    _until_shown(browser, "Open all events")
    next(
        b for b in browser.find_elements(By.TAG_NAME, "button") if "Open all events" in b.text
    ).click()
    _until_shown(browser, "Pick a row to see its receipt")
    browser.get(f"{address}events?team=research")
    _until_shown(browser, part)
    _pick_first_row(browser)
    _until_shown(browser, "Attempt total")
    browser.back()
    _until_shown(browser, part)
    assert "team=research" in browser.current_url
    assert "request=" not in browser.current_url


def _until_shown(browser: webdriver.Chrome, text: str) -> None:
    WebDriverWait(browser, PAGE_S).until(lambda b: text in b.find_element(By.TAG_NAME, "body").text)


def _pick_first_row(browser: webdriver.Chrome) -> None:
    """The grid is drawn on a canvas: its first row's box is below the head, at the left."""
    grid = WebDriverWait(browser, PAGE_S).until(
        lambda b: b.find_elements(By.CSS_SELECTOR, "[data-testid=stDataFrame] canvas")
    )[0]
    WebDriverWait(browser, PAGE_S).until(lambda b: len(_cells(b)) == 2)
    left, top = -grid.size["width"] // 2, -grid.size["height"] // 2
    ActionChains(browser).move_to_element_with_offset(grid, left + 15, top + 50).click().perform()


def _cells(browser: webdriver.Chrome) -> list[dict[str, str]]:
    """The first table's rows.

    It is drawn on a canvas; beside it, for screen readers, stand the exact values.
    """
    tables: list[list[list[str]]] = browser.execute_script(
        "return [...document.querySelectorAll('[data-testid=stDataFrame] table')].map(t =>"
        " [...t.querySelectorAll('tr')].map(r => [...r.children].map(c => c.textContent)))"
    )
    if not tables or len(tables[0]) < 2:
        return []
    heads, *rows = tables[0]
    return [dict(zip(heads, row, strict=True)) for row in rows]


def _is_still(browser: webdriver.Chrome) -> bool:
    charts = browser.find_elements(By.CSS_SELECTOR, "[data-testid=stVegaLiteChart] svg")
    busy = browser.find_elements(
        By.CSS_SELECTOR, "[data-testid=stStatusWidget], [data-testid=stSkeleton]"
    )
    return len(charts) == 3 and not busy


def _keep_screenshot(browser: webdriver.Chrome, default: Path) -> None:
    folder = os.environ.get(SCREENSHOTS)
    browser.save_screenshot(str(Path(folder) / default.name if folder else default))


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
