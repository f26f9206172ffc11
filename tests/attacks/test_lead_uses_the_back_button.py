"""In a shared browser the next person, of another team, does not see the pages of the last one.

Found by an attacker who played a hostile team lead in a real browser, on 2026-11-27.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver

from gateway.storage.postgres.database import Database
from tests.cli.conftest import Cli, cli, cli_at
from tests.dashboard.browser import (
    NEEDS_BROWSER,
    click_button,
    opened,
    signing_in,
    tables,
    until_shown,
    until_still,
    wait_for,
)
from tests.dashboard.conftest import write
from tests.dashboard.test_dashboard_roles import ROLES
from tests.dashboard.test_pages import Write
from tests.deploy.openid_provider import SignInServer, sign_in_server
from tests.policy.documents import EXAMPLE
from tests.storage.factories import event

__all__ = ["cli", "cli_at", "write"]  # fixtures of other tests
pytestmark = NEEDS_BROWSER


@pytest.fixture
def provider() -> Iterator[SignInServer]:
    """A provider; the next person has its groups."""
    with sign_in_server() as server:
        yield server


def test_the_back_button_shows_no_page_of_the_person_before(
    cli: Cli,
    provider: SignInServer,
    database: Database,
    database_url: str,
    tmp_path: Path,
    write: Write,
) -> None:
    """The browser kept finance's page as it was left, and showed it to the lead for as long as the
    lead looked at it.
    """
    document = tmp_path / "policy.yaml"
    document.write_text(EXAMPLE + ROLES)
    cli.ok("policy", "apply", str(document), "--yes")
    write(event(1), event(2, team="search"))
    home = cli.toolbox.options.home
    with (
        signing_in(database_url, home=home, folder=tmp_path, provider=provider.address) as (at, _),
        opened() as browser,
    ):
        provider.groups = ("fin",)
        _sign_in(browser, at)
        asked = f"{at}teams?month=2026-11"
        browser.get(asked)
        until_still(browser)
        assert _teams(browser) == ["payments", "search", "Total"]
        browser.get(f"{at}quality?month=2026-11")
        until_still(browser)
        click_button(browser, "Sign out")
        until_shown(browser, "Sign in to see")
        provider.groups = ("pay",)
        _sign_in(browser, at)
        for _ in range(9):
            browser.back()
            until_still(browser)
            if browser.current_url == asked:
                break
        assert browser.current_url == asked
        assert _teams(browser) == ["payments", "Total"]


def _sign_in(browser: webdriver.Chrome, address: str) -> None:
    """Sign in at the first page."""
    browser.get(address)
    click_button(browser, "Sign in")
    until_shown(browser, "Sign out")
    until_still(browser)


def _teams(browser: webdriver.Chrome) -> list[str]:
    """Return the first column of the page's first table."""
    wait_for(browser, tables)  # a canvas gets its exact values after the page stands still
    return [row["Team"] for row in tables(browser)[0]]
