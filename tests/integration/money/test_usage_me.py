"""`GET /v1/usage/me` of a real gateway: budgets as in finance's view, and the limits for the
next request.
"""

from __future__ import annotations

import json
from decimal import Decimal

from tests import plain_http
from tests.gateway_process import FakeUpstreamProcess, StartGateway
from tests.integration.money.test_gateway_budgets import account, ask, policy
from tests.waiting import eventually


def test_a_developer_sees_the_remaining_budget_before_a_refusal(
    start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """The answer has every budget of the key, equal to finance's view to the nano-dollar, and
    every limit.
    """
    team = (
        ", budgets: [{period: month, limit_usd: 0.5}, {period: day, limit_usd: 0.1, kind: soft}], "
        "limits: {requests_per_minute: 9, concurrent: 3}, "
        'keys: [{key: "*", budgets: [{period: once, limit_usd: 0.2}], limits: '
        "{tokens_per_minute: 5000}}]"
    )
    more = "cost_centres: [{name: CC-1, budgets: [{period: week, limit_usd: 7}]}]"
    gateway = start_gateway(policy(fake_upstream.url, team=team, more=more))
    answer = ask(gateway, fake="out=40")
    assert answer.status_code == 200, answer.text
    gateway.events(answer.headers["x-request-id"])
    eventually(
        lambda: not gateway.query("SELECT * FROM tollgate.leases WHERE outstanding_nusd > 0"),
        "idle money back",
    )

    headers = {"authorization": f"Bearer {gateway.key}"}
    response = plain_http.get(f"{gateway.base_url}/usage/me", headers=headers, timeout=30)

    assert response.status_code == 200, response.text
    usage = json.loads(response.text, parse_float=Decimal)
    budgets = {own["budget"]: own for own in usage["budgets"]}
    key_id = usage["key_id"]
    assert list(budgets) == [
        "cost_centre:CC-1/week",
        "payments/day",
        f"payments/key:{key_id}/once",
        "payments/month",
    ]
    for name, own in budgets.items():
        row = account(gateway, name)
        for figure in (
            "limit_usd",
            "granted_usd",
            "spent_usd",
            "held_usd",
            "leased_usd",
            "remaining_usd",
        ):
            assert Decimal(own[figure]) == row[figure], (name, figure)
        assert (own["kind"], own["period"]) == (row["kind"], row["period"])
        assert own["spent_usd"] == Decimal(answer.headers["x-tollgate-cost-usd"])
        assert name in own["grant"]
    of_team, of_key = usage["limits"]
    requests = of_team["requests_per_minute"]
    assert (of_team["limit"], requests["limit"], requests["remaining"]) == ("payments", 9, 7), (
        "the look counts too"
    )
    assert 0 < requests["reset_s"] <= 61
    assert (of_team["tokens_per_minute"], of_team["concurrent"]) == (None, {"limit": 3})
    tokens = of_key["tokens_per_minute"]
    assert of_key["limit"] == f"payments/key:{key_id}"
    assert 0 < tokens["remaining"] < tokens["limit"] == 5000

    other = plain_http.get(
        f"{gateway.base_url}/usage/me",
        headers={"authorization": f"Bearer {gateway.keys['search']}"},
        timeout=30,
    ).json()
    assert (other["budgets"], other["limits"]) == ([], [])
