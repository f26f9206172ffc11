"""The ways through the dashboard: each page once, the way down to single requests, and the menu of
a team lead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.common.by import By

from dashboard.display import count, money
from tests.dashboard.browser import (
    body_text,
    click_button,
    opened,
    pick_row,
    severe,
    tables,
    until_shown,
    until_still,
    wait_for,
)
from tests.dashboard.tour.organisation import Organisation

# The pages that finance sees, by the name of the picture. The bill of the running month is not
# there yet, so its page shows the month before.
PAGES = {
    "overview": "",
    "teams": "teams",
    "teams-changed": "teams?look=What changed",
    "unit-costs": "teams?look=Unit costs",
    "models": "models",
    "places": "models?look=Self-hosted and external",
    "tokens": "models?look=Tokens by kind",
    "token-costs": "models?look=Cost of tokens",
    "caches": "models?look=Prompt caches",
    "routing": "models?look=Routing",
    "budgets": "budgets",
    "forecast": "budgets?look=Forecast",
    "self-hosted": "self-hosted?month=all",
    "requests": "events",
    "latency": "latency",
    "quality": "quality",
    "refusals": "refusals",
    "residency": "residency",
    "close": "close",
    "prices": "prices",
    "audit": "audit",
}
WIDTHS = {"wide": (1280, 1700), "narrow": (420, 2400)}
LOOKS = (("wide", "light"), ("wide", "dark"), ("narrow", "light"))
POSTED = "posted_period = %s::date"
# The first figures of pages, by the label on the page, as SQL makes them from a month's events.
FIGURES = (
    ("", "Spend, USD", "coalesce(sum(cost_usd), 0)"),
    ("teams", "Spend, USD", "coalesce(sum(cost_usd), 0)"),
    ("models", "Spend, USD", "coalesce(sum(cost_usd), 0)"),
    ("teams", "Attempts", "count(*)"),
    ("latency", "Measured", "count(ttft_s)"),
    ("quality", "Open holds", "count(*) FILTER (WHERE cost_usd IS NULL)"),
)
# The texts of the page, each by itself, without the names of icons, which are texts too.
TEXTS = """
return [...document.querySelectorAll('body *:not(script):not(style)')]
    .filter(e => !e.children.length && !getComputedStyle(e).fontFamily.includes('Material'))
    .map(e => e.textContent.trim()).filter(t => t);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tour:
    """A running dashboard over one ledger, and the folder of its pictures."""

    ledger: Organisation
    address: str
    out: Path
    name: str

    def shot(self, *words: str) -> Path:
        """The file of one picture."""
        return self.out / f"{'-'.join((self.name, *words))}.png"


def show_to_finance(tour: Tour, *, only: str) -> None:
    """Keep a picture of each page in each look, and compare the first figures with SQL."""
    for width, theme in LOOKS:
        with opened(WIDTHS[width]) as browser:
            media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
            _sign_in(browser, tour.address)
            for name, path in PAGES.items():
                if only not in name:
                    continue
                browser.get(tour.address + path)
                until_still(browser)
                _keep(browser, tour.shot(width, theme, name))
                _assert_no_sideways_scroll(browser, name)
            if not only:
                _assert_figures(browser, tour, team=None)
            _assert_no_errors(browser)


def click_down(tour: Tour) -> None:
    """From the teams down to single requests and back; each total is the one of SQL."""
    month = tour.ledger.month
    with opened() as browser:
        _sign_in(browser, tour.address)
        assert f"month={month}" in browser.current_url
        browser.get(f"{tour.address}teams?month={month}")
        until_still(browser)
        where = {POSTED: f"{month}-01"}
        for head, parameter, column in (
            ("Team", "team", "team"),
            ("Model", "model", "model"),
            ("Project", "project", "project"),
            ("API key", "key", "key_id"),
        ):
            wait_for(browser, lambda b: tables(b) and tables(b)[0])
            row = tables(browser)[0][0]
            pick_row(browser)
            wait_for(browser, _names(parameter))
            until_still(browser)
            where[f"{column} = %s"] = next(v for k, v in row.items() if k in (head, "Key"))
            _assert_spend(browser, tour, where)
            _keep(browser, tour.shot("drill", parameter))
        click_button(browser, "Requests")
        until_shown(browser, "Pick a row to see its receipt")
        attempts = int(_figure(tour, "count(*)", where))
        assert f"{attempts:,} attempts" in body_text(browser)
        browser.back()
        until_still(browser)
        _assert_spend(browser, tour, where)
        browser.get(f"{tour.address}teams?month={month}&currency=EUR")
        until_shown(browser, "Spend, EUR")
        until_still(browser)
        _keep(browser, tour.shot("euro"))
        _open_from_menu(browser, "Models and providers")
        until_shown(browser, "Spend, EUR")
        assert f"month={month}" in browser.current_url
        _assert_no_errors(browser)


def show_to_lead(tour: Tour) -> None:
    """Open each page of a team lead's menu by a click: own totals, and no name of another team."""
    own = tour.ledger.team
    others = [name for name in tour.ledger.teams if name not in own]  # nor a part of the own name
    with opened() as browser:
        _sign_in(browser, tour.address)
        until_shown(browser, "My team")
        for page in _menu(browser):
            _open_from_menu(browser, page)
            until_still(browser)
            texts = browser.execute_script(TEXTS)
            seen = [name for name in others if _is_named(name, texts)]
            assert not seen, f"{page} shows {seen}"
            _keep(browser, tour.shot("lead", page.lower().replace(" ", "-")))
        _assert_figures(browser, tour, team=own)
        _assert_own_page(browser, tour)
        _assert_no_errors(browser)


def _names(parameter: str) -> Callable[[webdriver.Chrome], bool]:
    """A condition that holds if the address has a parameter."""
    return lambda browser: f"{parameter}=" in browser.current_url


def _has_title(title: str) -> Callable[[webdriver.Chrome], bool]:
    """A condition that holds if the page has a title."""
    return lambda browser: title in [h.text for h in browser.find_elements(By.TAG_NAME, "h1")]


def _is_named(team: str, texts: Sequence[str]) -> bool:
    """True if texts have a team's name: as a text of its own, since "search" is a word too, or
    anywhere if the name is no common word.
    """
    return team in texts or ("-" in team and any(team in text for text in texts))


def _sign_in(browser: webdriver.Chrome, address: str) -> None:
    """Sign in by the button, as whoever the provider names."""
    browser.get(address)
    click_button(browser, "Sign in")
    wait_for(browser, _has_title("Overview"))  # on a narrow screen the menu is folded away
    until_still(browser)


def _menu(browser: webdriver.Chrome) -> Sequence[str]:
    """The names of the pages in the menu."""
    links = browser.find_elements(By.CSS_SELECTOR, "[data-testid=stSidebarNavLink]")
    return [link.text.splitlines()[-1] for link in links]


def _open_from_menu(browser: webdriver.Chrome, page: str) -> None:
    """Click a page of the menu, and wait for its title."""
    links = browser.find_elements(By.CSS_SELECTOR, "[data-testid=stSidebarNavLink]")
    next(link for link in links if link.text.splitlines()[-1] == page).click()
    wait_for(browser, _has_title(page))
    until_still(browser)


def _keep(browser: webdriver.Chrome, path: Path) -> None:
    """Save the whole page, below the window's edge too."""
    size = browser.get_window_size()
    height = browser.execute_script(
        "const m = document.querySelector('[data-testid=stMain]'); return m ? m.scrollHeight : 0"
    )
    browser.set_window_size(size["width"], max(900, min(int(height) + 160, 4200)))
    until_still(browser)
    browser.save_screenshot(str(path))
    browser.set_window_size(size["width"], size["height"])
    print(path.name, flush=True)


def _assert_no_sideways_scroll(browser: webdriver.Chrome, name: str) -> None:
    """A page that scrolls sideways hides its money."""
    over: int = browser.execute_script(
        "const m = document.querySelector('[data-testid=stMain]');"
        "return m ? m.scrollWidth - m.clientWidth : 0"
    )
    assert over <= 1, f"{name} is {over} pixels too wide"


def _assert_no_errors(browser: webdriver.Chrome) -> None:
    """The console has no errors."""
    errors = severe(browser)
    assert errors == [], errors


def _assert_figures(browser: webdriver.Chrome, tour: Tour, *, team: str | None) -> None:
    """The first figures of the pages are those that SQL makes, for one team or for all."""
    month = tour.ledger.month
    where = {POSTED: f"{month}-01"} | ({} if team is None else {"team = %s": team})
    for path, label, expression in FIGURES:
        browser.get(f"{tour.address}{path}?month={month}")
        until_still(browser)
        found = _figure(tour, expression, where)
        wanted = money(Decimal(found)) if "USD" in label else count(int(found))
        shown = _metrics(browser)
        assert shown.get(label) == wanted, (path, label, wanted, shown)
    browser.get(f"{tour.address}events?month={month}")
    until_shown(browser, "Pick a row to see its receipt")
    attempts = int(_figure(tour, "count(*)", where))
    assert f"{attempts:,} attempts" in body_text(browser)


def _assert_own_page(browser: webdriver.Chrome, tour: Tour) -> None:
    """*My team* shows the running month of the team."""
    browser.get(f"{tour.address}my-team")
    until_shown(browser, "Spent this month")
    until_still(browser)
    since = "date_trunc('month', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC'"
    own = {f"occurred_at >= {since} AND team = %s": tour.ledger.team}
    wanted = money(Decimal(_figure(tour, "coalesce(sum(cost_usd), 0)", own)))
    assert _metrics(browser)["Spent this month"] == wanted


def _assert_spend(browser: webdriver.Chrome, tour: Tour, where: Mapping[str, str]) -> None:
    """The spending on the page is the sum that SQL makes."""
    wanted = money(Decimal(_figure(tour, "coalesce(sum(cost_usd), 0)", where)))
    shown = _metrics(browser)["Spend, USD"]
    assert shown == wanted, (shown, wanted, dict(where))


def _metrics(browser: webdriver.Chrome) -> Mapping[str, str]:
    """The cards of the page: their values by label."""
    found: Sequence[Sequence[str]] = browser.execute_script(
        "return [...document.querySelectorAll('[data-testid=stMetric]')].map(m => ["
        "m.querySelector('[data-testid=stMetricLabel]').innerText.trim(),"
        "m.querySelector('[data-testid=stMetricValue]').innerText.trim()])"
    )
    return {label.splitlines()[0]: value for label, value in found}


def _figure(tour: Tour, expression: str, where: Mapping[str, str]) -> str:
    """One figure of the events that meet conditions."""
    statement = f"SELECT {expression} FROM finance.usage_events WHERE {' AND '.join(where)}"
    return tour.ledger.sql(statement, *where.values())
