"""A real Streamlit server and headless Chromium, and its view of a page."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from dashboard.source import URL_VARIABLE
from tests.bare_environment import BARE
from tests.deploy.openid_provider import write_secrets
from tests.gateway_process import free_port
from tests.waiting import eventually

BROWSERS = ("chromium", "chromium-browser", "google-chrome")  # as in tests/install_tools.sh
CHROMIUM, DRIVER = (
    next(filter(None, map(shutil.which, BROWSERS)), None),
    shutil.which("chromedriver"),
)
NEEDS_BROWSER = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER),
        reason="needs a browser and its driver: bash tests/install_tools.sh",
    ),
]
ROOT = Path(__file__).parents[2]
START_S, PAGE_S = 300, 60  # a busy machine takes a minute to start one
FLAGS = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu")
WIDE = (1280, 1700)
_ASKED_FOR_SERVER = re.compile(r"^http://[^/]+/[a-z-]+/_stcore/")


@contextmanager
def served(url: str, folder: Path) -> Iterator[str]:
    """Run a dashboard on a database; give its address."""
    port = free_port()
    log = folder / "dashboard.log"
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
            cwd=folder,
            env=os.environ | {URL_VARIABLE: url, "PYTHONPATH": str(ROOT)},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        eventually(
            lambda: listens(port) or process.poll() is not None, "the dashboard", within_s=START_S
        )
        assert process.poll() is None, log.read_text()
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def signing_in(url: str, *, home: Path, folder: Path, provider: str) -> Iterator[tuple[str, int]]:
    """Run `tollgate dashboard` on a database, which people sign in to; give its address and the
    process id of the command. `home` is Tollgate's, `folder` has Streamlit's secrets.
    """
    port = free_port()
    write_secrets(folder, dashboard_port=port, provider=provider)
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway.main", "dashboard"],
        env={
            **BARE,
            "HOME": str(folder),
            "TOLLGATE_HOME": str(home),
            "TOLLGATE_DATABASE_URL": url,
            "TOLLGATE_DASHBOARD_PORT": str(port),
        },
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: listens(port), "the dashboard", within_s=START_S)
        yield f"http://127.0.0.1:{port}/", process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@contextmanager
def opened(size: tuple[int, int] = WIDE, *, language: str = "en-US") -> Iterator[webdriver.Chrome]:
    """Open headless Chromium that keeps its console."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--window-size={size[0]},{size[1]}", f"--lang={language}"):
        options.add_argument(flag)
    options.add_experimental_option("prefs", {"intl.accept_languages": language})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.set_page_load_timeout(PAGE_S)
    try:
        yield driver
    finally:
        driver.quit()


def wait_for(browser: webdriver.Chrome, is_shown: Callable[[webdriver.Chrome], object]) -> None:
    """Wait until a condition holds; the page may be drawn again meanwhile."""
    waiting = WebDriverWait(browser, PAGE_S, ignored_exceptions=(StaleElementReferenceException,))
    waiting.until(is_shown)


def until_shown(browser: webdriver.Chrome, text: str) -> None:
    """Wait until a text stands on the page."""
    wait_for(browser, lambda b: text in body_text(b))


def until_still(browser: webdriver.Chrome) -> None:
    """Wait until the page's script has ended and nothing is loading."""
    wait_for(browser, lambda b: is_still(b) and body_text(b))


def body_text(browser: webdriver.Chrome) -> str:
    """All text of the page."""
    return browser.find_element(By.TAG_NAME, "body").text


def is_still(browser: webdriver.Chrome) -> bool:
    """True if the page's script has ended and nothing is loading."""
    state: str = browser.execute_script(
        "const app = document.querySelector('[data-testid=stApp]');"
        "return app ? app.getAttribute('data-test-script-state') : ''"
    )
    busy = browser.find_elements(
        By.CSS_SELECTOR, "[data-testid=stStatusWidget], [data-testid=stSkeleton]"
    )
    return state == "notRunning" and not busy


def tables(browser: webdriver.Chrome) -> list[list[dict[str, str]]]:
    """The rows of each table. It is drawn on a canvas; beside it, for screen readers, stand the
    exact values.
    """
    found: Sequence[Sequence[Sequence[str]]] = browser.execute_script(
        "return [...document.querySelectorAll('[data-testid=stDataFrame] table')].map(t =>"
        " [...t.querySelectorAll('tr')].map(r => [...r.children].map(c => c.textContent)))"
    )
    return [
        [dict(zip(table[0], row, strict=True)) for row in table[1:]] if len(table) > 1 else []
        for table in found
    ]


def pick_row(browser: webdriver.Chrome, *, table: int = 0, row: int = 0) -> None:
    """Pick a row of a table: its box is at the left, below the head. A page that is still drawn
    would move it away, so it is pressed once it has stood at one place twice.
    """
    until_still(browser)
    places: list[object] = []

    def is_at_rest(b: webdriver.Chrome) -> bool:
        seen = b.find_elements(By.CSS_SELECTOR, "[data-testid=stDataFrame] canvas")
        places.append(seen[2 * table].rect if len(seen) > 2 * table else None)
        return places[-1] is not None and places[-2:-1] == places[-1:]

    wait_for(browser, is_at_rest)
    grid = browser.find_elements(By.CSS_SELECTOR, "[data-testid=stDataFrame] canvas")[2 * table]
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", grid)
    left, top = -grid.size["width"] // 2, -grid.size["height"] // 2
    move = ActionChains(browser).move_to_element_with_offset(grid, left + 15, top + 50 + 35 * row)
    move.click().perform()


def click_button(browser: webdriver.Chrome, text: str) -> None:
    """Press the button that has a text, as soon as it is there; the page may still be drawn."""

    def is_pressed(b: webdriver.Chrome) -> bool:
        found = _buttons(b, text)
        if found:
            b.execute_script("arguments[0].scrollIntoView({block: 'center'})", found[0])
            found[0].click()
        return bool(found)

    wait_for(browser, is_pressed)


def _buttons(browser: webdriver.Chrome, text: str) -> list[webdriver.remote.webelement.WebElement]:
    """The buttons that have a text."""
    return [b for b in browser.find_elements(By.TAG_NAME, "button") if text in b.text]


def severe(browser: webdriver.Chrome) -> list[object]:
    """The errors of the browser's console. At `/teams` Streamlit first asks `/teams/_stcore` for
    its server, to find out where the app's address begins; so it does at each page.
    """
    console = browser.get_log("browser")  # type: ignore[no-untyped-call]  # selenium leaves this one untyped
    errors = [entry for entry in console if entry["level"] == "SEVERE"]
    return [entry for entry in errors if not _ASKED_FOR_SERVER.search(entry["message"])]


def listens(port: int) -> bool:
    """True if something listens on a port of this machine."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
