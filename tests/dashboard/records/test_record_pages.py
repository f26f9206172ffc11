"""The pages *Refusals*, *Prices*, *Audit* and *Residency*: the figures of their reports, their
filters, and their words without data.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import psycopg
import pytest

from gateway.storage.ledger import rollups
from gateway.storage.postgres.database import Database
from tests.cli.conftest import Cli, applied, cli, cli_at, policy_file
from tests.dashboard.conftest import Open
from tests.dashboard.test_pages import Write, page, texts
from tests.refused import refuse
from tests.storage.factories import event

__all__ = ["applied", "cli", "cli_at", "policy_file"]  # fixtures of the command line
HOUR = datetime(2026, 11, 20, 12, tzinfo=UTC)


def refusals_page() -> None:
    from dashboard.views.records import refusals

    refusals.show()


def prices_page() -> None:
    from dashboard.views.records import prices

    prices.show()


def audit_page() -> None:
    from dashboard.views.records import audit

    audit.show()


def residency_page() -> None:
    from dashboard.views.records import residency

    residency.show()


@pytest.fixture
def refused(write: Write, database: Database) -> None:
    """Two attempts, and eight refused requests of two codes."""
    write(event(1), event(2, team="search", region="us", data_class="internal"))
    rollups.refresh(database)
    for team, code, rules, times in (
        ("payments", "residency_denied", ["class:restricted"], 3),
        ("search", "rate_limited", [], 5),
    ):
        refuse(database, HOUR, team=team, code=code, rules=rules, times=times)


def test_refusals_show_codes_teams_and_remedies(look: Open, refused: None) -> None:
    """The total on the page is that of SQL, also with a filter of the address."""
    app = page(look, refusals_page, month="2026-11")
    assert not app.exception
    assert [metric.value for metric in app.metric][:2] == ["8", "rate\\_limited"]
    by_team, latest = (table.value for table in app.dataframe)
    rows = zip(by_team["Team"], by_team["Code"], by_team["Requests"], strict=True)
    assert [*rows] == [("search", "rate_limited", 5), ("payments", "residency_denied", 3)]
    assert list(latest["Hour"]) == ["2026-11-20T12:00Z"] * 2
    app = page(look, refusals_page, month="2026-11", team="payments")
    assert app.metric[0].value == "3"
    assert list(app.dataframe[0].value["Rules"]) == ["class:restricted"]
    app.selectbox(key="bar_split").set_value("route").run()
    assert app.query_params["by"] == "route"
    assert list(app.dataframe[0].value["Route"]) == ["assistant"]
    app = page(look, refusals_page, **{"from": "2026-11-19", "to": "2026-11-19"})
    assert "No request was refused" in texts(app)


@pytest.mark.parametrize("script", [refusals_page, prices_page, audit_page, residency_page])
def test_an_empty_database_is_explained(look: Open, script: Callable[[], None]) -> None:
    """An empty page looks broken; a demo has no books beside its figures."""
    app = page(look, script)
    assert not app.exception
    assert texts(app)
    app.session_state["data"] = "demo"
    assert not app.run().exception


def test_prices_show_the_rates_in_force_and_those_to_come(look: Open, applied: Cli) -> None:
    """A price without source and date convinces no auditor."""
    applied.ok(
        *("price", "add", "--deployment", "gpt-eu", "--input", "9", "--output", "18"),
        *("--effective-from", "2999-01-01", "--source", "contract 4711", "--reason", "announced"),
    )
    app = page(look, prices_page, deployment="gpt-eu")
    assert not app.exception
    assert app.metric[0].value == "1"
    assert app.metric[2].value.startswith("2999-01-01")
    assert set(app.dataframe[0].value["Deployment"]) == {"gpt-eu"}
    app.button_group(key="prices_state").set_value("Coming").run()
    assert "contract 4711" in str(app.dataframe[0].value["Source"].tolist())
    app = page(look, prices_page)
    assert app.metric[1].value == "1", "qwen-eu was never calibrated"


def test_audit_shows_who_did_what_and_the_state_of_the_chain(
    look: Open, applied: Cli, database_url: str
) -> None:
    """A changed row is the first thing that the page says."""
    app = page(look, audit_page, month="all", action="policy.apply")
    assert not app.exception
    assert "each as it was written" in " ".join(one.value for one in app.success)
    assert set(app.dataframe[0].value["Action"]) == {"policy.apply"}
    with psycopg.connect(database_url) as connection:
        connection.execute("ALTER TABLE tollgate.audit_log DISABLE TRIGGER USER")
        connection.execute("UPDATE tollgate.audit_log SET reason = 'another' WHERE seq = 1")
    app = page(look, audit_page, month="all")
    assert "is not as it was written" in texts(app)


def test_residency_shows_places_refusals_and_the_verdict(
    look: Open, applied: Cli, write: Write, refused: None
) -> None:
    """The verdict is that of `audit residency`: these attempts are of no version that is known."""
    app = page(look, residency_page, month="2026-11")
    assert not app.exception
    assert [metric.value for metric in app.metric] == ["2", "0", "2", "3"]
    sent, denied = (table.value for table in app.dataframe)
    assert dict(zip(sent["Team"], sent["Region"], strict=True)) == {
        "payments": "eu",
        "search": "us",
    }
    assert list(denied["Rules"]) == ["class:restricted"]
    app = page(look, residency_page, month="2026-11", team="payments")
    assert "0 of 1 attempt broke a rule, and 1 cannot be verified" in texts(app)
    assert any("tollgate audit residency --team payments" in code.value for code in app.code)
    ran = applied("audit", "residency", "--team", "payments", "--month", "2026-11")
    assert "1 that cannot be verified" in ran.err
