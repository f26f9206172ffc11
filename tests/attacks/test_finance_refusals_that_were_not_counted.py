"""402 and 429 of known keys were counted nowhere, and tests planted rows that no gateway wrote."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from gateway.domain.routing.refusal_count_key import MOST_ROWS, RefusalCountKey
from gateway.storage.budgets.refusals import RefusalStore
from gateway.storage.postgres.database import Database
from tests import plain_http
from tests.fakes import NOW
from tests.gateway_process import FakeUpstreamProcess, Gateway, StartGateway
from tests.integration.money.test_gateway_budgets import ask
from tests.integration.policy import PRICE
from tests.waiting import eventually

COUNTED = (
    "SELECT team, project, key_id, route, data_class, code, rule, requests FROM finance.refusals "
    "ORDER BY team, code, rule"
)


def document(upstream: str) -> str:
    """Return a policy whose teams are each refused for another reason."""
    return f"""\
version: 1
classes: {{internal: {{regions: [any]}}, restricted: {{regions: [eu]}}}}
deployments:
  - {{name: one, model: plain-1, provider: openai_compatible, region: unknown,
     base_url: "{upstream}/v1", price: {PRICE}}}
routes: [{{name: chat, deployments: [one]}}, {{name: other, deployments: [one]}}]
teams:
  - {{name: poor, cost_centre: CC-1, data_class: internal, routes: [chat],
     budgets: [{{period: once, limit_usd: 0.0000001}}]}}
  - {{name: slow, cost_centre: CC-1, data_class: internal, routes: [chat],
     limits: {{requests_per_minute: 1}}}}
  - {{name: secret, cost_centre: CC-1, data_class: restricted, routes: [chat]}}
  - {{name: lost, cost_centre: CC-1, data_class: internal, routes: [chat]}}
"""


@pytest.fixture
def gateway(start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess) -> Gateway:
    """Return a gateway of four teams."""
    return start_gateway(document(fake_upstream.url))


def test_every_refusal_of_a_known_key_is_counted(gateway: Gateway) -> None:
    """Finance asks how many requests a budget turned away, and whose."""
    ids = {row["team"]: row["key_id"] for row in gateway.query("SELECT * FROM finance.api_keys")}
    codes = [
        ask(gateway, team="poor"),
        ask(gateway, team="poor"),
        ask(gateway, team="slow"),
        ask(gateway, team="slow"),
        ask(gateway, team="secret"),
        ask(gateway, team="lost", model="other"),
        ask(gateway, team="lost", model="no-such-model"),
        ask(gateway, team="lost", max_tokens="many"),
    ]
    assert [answer.status_code for answer in codes] == [402, 402, 200, 429, 403, 403, 404, 400]
    gateway.tollgate("key", "pause", ids["slow"])
    eventually(lambda: ask(gateway, team="slow").status_code == 401, "the end of the pause")
    wrong = plain_http.post(
        f"{gateway.base_url}/chat/completions",
        json={},
        headers={"authorization": "Bearer tg_wrong"},
        timeout=30,
    )
    assert wrong.status_code == 401

    def counted() -> list[tuple[Any, ...]] | None:
        rows = [tuple(row.values()) for row in gateway.query(COUNTED)]
        return rows if len(rows) == 7 else None

    rows = eventually(counted, "the counts of all")
    known = [row[:-1] for row in rows]
    assert known == [
        ("lost", None, ids["lost"], None, None, "invalid_request", None),
        ("lost", None, ids["lost"], None, "internal", "model_not_found", None),
        ("lost", None, ids["lost"], "other", "internal", "route_not_allowed", None),
        ("poor", None, ids["poor"], "chat", "internal", "budget_exhausted", "poor/once"),
        (
            "secret",
            None,
            ids["secret"],
            "chat",
            "restricted",
            "residency_denied",
            "class:restricted",
        ),
        ("slow", None, ids["slow"], None, None, "invalid_api_key", None),
        ("slow", None, ids["slow"], "chat", "internal", "rate_limited", "slow"),
    ]
    by_code = {row[5]: row[7] for row in rows}
    assert by_code.pop("invalid_api_key") >= 1
    assert by_code == {
        "invalid_request": 1,
        "model_not_found": 1,
        "route_not_allowed": 1,
        "budget_exhausted": 2,
        "residency_denied": 1,
        "rate_limited": 1,
    }
    report = gateway.tollgate("report", "refusals", "--by", "team,key", "--format", "csv")
    assert f"budget_exhausted,poor,{ids['poor']},poor/once" in report


def test_many_workers_show_at_most_a_thousand_rows_of_a_team_and_hour(database: Database) -> None:
    """The neighbour: each worker keeps its own bound, and the view keeps it for all."""
    hour = NOW.replace(minute=0, second=0, microsecond=0)
    store = RefusalStore(database)
    for worker in range(3):
        store.write(
            uuid4(),
            {
                RefusalCountKey(
                    hour,
                    "payments",
                    "chat",
                    "internal",
                    "rate_limited",
                    ("payments",),
                    project=f"{worker}-{n}",
                    rule="payments",
                ): 2
                for n in range(900)
            },
        )
    with database.begin() as connection:
        rows = connection.exec_driver_sql(
            "SELECT rule, sum(requests)::bigint, count(*) FROM finance.refusals GROUP BY 1"
        ).all()
    found = {rule: (int(requests), int(count)) for rule, requests, count in rows}
    assert sum(requests for requests, _ in found.values()) == 5400
    assert sum(count for _, count in found.values()) <= MOST_ROWS
    assert found["other"][1] == 1
