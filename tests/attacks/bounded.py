"""A gateway in front of the permissive engine, with a hard budget for each key."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import httpx2

from tests import plain_http
from tests.attacks.permissive_engine import WINDOW, Bill, Engine
from tests.gateway_process import Gateway, StartGateway
from tests.integration.policy import PRICE
from tests.waiting import eventually

LIMIT_USD = Decimal("0.05")  # 5,000 tokens of output
PATHS = ("chat/completions", "completions", "responses", "embeddings", "messages")
OPERATIONS = "[chat, completions, responses, embeddings, messages]"


def deployments(engine: Engine) -> dict[str, str]:
    """Return each kind of upstream by the name of its route: provider, address and more fields."""
    windowed = f", context_window: {WINDOW}"
    return {
        "older": f'provider: openai_compatible, base_url: "{engine.url("max_tokens")}"',
        "newer": f'provider: openai_compatible, base_url: "{engine.url("max_completion_tokens")}"',
        "windowed": f'provider: vllm, base_url: "{engine.url("max_tokens", "window")}"{windowed}',
        "capped": f'provider: vllm, base_url: "{engine.url("max_completion_tokens")}", '
        "max_output_tokens: 100",
        "strict": f'provider: openai_compatible, base_url: "{engine.url("max_tokens", "strict")}", '
        "output_limit: max_tokens",
        "openai": f'provider: openai, base_url: "{engine.url("max_completion_tokens", "strict")}", '
        'api_key: "env:FAKE_KEY"',
    }


# Those of the other endpoints: here the engine shows that it ignores them.
LISTED = "listed: [max_tokens, max_completion_tokens, max_output_tokens]"


def policy(engine: Engine, *, team: str | None = None) -> str:
    """Return a policy with a route for each kind of upstream. By default each key has its own
    hard budget.
    """
    kinds = deployments(engine)
    budgets = f"[{{period: month, limit_usd: {LIMIT_USD}}}]"
    more = f', keys: [{{key: "*", budgets: {budgets}}}]' if team is None else team
    listed = "\n".join(
        f"  - {{name: {name}, model: m, region: unknown, price: {PRICE}, operations: "
        f"{OPERATIONS}, {LISTED}, {fields}}}"
        for name, fields in kinds.items()
    )
    routes = "\n".join(f"  - {{name: {name}, deployments: [{name}]}}" for name in kinds)
    return f"""\
version: 1
classes: {{internal: {{regions: [any]}}}}
deployments:
{listed}
routes:
{routes}
teams:
  - {{name: poor, cost_centre: CC-1, data_class: internal, routes: [{", ".join(kinds)}]{more}}}
"""


@dataclass
class Bounded:
    """A gateway with its engine and the key that sends the requests."""

    gateway: Gateway
    engine: Engine
    key: str
    unused: list[str] = field(default_factory=list)

    def provide(self, count: int) -> None:
        """Make this many keys, and wait until the gateway knows them all."""
        self.unused = [self.gateway.make_key("poor") for _ in range(count)]
        newest = {"authorization": f"Bearer {self.unused[-1]}"}
        url = f"{self.gateway.base_url}/models"
        eventually(lambda: plain_http.get(url, headers=newest).status_code == 200, "the newest key")

    def renew(self) -> None:
        """Use a new key, which has a new budget."""
        self.key = self.unused.pop()

    def post(self, path: str, body: dict[str, Any] | bytes) -> httpx2.Response:
        """Send a body unchanged."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {self.key}", "content-type": "application/json"}
        url = f"{self.gateway.base_url}/{path}"
        return plain_http.post(url, content=content, headers=headers, timeout=60)

    def event(self, answer: httpx2.Response) -> dict[str, Any]:
        """Return the only event of an answered request."""
        (event,) = self.gateway.events(answer.headers["x-request-id"])
        return event

    def spent_usd(self) -> Decimal:
        """Return the cost of the key's events, unknown ones at their hold, once they are all
        written.
        """
        (row,) = self.gateway.query(
            "SELECT coalesce(sum(coalesce(cost_usd, held_usd)), 0) AS usd FROM "
            "finance.usage_events WHERE key_id = %s",
            self.key.split("_")[1],
        )
        return Decimal(row["usd"])

    def try_one(self, path: str, body: dict[str, Any]) -> Bill | None:
        """Send one request and compare its event and its budget with the engine's ledger.

        Returns the engine's bill, or None if nothing was sent.
        """
        before = len(self.engine.bills)
        answer = self.post(path, body)
        if answer.status_code != 200:
            assert answer.status_code in (400, 402), answer.text
            assert len(self.engine.bills) == before, "refused, and sent all the same"
            return None
        (bill,) = self.engine.bills[before:]
        event = self.event(answer)
        counted = (event["input_tokens"], event["output_tokens"] or 0)
        assert counted == (bill.input_tokens, bill.output_tokens)
        assert not event["is_suspect"], f"billed more than was held: {event['features']}"
        assert self.spent_usd() <= LIMIT_USD
        return bill


def bounded(start_gateway: StartGateway, engine: Engine, *, team: str | None = None) -> Bounded:
    """Start a gateway in front of an engine."""
    gateway = start_gateway(policy(engine, team=team))
    return Bounded(gateway, engine, gateway.key)


def settled_spent(on: Bounded, account: str) -> Decimal:
    """Return a budget's spending, once it equals the sum of its events."""

    def same() -> Decimal | None:
        rows = on.gateway.query("SELECT spent_usd FROM finance.budgets WHERE account = %s", account)
        (row,) = on.gateway.query(
            "SELECT sum(coalesce(cost_usd, held_usd)) AS usd FROM finance.usage_events"
        )
        return Decimal(row["usd"]) if rows and row["usd"] == rows[0]["spent_usd"] else None

    return eventually(same, f"the books of {account}")
