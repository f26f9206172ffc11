"""A signed-in person sees the rows of the own role, on every page and out of every cache."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

import dashboard
from dashboard import sign_in
from dashboard.access import LONGEST_SIGN_IN_S, URL_VARIABLE
from gateway.domain.policy.allocation import allocation_of
from gateway.domain.routing.refusal_count_key import RefusalCountKey
from gateway.storage.budgets.refusals import RefusalStore
from gateway.storage.policy.keys import KeyStore
from gateway.storage.policy.policies import PolicyStore
from gateway.storage.postgres.database import Database
from gateway.wire.parsed_policy import parse
from tests.dashboard.conftest import APP, TIMEOUT_S
from tests.dashboard.test_pages import texts
from tests.policy.documents import EXAMPLE, changed
from tests.storage.factories import NOON, event, key, request_id

ROLES = "dashboard: {finance: [fin], auditors: [aud], teams: {payments: [pay], search: [sea]}}\n"
LIMITED = changed(
    "data_class: confidential, routes: [assistant]}",
    "data_class: confidential, routes: [assistant], limits: {requests_per_minute: 61}}",
)
PATHS = (
    "",
    "teams",
    "models",
    "budgets",
    "latency",
    "quality",
    "events",
    "receipt",
    "refusals",
    "prices",
    "my-team",
)
Enter = Callable[..., AppTest]
Write = Callable[..., None]


def applied(database: Database, text: str) -> None:
    """Make a document the policy in force, as an apply does."""
    policy = parse(text).policy
    PolicyStore(database).apply(
        text,
        sha256=str(len(text)),
        author="ada",
        message="",
        is_demo=False,
        expected_version=None,
        budgets=policy.budgets,
        allocation=allocation_of(policy),
        limits={team.name: team.limits for team in policy.teams.values()},
    )


@pytest.fixture
def enter(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Enter:
    """Open the dashboard as a person with claims; the caches of earlier persons stay."""
    monkeypatch.setenv(URL_VARIABLE, database_url)
    monkeypatch.setenv(sign_in.VARIABLE, "required")
    st.cache_data.clear()

    def opened(age_s: float = 0, **claims: Any) -> AppTest:
        app = AppTest.from_file(str(APP), default_timeout=TIMEOUT_S)
        known = {"is_logged_in": True, "iat": time.time() - age_s, "email": "ada@example.org"}
        app.user = known | claims
        return app.run()

    return opened


def shown(app: AppTest) -> str:
    """Return everything that a page shows: texts, tables, charts, and the options of pickers."""
    assert not app.exception, app.exception
    tables = [frame.value.to_csv() for frame in app.dataframe]
    charts = [chart.proto.spec + str(chart.proto.datasets) for chart in app.get("vega_lite_chart")]
    options = [str(box.options) for box in app.selectbox]
    return "\n".join([texts(app), *tables, *charts, *options])


def has_two_teams(write: Write, database: Database) -> None:
    """Write the events of two teams, and the policy with their roles."""
    write(
        event(1, end_user="u-own"),
        event(2, team="search", end_user="u-foreign", model="m-foreign"),
    )
    applied(database, EXAMPLE + ROLES)


def test_a_team_lead_sees_the_own_team_alone(
    enter: Enter, write: Write, database: Database
) -> None:
    """The promise of the page: a team sees itself."""
    has_two_teams(write, database)
    app = enter(groups=["pay"])
    assert "search" not in shown(app)
    menu = {page["url_pathname"] for page in app._registered_pages.values()}
    assert not {"engines", "self-hosted"} & menu
    app = _opened(app, "my-team")
    assert app.title[0].value == "My team"
    assert "search" not in shown(app)


def test_no_cache_shows_one_persons_figures_to_another(
    enter: Enter, write: Write, database: Database
) -> None:
    """The process serves all people; figures kept for finance must not reach a team."""
    has_two_teams(write, database)
    for claims, sees in (
        ({"groups": ["fin"]}, ("payments", "search")),
        ({"groups": ["pay"]}, ("payments",)),
        ({"groups": ["sea"]}, ("search",)),
        ({"groups": ["aud"]}, ("payments", "search")),
        ({"groups": ["pay", "sea"]}, ("payments", "search")),
        ({"groups": ["pay"]}, ("payments",)),
    ):
        page = shown(enter(**claims))
        assert {team for team in ("payments", "search") if team in page} == set(sees), claims


def _opened(app: AppTest, path: str) -> AppTest:
    """Open a page of the menu by its address; the first page has none."""
    places = {page["url_pathname"]: place for place, page in app._registered_pages.items()}
    app._page_hash = places.get(path, places.get("", ""))
    return app.run()


@pytest.mark.parametrize(
    "claims",
    [
        {},
        {"groups": []},
        {"groups": ["other"]},
        {"groups": {"fin": True}},
        {"groups": 7},
        {"roles": ["fin"]},
    ],
)
def test_without_a_role_there_is_no_page(
    enter: Enter, write: Write, database: Database, claims: dict[str, Any]
) -> None:
    """The provider may admit the whole company."""
    has_two_teams(write, database)
    app = enter(**claims)
    seen = shown(app)
    assert "No page for you yet" in seen
    assert "ada" in seen
    assert "payments" not in seen
    assert (list(app.metric), list(app.dataframe)) == ([], [])


def test_a_policy_without_roles_shows_no_page(
    enter: Enter, write: Write, database: Database
) -> None:
    """Before roles are declared, signed-in people must not see everything."""
    write(event(1))
    assert "No page for you yet" in shown(enter(groups=["fin"]))
    applied(database, EXAMPLE)
    st.cache_data.clear()
    assert "No page for you yet" in shown(enter(groups=["fin"]))


def test_an_old_sign_in_has_to_be_repeated(enter: Enter, write: Write, database: Database) -> None:
    """Streamlit's cookie lasts for a month, and with it the groups that it holds."""
    has_two_teams(write, database)
    app = enter(groups=["fin"], age_s=LONGEST_SIGN_IN_S + 1)
    assert [button.label for button in app.button] == ["Sign in"]
    assert "payments" not in shown(app)


def test_my_team_shows_keys_limits_budgets_and_errors(
    enter: Enter, write: Write, database: Database
) -> None:
    """A developer's questions, in one page."""
    now = time.time()
    applied(database, LIMITED + ROLES)
    keys = KeyStore(database)
    keys.create(key("k123456789"), created_by="ada")
    keys.create(key("kforeign00", team="search"), created_by="ada")
    at = _moment(now - 60)
    write(event(1, at=at), event(2, at=at, outcome="upstream_error", http_status=500))
    write(event(3, at=at, team="search", outcome="upstream_error", model="foreign-model"))
    refused: dict[str, Any] = {
        "hour": at.replace(minute=0, second=0, microsecond=0),
        "route": "assistant",
        "data_class": "internal",
        "code": "rate_limited",
        "rules": (),
    }
    counts = {"payments": 5, "search": 7_777_777}
    RefusalStore(database).write(
        request_id(9), {RefusalCountKey(team=team, **refused): n for team, n in counts.items()}
    )
    seen = shown(_opened(enter(groups=["pay"]), "my-team"))
    for word in ("tg_k123456789_…", "live", "61", "upstream_error", "rate_limited", "\\$0.001200"):
        assert word in seen, word
    for word in ("kforeign00", "foreign-model", "7777777", "7,777,777"):  # no digits of an id
        assert word not in seen, word


def test_two_pages_compare_the_same_days(enter: Enter, write: Write, database: Database) -> None:
    """My team compared this day too, and the overview did not: two answers to one question."""
    applied(database, EXAMPLE + ROLES)
    now = datetime.now(UTC)
    write(
        *(
            event(back, at=now - timedelta(days=back), cost_nusd=10**9 * (1 + back % 9))
            for back in range(70)
        )
    )
    changes = []
    for path, label in (("", "Spend, USD"), ("my-team", "Spent this month")):
        app = _opened(enter(groups=["pay"]), path)
        (card,) = [one for one in app.metric if one.label == label]
        changes.append(card.delta)
    assert changes[0] == changes[1]
    assert changes[0] or now.day == 1


def test_a_person_of_two_teams_chooses_one(enter: Enter, write: Write, database: Database) -> None:
    """Each team has its own keys and budgets."""
    has_two_teams(write, database)
    app = _opened(enter(groups=["pay", "sea"]), "my-team")
    (picker,) = [box for box in app.selectbox if box.label == "Team"]
    assert picker.options == ["payments", "search"]
    app = picker.set_value("search").run()
    assert app.query_params["my_team"] == "search"
    assert not app.exception


def test_no_address_leads_to_a_foreign_row(enter: Enter, write: Write, database: Database) -> None:
    """A link that a colleague of another team sent, or one typed by hand."""
    has_two_teams(write, database)
    app = enter(groups=["pay"])
    for path in PATHS:
        for name, value in {
            "month": "2026-11",
            "team": "search",
            "model": "m-foreign",
            "end_user": "u-foreign",
            "request": str(request_id(2)),
            "my_team": "search",
        }.items():
            app.query_params[name] = value
        app = _opened(app, path)
        assert not app.exception
        lines = texts(app).splitlines()  # a page names the parts of the address that it leaves out
        own = [line for line in lines if not line.startswith("**Not applied on this page")]
        found = "\n".join([*own, *(frame.value.to_csv() for frame in app.dataframe)])
        for word in ("search", "m-foreign", "u-foreign"):
            assert word not in found, (path, word)


def test_only_one_module_opens_reports() -> None:
    """A page that opened them itself would see every row."""
    folder = Path(str(dashboard.__file__)).parent
    opening = {
        path.name
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if "open_reports" in (getattr(node, name, "") for name in ("attr", "id", "name"))
    }
    assert opening == {"access.py"}


def _moment(at_s: float) -> Any:
    """Return a moment of today, in UTC."""
    return NOON.fromtimestamp(at_s, tz=NOON.tzinfo)
