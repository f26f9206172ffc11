"""The dashboard's roles in a policy document, and the role of a person by the claims of a
sign-in.
"""

from __future__ import annotations

from typing import Any

import pytest

from gateway.domain.policy.dashboard_roles import DashboardAccess, DashboardRole, DashboardRoles
from gateway.services.policy.policy_diff import changes
from gateway.wire.parsed_policy import parse
from gateway.wire.policy import effective, json_schema, to_yaml
from tests.policy.documents import EXAMPLE, findings

ROLES = (
    "dashboard: {claim: roles, finance: [finops, cfo], auditors: [audit], "
    "teams: {payments: [grp-payments, leads], search: [grp-search, leads]}}\n"
)
DECLARED = DashboardRoles(
    claim="roles",
    finance=("finops", "cfo"),
    auditors=("audit",),
    teams={"payments": ("grp-payments", "leads"), "search": ("grp-search", "leads")},
)


def test_the_roles_are_read_and_written_again() -> None:
    """The stored document gives the rights, so its meaning must survive a rewrite."""
    policy = parse(EXAMPLE + ROLES).policy
    assert policy.dashboard == DECLARED
    assert parse(to_yaml(policy)).policy == policy
    assert parse(EXAMPLE).policy.dashboard is None
    short = parse(EXAMPLE + "dashboard: {finance: [finops]}\n").policy
    assert effective(short)["dashboard"] == {
        "claim": "groups",
        "finance": ["finops"],
        "auditors": [],
        "teams": {},
    }
    assert "dashboard" in json_schema()["properties"]


@pytest.mark.parametrize(
    ("block", "field", "message"),
    [
        ("{teams: {payment: [x]}}", "dashboard.teams.payment", "did you mean 'payments'?"),
        ("{teams: {payments: [x, x]}}", "dashboard.teams.payments[1]", "x is there twice"),
        ("{teams: {payments: x}}", "dashboard.teams.payments", "must be a list"),
        ("{teams: [payments]}", "dashboard.teams", "must be a mapping"),
        ("{finance: finops}", "dashboard.finance", "must be a list"),
        ("{finance: [7]}", "dashboard.finance[0]", "must be text"),
        ("{claim: ''}", "dashboard.claim", "use 1 to 100 characters"),
        ("{claim: groups}", "dashboard", "gives no role"),
        ("{}", "dashboard", "gives no role"),
        ("{financ: [x]}", "dashboard.financ", "did you mean 'finance'?"),
    ],
)
def test_a_wrong_role_is_an_error_with_the_next_step(block: str, field: str, message: str) -> None:
    """A misspelt team would silently shut its lead out."""
    found = findings(f"{EXAMPLE}dashboard: {block}\n") or ()
    assert any(one.field == field and message in one.message for one in found), found


def test_a_changed_role_is_in_the_plan() -> None:
    """An admin confirms who sees more."""
    before, after = (
        parse(EXAMPLE + ROLES).policy,
        parse(EXAMPLE + ROLES.replace("[audit]", "[audit, all-staff]")).policy,
    )
    (change,) = changes(before, after)
    assert (change.kind, change.name) == ("dashboard", "roles")
    assert "all-staff" in change.details[0]


@pytest.mark.parametrize(
    ("claim", "role", "teams"),
    [
        (["finops"], DashboardRole.FINANCE, set()),
        ("finops", DashboardRole.FINANCE, set()),
        (["audit", "grp-search"], DashboardRole.AUDITOR, {"search"}),
        (["audit", "cfo"], DashboardRole.FINANCE, set()),
        (["grp-payments"], DashboardRole.TEAM, {"payments"}),
        (["leads", "other"], DashboardRole.TEAM, {"payments", "search"}),
    ],
)
def test_a_claim_gives_its_role(claim: Any, role: DashboardRole, teams: set[str]) -> None:
    """A person in several teams sees all of them; finance wins over the others."""
    found = DECLARED.access_of({"roles": claim})
    assert found == DashboardAccess(role=role, teams=frozenset(teams))
    assert found.sees_all == (role is not DashboardRole.TEAM)


@pytest.mark.parametrize(
    "claims",
    [
        {},
        {"groups": ["finops"]},
        {"roles": None},
        {"roles": []},
        {"roles": ["FINOPS", " finops", "fin"]},
        {"roles": "finops,audit"},
        {"roles": {"finops": True}},
        {"roles": [["finops"]]},
        {"roles": ["finops", 7]},
        {"roles": 7},
        {"roles": True},
        {"roles": b"finops"},
    ],
)
def test_a_claim_that_says_nothing_gives_no_role(claims: dict[str, Any]) -> None:
    """Another type than a text or a list of texts is no role: fail closed."""
    assert DECLARED.access_of(claims) is None
