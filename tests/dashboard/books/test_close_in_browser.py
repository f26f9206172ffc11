"""The whole way of a close in a browser: the command starts the app, a person signs in, clicks
twice, and the month is closed once; the app never had the secret of finance's login.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

import psycopg
import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from gateway.storage.ledger import rollups
from gateway.storage.postgres.database import Database
from tests.cli.conftest import Cli, cli, cli_at
from tests.dashboard.books.test_close_page import ROLES
from tests.dashboard.browser import (
    CHROMIUM,
    DRIVER,
    signing_in,
    until_shown,
    until_still,
    wait_for,
)
from tests.dashboard.test_in_browser import _keep_screenshot, browser
from tests.dashboard.test_pages import Write
from tests.deploy.test_sign_in_through_a_provider import provider
from tests.storage.factories import event

__all__ = ["browser", "cli", "cli_at", "provider"]  # fixtures of other tests
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER and Path("/proc/self/mem").exists()),
        reason="needs a browser, its driver and Linux: bash tests/install_tools.sh",
    ),
]
OCTOBER = datetime(2026, 10, 5, 12, tzinfo=UTC)


@pytest.fixture
def running(
    cli: Cli, provider: str, database_url: str, tmp_path: Path
) -> Iterator[tuple[str, int, str]]:
    """The address of a dashboard that people sign in to, its process and finance's password."""
    document = tmp_path / "policy.yaml"
    document.write_text(ROLES)
    cli.ok("policy", "apply", str(document), "--yes")
    password = urlsplit(cli.ok("db", "url", "--as", "finance").strip()).password
    assert password
    home = cli.toolbox.options.home
    with signing_in(database_url, home=home, folder=tmp_path, provider=provider) as (address, pid):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        yield address, int(children[0]), unquote(password)


def test_a_person_closes_a_month_by_a_double_click(
    running: tuple[str, int, str],
    browser: webdriver.Chrome,
    write: Write,
    database: Database,
    database_url: str,
    tmp_path: Path,
) -> None:
    """From the sign-in to the closed month, once, in the person's name; then reopened by a reason.

    A look into the memory of the app finds the reader's password and not that of finance.
    """
    address, app, password = running
    write(event(1, at=OCTOBER), event(2, at=OCTOBER, team="search"))
    rollups.refresh(database)
    browser.set_window_size(1280, 700)
    browser.get(f"{address}close?month=2026-10")
    _button(browser, "Sign in").click()
    until_shown(browser, "Open checks")  # on the page that was asked for, with its month
    assert browser.current_url == f"{address}close?month=2026-10"
    for number in range(len(_fields(browser, "Or accept it, because"))):
        _fields(browser, "Or accept it, because")[number].send_keys("no bill", Keys.ENTER)
        until_still(browser)  # each answer draws the page again
    wait_for(browser, lambda b: _button(b, "Close October 2026").is_enabled())
    _keep_screenshot(browser, tmp_path / "close-checks.png")
    _button(browser, "Close October 2026").click()
    yes = _button(browser, "Yes: close October 2026")
    assert _is_in_sight(browser, yes), "the question stood a screen above its button"
    _keep_screenshot(browser, tmp_path / "close-confirm.png")
    ActionChains(browser).double_click(yes).perform()
    until_shown(browser, "Close October 2026: done.")
    until_shown(browser, "Closed versions")
    until_still(browser)
    done = browser.find_element(By.CSS_SELECTOR, "[role=dialog] [data-testid=stAlert]")
    assert _is_in_sight(browser, done), "the result stood a screen above its button"
    _keep_screenshot(browser, tmp_path / "close-done.png")
    with psycopg.connect(database_url) as connection:
        rows = connection.execute(
            "SELECT version, operator, events FROM finance.month_closes"
        ).fetchall()
    assert rows == [(1, "ada@example.org", 2)]
    environment = Path(f"/proc/{app}/environ").read_bytes()
    assert password.encode() not in environment
    assert b"TOLLGATE_FINANCE" not in environment
    assert not _memory_has(app, password.encode()), "the app has read finance's password"
    assert _memory_has(app, b"TOLLGATE_REPORTS_URL"), "the search looks at the right memory"


def _button(browser: webdriver.Chrome, text: str) -> WebElement:
    found: list[WebElement] = []

    def is_there(b: webdriver.Chrome) -> bool:
        found[:] = [
            one for one in b.find_elements(By.TAG_NAME, "button") if one.text.endswith(text)
        ]
        return bool(found)

    wait_for(browser, is_there)
    return found[0]


def _is_in_sight(browser: webdriver.Chrome, shown: WebElement) -> bool:
    """True if an element is within the window, without scrolling."""
    until_still(browser)
    box, height = shown.rect, browser.execute_script("return window.innerHeight")
    top = browser.execute_script("return arguments[0].getBoundingClientRect().top", shown)
    return bool(0 <= top <= height - box["height"])


def _fields(browser: webdriver.Chrome, label: str) -> list[WebElement]:
    return browser.find_elements(By.CSS_SELECTOR, f"input[aria-label='{label}']")


def _memory_has(pid: int, needle: bytes) -> bool:
    """Search the readable memory of a process."""
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, rights, *_ = line.split()
            if not rights.startswith("rw"):
                continue
            begin, end = (int(word, 16) for word in span.split("-"))
            try:
                memory.seek(begin)
                if needle in memory.read(end - begin):
                    return True
            except OSError:  # of a guard page
                continue
    return False
