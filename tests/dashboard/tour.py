"""Click through the dashboard with 3 and with 300 teams, wide, narrow and dark; compare the totals
with SQL, and keep a screenshot of each page.

    python -m tests.dashboard.tour [--out DIR] [--teams 3,300] [--events 60000]

A ledger of its own is made for each size, in a home that is removed afterwards (`--home DIR` keeps
it). It fails on the first figure that differs, and on any error of the browser's console.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from pathlib import Path

import psycopg
from selenium import webdriver
from selenium.webdriver.common.by import By

from dashboard.display import money
from gateway.storage.ledger import rollups
from gateway.storage.postgres import migrations
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.embedded import EmbeddedPostgres
from tests.dashboard.browser import (
    ROOT,
    body_text,
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

PAGES = {
    "overview": "",
    "teams": "teams",
    "models": "models",
    "costs": "costs",
    "budgets": "budgets",
    "forecast": "forecast",
    "self-hosted": "self-hosted",
    "engines": "engines",
    "requests": "events",
    "latency": "latency",
    "quality": "quality",
}
WIDTHS = {"wide": (1280, 1700), "narrow": (420, 2400)}


def main() -> int:
    """Make each ledger, and walk through its pages."""
    parser = argparse.ArgumentParser(prog="python -m tests.dashboard.tour", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("tests/output/tour"))
    parser.add_argument("--teams", default="3,300", help="numbers of teams, separated by commas")
    parser.add_argument("--events", type=int, default=60_000)
    parser.add_argument("--home", type=Path, help="keep the ledgers here, and use them again")
    parser.add_argument("--only", default="", help="only pages with this word in their name")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    for teams in chosen.teams.split(","):
        with ExitStack() as stack:
            home = stack.enter_context(_home(chosen.home, teams))
            url = stack.enter_context(_ledger(home, teams=teams, events=chosen.events))
            address = stack.enter_context(served(url, home))
            _walk(address, url, chosen.out, teams=teams, only=chosen.only)
    print(f"All figures agree. Screenshots: {chosen.out}")
    return 0


@contextmanager
def _home(kept: Path | None, teams: str) -> Iterator[Path]:
    """A home for one ledger. As root, Postgres runs as another user, who must be able to enter."""
    if kept is None:
        with tempfile.TemporaryDirectory(prefix="tollgate-tour-") as made:
            Path(made).chmod(0o711)
            yield Path(made)
        return
    home = kept / teams
    home.mkdir(parents=True, exist_ok=True)
    for folder in (kept, home):
        folder.chmod(0o711)
    yield home


@contextmanager
def _ledger(home: Path, *, teams: str, events: int) -> Iterator[str]:
    """A ledger of one organisation, with a rate of the euro; gives its address while it runs."""
    with EmbeddedPostgres(home) as server:
        url = server.start()
        kept = [name for name in os.environ if not name.startswith("TOLLGATE_")]
        own = {name: os.environ[name] for name in kept}
        variables = own | {"TOLLGATE_HOME": str(home), "TOLLGATE_DATABASE_URL": url}

        def command(*words: str) -> None:
            argv = [sys.executable, "-m", "gateway.main", *words]
            subprocess.run(argv, cwd=ROOT, env=variables, stdout=sys.stderr, check=True)

        database = Database(url)
        is_new = bool(migrations.pending(database))
        if is_new:
            command("db", "upgrade")
            size = ("--months", "3", "--events", str(events), "--teams", teams)
            command("demo-data", *size, "--as-ledger", "--out", str(home / "files"))
            rate = ("--usd-per-unit", "1.08", "--from", "2025-01-01", "--source", "the tour")
            command("currency", "add", "EUR", *rate)
            rollups.refresh(database)
        database.close()
        yield url


def _walk(address: str, url: str, out: Path, *, teams: str, only: str) -> None:
    """Go through the pages of one ledger."""
    for width, size in WIDTHS.items():
        for theme in ("light", "dark") if width == "wide" else ("light",):
            with opened(size) as browser:
                media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
                browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
                for name, path in PAGES.items():
                    if only not in name:
                        continue
                    browser.get(address + path)
                    until_still(browser)
                    shot = out / f"{teams}-{width}-{theme}-{name}.png"
                    _keep(browser, shot)
                    print(shot.name, flush=True)
                    _assert_no_sideways_scroll(browser, shot.name)
                if width == "wide" and theme == "light" and not only:
                    _click_through(browser, address, url, out, teams=teams)
                assert severe(browser) == []


def _keep(browser: webdriver.Chrome, path: Path) -> None:
    """Save the whole page, below the window's edge too."""
    height = browser.execute_script(
        "const m = document.querySelector('[data-testid=stMain]'); return m ? m.scrollHeight : 0"
    )
    width = browser.get_window_size()["width"]
    browser.set_window_size(width, max(900, min(int(height) + 160, 4200)))
    until_still(browser)
    browser.save_screenshot(str(path))


def _assert_no_sideways_scroll(browser: webdriver.Chrome, name: str) -> None:
    """A page that scrolls sideways hides its money."""
    over: int = browser.execute_script(
        "const m = document.querySelector('[data-testid=stMain]');"
        "return m ? m.scrollWidth - m.clientWidth : 0"
    )
    assert over <= 1, f"{name} is {over} pixels too wide"


def _click_through(
    browser: webdriver.Chrome, address: str, url: str, out: Path, *, teams: str
) -> None:
    """From the first page down to single requests; each total is the one of SQL."""
    month = _sql(url, "SELECT to_char(max(posted_period), 'YYYY-MM') FROM finance.usage_events")
    browser.get(address)
    until_still(browser)
    assert f"month={month}" in browser.current_url
    _assert_total(browser, url, {"posted_period": f"{month}-01"})
    browser.get(f"{address}teams?month={month}")
    where = {"posted_period": f"{month}-01"}
    until_still(browser)
    for column, parameter in (
        ("team", "team"),
        ("model", "model"),
        ("project", "project"),
        ("key_id", "key"),
    ):
        wait_for(browser, lambda b: tables(b) and tables(b)[0])
        first = next(iter(tables(browser)[0][0].values()))
        name = tables(browser)[0][0]
        first = next(value for head, value in name.items() if head)
        pick_row(browser)
        wait_for(browser, lambda b, p=parameter: f"{p}=" in b.current_url)
        until_still(browser)
        where[column] = first
        _assert_total(browser, url, where)
        _keep(browser, out / f"{teams}-drill-{parameter}.png")
    click_button(browser, "Requests")
    until_shown(browser, "Pick a row to see its receipt")
    count = _sql(url, *_counted(where))
    assert f"{int(count):,} attempts" in body_text(browser)
    browser.back()
    until_still(browser)
    _assert_total(browser, url, where)
    browser.get(f"{address}teams?month={month}&currency=EUR")
    until_shown(browser, "Spend, EUR")
    until_still(browser)
    _keep(browser, out / f"{teams}-euro.png")


def _assert_total(browser: webdriver.Chrome, url: str, where: Mapping[str, str]) -> None:
    """The first headline is the sum that SQL makes."""
    conditions = " AND ".join(f"{name} = %s" for name in where)
    wanted = Decimal(
        _sql(
            url,
            f"SELECT coalesce(sum(cost_usd), 0) FROM finance.usage_events WHERE {conditions}",
            *where.values(),
        )
    )
    shown = browser.find_elements(By.CSS_SELECTOR, "[data-testid=stMetricValue]")[0].text
    assert shown == money(wanted), (shown, money(wanted), dict(where))


def _counted(where: Mapping[str, str]) -> tuple[str, ...]:
    """The statement that counts events, and its values."""
    conditions = " AND ".join(f"{name} = %s" for name in where)
    return (
        f"SELECT count(*) FROM finance.usage_events WHERE {conditions}",
        *where.values(),
    )


def _sql(url: str, statement: str, *values: str) -> str:
    """The one value of a statement, as text."""
    with psycopg.connect(re.sub(r"^postgresql\+psycopg", "postgresql", url)) as connection:
        row = connection.execute(statement, values).fetchone()  # type: ignore[arg-type]  # a fixed text
    assert row is not None
    return str(row[0])


if __name__ == "__main__":
    sys.exit(main())
