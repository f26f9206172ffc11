"""Security F12: each invented project in a header had its own budget, and a request without the
header had none.
"""

from __future__ import annotations

from decimal import Decimal

import httpx2
import pytest

from gateway.domain.budgets.budgets import EACH
from gateway.services.snapshot.snapshot import MOST_PROJECTS
from gateway.wire.parsed_policy import parse
from tests import factories, plain_http
from tests.gateway_process import FakeUpstreamProcess, Gateway, StartGateway
from tests.integration.money.test_gateway_budgets import policy

EACH_PROJECT = '{name: "*", budgets: [{period: month, limit_usd: 0.005}]}'
PROJECTS = f", projects: [{{name: checkout}}, {EACH_PROJECT}]"


def ask(gateway: Gateway, project: str | None, *, key: str | None = None) -> httpx2.Response:
    body = {
        "model": "chat",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 100,
        "fake": "out=100",
    }
    headers = {"authorization": f"Bearer {key or gateway.keys['payments']}"}
    if project is not None:
        headers["x-tollgate-project"] = project
    return plain_http.post(
        f"{gateway.base_url}/chat/completions", json=body, headers=headers, timeout=30
    )


@pytest.fixture
def gateway(start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess) -> Gateway:
    """Return a gateway whose team has one declared project; each project has a budget of half a
    cent.
    """
    return start_gateway(policy(fake_upstream.url, team=PROJECTS))


def test_made_up_projects_are_refused(gateway: Gateway) -> None:
    """593 of 600 invented names were served, each under a fresh budget."""
    for number in range(20):
        refused = ask(gateway, f"p{number}")
        assert refused.status_code == 400, refused.text
        error = refused.json()["error"]
        assert (error["code"], error["param"]) == ("invalid_request", "x-tollgate-project")
        assert "checkout" in error["message"]
    assert ask(gateway, "*").status_code == 400
    assert gateway.query("SELECT * FROM tollgate.budget_periods") == []


@pytest.mark.parametrize("project", [None, "checkout"])
def test_every_request_counts_under_some_budget(gateway: Gateway, project: str | None) -> None:
    """Without the header there was no budget at all."""
    statuses = [ask(gateway, project).status_code for _ in range(12)]
    assert statuses.count(402) >= 6
    account = f"payments/project:{project or '*'}/month"
    (row,) = gateway.query(
        "SELECT * FROM finance.budgets WHERE account = %s AND starts_at IS NOT NULL", account
    )
    assert row["spent_usd"] <= Decimal("0.005")


def test_a_team_without_project_budgets_may_use_any_project(gateway: Gateway) -> None:
    """Without a hard project budget, a project is only a label."""
    assert ask(gateway, "anything", key=gateway.keys["search"]).status_code == 200


def findings(team: str) -> list[str]:
    return [
        note.message
        for note in parse(policy("http://127.0.0.1:1", team=team)).notes
        if "avoid" in note.message
    ]


@pytest.mark.parametrize(
    ("team", "is_found"),
    [
        (f", projects: [{EACH_PROJECT}]", True),
        (", projects: [{name: checkout, budgets: [{period: month, limit_usd: 1}]}]", True),
        (PROJECTS + ", budgets: [{period: month, limit_usd: 1, kind: soft}]", True),
        (PROJECTS + ", budgets: [{period: month, limit_usd: 1}]", False),
        (", keys: [{key: '*', budgets: [{period: month, limit_usd: 1}]}]", False),
        ("", False),
    ],
)
def test_validate_names_a_team_with_avoidable_project_budgets(team: str, is_found: bool) -> None:
    """It is a finding and no error, because such a policy may already be in force."""
    found = findings(team)
    assert len(found) == is_found
    assert all("'payments'" in message for message in found)


def test_a_declared_project_reads_back() -> None:
    """`policy show --effective` must be a valid policy: without the name, the project's requests
    would be refused.
    """
    parsed = parse(policy("http://127.0.0.1:1", team=PROJECTS)).policy
    assert parsed.teams["payments"].projects == {"checkout"}


def test_the_accounts_of_a_team_are_bounded() -> None:
    """A soft budget refuses no name, so each name would make a permanent row."""
    soft = f", projects: [{EACH_PROJECT.replace('0.005', '0.005, kind: soft')}]"
    document = parse(policy("http://127.0.0.1:1", team=soft)).policy
    snapshot = factories.snapshot(document=document)
    team = document.teams["payments"]
    accounts = {
        account.account_id
        for number in range(2 * MOST_PROJECTS)
        for account in snapshot.terms_of(team, project=f"p{number}", key_id="k", day=None).accounts
    }
    assert len(accounts) == MOST_PROJECTS + 1
    assert f"payments/project:{EACH}/month" in accounts
