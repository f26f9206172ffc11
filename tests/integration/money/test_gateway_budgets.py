"""Budgets, limits and keyed requests through a real gateway: the callers' messages and the
ledger.
"""

from __future__ import annotations

import json
import signal
import threading
from decimal import Decimal
from typing import Any

import httpx2
import pytest

from tests import plain_http
from tests.gateway_process import FakeUpstreamProcess, Gateway, StartGateway
from tests.integration.policy import PRICE
from tests.waiting import eventually

A_TOKEN_OUT = Decimal("0.00001")


def policy(upstream: str, *, team: str = "", deployment: str = "", more: str = "") -> str:
    """Return a policy for team payments with one route; `team` and `deployment` add fields to
    theirs.
    """
    return f"""\
version: 1
classes: {{internal: {{regions: [any]}}}}
deployments:
  - {{name: one, model: plain-1, provider: openai_compatible, region: unknown, base_url: "{upstream}/v1",
     price: {PRICE}, listed: [fake]{deployment}}}
routes: [{{name: chat, deployments: [one]}}]
teams:
  - {{name: payments, cost_centre: CC-1, data_class: internal, routes: [chat]{team}}}
  - {{name: search, cost_centre: CC-2, data_class: internal, routes: [chat]}}
{more}"""  # noqa: E501


def ask(
    gateway: Gateway, *, team: str = "payments", key: str | None = None, **members: Any
) -> httpx2.Response:
    body = {
        "model": "chat",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 100,
        **members,
    }
    headers = {"authorization": f"Bearer {gateway.keys[team]}"} | (
        {"idempotency-key": key} if key else {}
    )
    return plain_http.post(
        f"{gateway.base_url}/chat/completions", json=body, headers=headers, timeout=30
    )


def account(gateway: Gateway, name: str) -> dict[str, Any]:
    (row,) = gateway.query(
        "SELECT * FROM finance.budgets WHERE account = %s AND starts_at IS NOT NULL", name
    )
    return row


@pytest.fixture
def budgeted(start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess) -> Gateway:
    """Return a gateway whose team has a tiny monthly hard budget and a daily soft one."""
    team = (
        ", budgets: [{period: month, limit_usd: 0.01}, {period: day, limit_usd: 0.001, kind: soft}]"
    )
    return start_gateway(policy(fake_upstream.url, team=team))


def test_the_budget_shows_the_spent_amount(budgeted: Gateway) -> None:
    """The header, the event and both budgets, hard and soft, must show the same amount."""
    answer = ask(budgeted, fake="out=40")
    assert answer.status_code == 200, answer.text
    (event,) = budgeted.events(answer.headers["x-request-id"])
    hard = account(budgeted, "payments/month")
    assert hard["spent_usd"] == event["cost_usd"] == Decimal(answer.headers["x-tollgate-cost-usd"])
    assert account(budgeted, "payments/day")["spent_usd"] == event["cost_usd"]
    shown_usd = Decimal(answer.headers["x-tollgate-budget-remaining-usd"])
    assert shown_usd == hard["limit_usd"] - event["cost_usd"]
    eventually(lambda: account(budgeted, "payments/month")["leased_usd"] == 0, "idle money back")


def test_a_used_up_budget_is_a_402_with_the_next_step(budgeted: Gateway) -> None:
    """The message names limit, spent, held, reset and the admin's command. A header stops
    official SDKs from retrying.
    """
    refused = next(
        answer
        for answer in (ask(budgeted, fake="out=100") for _ in range(50))
        if answer.status_code != 200
    )
    assert refused.status_code == 402, refused.text
    error = refused.json()["error"]
    assert (error["code"], error["type"]) == ("budget_exhausted", "billing_error")
    assert "tollgate budget grant payments/month" in error["message"]
    assert refused.headers["x-should-retry"] == "false"
    assert "retry-after" not in refused.headers
    spent = eventually(
        lambda: spent if (spent := settled(budgeted) or 0) >= Decimal("0.008") else None,
        "all events",
    )
    assert spent <= Decimal("0.01")
    assert ask(budgeted, team="search").status_code == 200


def settled(gateway: Gateway) -> Decimal | None:
    """Return the budget's spending, once it equals the sum of the events."""
    (row,) = gateway.query(
        "SELECT sum(cost_usd) AS usd FROM finance.usage_events WHERE team = 'payments'"
    )
    spent = account(gateway, "payments/month")["spent_usd"]
    return Decimal(spent) if spent == row["usd"] and spent > 0 else None


def test_without_a_bound_nothing_is_sent_under_a_hard_budget(
    budgeted: Gateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """No hold could cover such a request, so the message names the field to set."""
    answer = ask(budgeted, max_tokens=None)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "max_tokens")
    sent = {entry["request_id"] for entry in fake_upstream.ledger()["entries"]}
    assert answer.headers["x-request-id"] not in sent


def test_a_route_with_a_cap_sends_it_and_holds_for_it(
    start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """If the caller gives no maximum, the cap is sent upstream, so it really bounds the answer."""
    team = ", budgets: [{period: month, limit_usd: 1}]"
    gateway = start_gateway(
        policy(fake_upstream.url, team=team, deployment=", max_output_tokens: 123")
    )
    answer = ask(gateway, max_tokens=None)
    assert answer.status_code == 200, answer.text
    assert (
        json.loads(fake_upstream.entry(answer.headers["x-request-id"])["body"])["max_tokens"] == 123
    )


def test_the_leases_of_a_killed_gateway_are_returned(
    start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """After kill -9 with leased money and a request in flight, the hold counts as unknown and
    the rest is free again.
    """
    gateway = start_gateway(
        policy(fake_upstream.url, team=", budgets: [{period: month, limit_usd: 1}]")
    )
    hanging = threading.Thread(target=lambda: _ignoring_the_end(gateway), daemon=True)
    hanging.start()
    eventually(
        lambda: gateway.query("SELECT * FROM tollgate.leases WHERE held_nusd > 0"),
        "a hold in Postgres",
    )
    gateway.stop(signal.SIGKILL)
    hanging.join()
    gateway.start()
    eventually(
        lambda: account(gateway, "payments/month")["leased_usd"] == 0, "the lease back", within_s=20
    )
    (event,) = gateway.query("SELECT * FROM finance.usage_events")
    assert (event["outcome"], event["cost_usd"]) == ("interrupted", None)
    assert account(gateway, "payments/month")["spent_usd"] == event["held_usd"]
    assert gateway.query("SELECT * FROM tollgate.budget_mistakes()") == []


def _ignoring_the_end(gateway: Gateway) -> None:
    try:
        ask(gateway, fake="hang")
    except httpx2.HTTPError:
        return


def test_limits_are_shown_in_headers_and_enforced(
    start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """Headers count down; then the caller gets 429 with a useful retry time."""
    gateway = start_gateway(policy(fake_upstream.url, team=", limits: {requests_per_minute: 5}"))
    answers = [ask(gateway) for _ in range(12)]
    codes = [answer.status_code for answer in answers]
    # While Postgres takes longer than 50 ms a worker decides by its own share: one may be too many.
    assert (codes[:5], codes[-2:]) == ([200] * 5, [429] * 2)
    left = [int(answer.headers["x-ratelimit-remaining-requests"]) for answer in answers]
    # The header has Postgres's last figure; if Postgres was slow, two requests may get the same
    # figure.
    assert left == sorted(left, reverse=True)
    assert (left[0], set(left[4:])) == (4, {0})
    refused = answers[-1]
    assert refused.json()["error"]["code"] == "rate_limited"
    assert 50 <= int(refused.headers["retry-after"]) <= 61
    assert "x-should-retry" not in refused.headers


def test_one_request_at_a_time(
    start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """The slot is taken while an answer runs and free when it has ended."""
    gateway = start_gateway(policy(fake_upstream.url, team=", limits: {concurrent: 1}"))
    headers = {"authorization": f"Bearer {gateway.key}"}
    body = {
        "model": "chat",
        "messages": [],
        "max_tokens": 50,
        "stream": True,
        "fake": "out=20,tps=10",
    }
    with plain_http.stream(
        "POST", f"{gateway.base_url}/chat/completions", json=body, headers=headers, timeout=30
    ) as first:
        assert first.status_code == 200
        refused = ask(gateway)
        assert (refused.status_code, refused.json()["error"]["code"]) == (
            429,
            "concurrency_limited",
        )
        first.read()
    assert ask(gateway).status_code == 200


def test_a_key_is_charged_once(budgeted: Gateway, fake_upstream: FakeUpstreamProcess) -> None:
    """The same request is not sent again, another request under its key is refused, and a failed
    one may be retried.
    """
    first = ask(budgeted, key="k-1", fake="out=3")
    assert first.status_code == 200, first.text
    again = eventually(
        lambda: _finished(ask(budgeted, key="k-1", fake="out=3")), "the end of the first"
    )
    assert (again.status_code, again.json()["error"]["code"]) == (409, "idempotency_conflict")
    assert again.headers["x-should-retry"] == "false"
    assert first.headers["x-request-id"] in again.json()["error"]["message"]
    other = ask(budgeted, key="k-1", fake="out=4")
    assert (other.status_code, other.json()["error"]["code"]) == (400, "idempotency_mismatch")
    assert ask(budgeted, team="search", key="k-1", fake="out=3").status_code == 200
    failed = ask(budgeted, key="k-2", fake="503")
    assert failed.status_code == 503
    retried = ask(budgeted, key="k-2", fake="503")
    assert retried.status_code == 503, "a try that cost nothing does not use the key up"
    assert (
        len(
            budgeted.query(
                "SELECT * FROM finance.usage_events WHERE team = 'payments' AND cost_usd > 0"
            )
        )
        == 1
    )


def _finished(answer: httpx2.Response) -> httpx2.Response | None:
    return None if "retry-after" in answer.headers else answer


def test_the_books_of_budgets_hold_json(budgeted: Gateway) -> None:
    """The event names its budgets, so that an auditor can add up their sums."""
    answer = ask(budgeted, fake="out=2")
    budgeted.events(answer.headers["x-request-id"])
    (row,) = budgeted.query("SELECT holds FROM tollgate.usage_events")
    names = [hold[0] for hold in row["holds"]]
    assert names == ["payments/day", "payments/month"], json.dumps(row["holds"])
