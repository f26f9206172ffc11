"""Traffic past the gateway on a day without traffic of one's own: named with its money."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests.cli.conftest import Cli
from tests.invoices.generator import ACCOUNT, KEY, PROJECT, RATES, Call
from tests.invoices.ledger import event_of, policy_of

MODEL = "steady-1"
FIRST, SECOND = date(2026, 10, 5), date(2026, 10, 6)
OPTIONS = ("--provider", "openai", "--month", "2026-10", "--format", "json")


def page(days: dict[date, list[dict[str, Any]]]) -> str:
    """Return a page of OpenAI's usage or costs."""
    buckets = [
        {
            "object": "bucket",
            "start_time": (day - date(1970, 1, 1)).days * 86_400,
            "end_time": (day - date(1970, 1, 1)).days * 86_400 + 86_400,
            "results": results,
        }
        for day, results in days.items()
    ]
    return json.dumps({"object": "page", "data": buckets, "has_more": False, "next_page": None})


def usage(key: str, tokens: int) -> dict[str, Any]:
    """Return a result of usage, which names its key."""
    return {
        "object": "organization.usage.completions.result",
        "input_tokens": 0,
        "input_cached_tokens": 0,
        "output_tokens": tokens,
        "num_model_requests": 1,
        "project_id": PROJECT,
        "api_key_id": key,
        "model": MODEL,
    }


def cost(tokens: int) -> dict[str, Any]:
    """Return a result of costs, which names no key."""
    amount = Decimal(tokens * RATES[MODEL]["output"]).scaleb(-9)
    return {
        "object": "organization.costs.result",
        "amount": {"value": float(amount), "currency": "usd"},
        "line_item": f"{MODEL}, output",
        "project_id": PROJECT,
        "api_key_id": None,
    }


@pytest.mark.parametrize("has_own_traffic", [True, False], ids=["a day", "a month"])
def test_who_bypasses_the_gateway_is_unmetered_with_the_money(
    cli: Cli, database: Database, tmp_path: Path, has_own_traffic: bool
) -> None:
    """Day 2 has the foreign key alone: its money was `none`, and `show` ended with 1."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(policy_of("openai"))
    cli.ok("policy", "apply", str(policy), "--yes", "--message", "bills")
    own = 2000 if has_own_traffic else 0
    if has_own_traffic:
        at = datetime(FIRST.year, FIRST.month, FIRST.day, 12, tzinfo=UTC)
        tokens = {"input": 0, "cached": 0, "output": own}
        call = Call(model=MODEL, at=at, duration_s=1.0, tokens=tokens)
        Ledger(database).write([event_of(1, call, "openai")])
    first = [usage(KEY, own)] if own else []
    pages = {
        "openai-usage": page({FIRST: first, SECOND: [usage("key_laptop", 500)]}),
        "openai-costs": page({FIRST: [cost(own)] if own else [], SECOND: [cost(500)]}),
    }
    for kind, text in pages.items():
        path = tmp_path / kind
        path.write_text(text)
        command = ("reconcile", "import", str(path), "--provider", "openai", "--kind", kind)
        cli.ok(*command, "--account", ACCOUNT)
    shown = json.loads(cli.ok("reconcile", "show", *OPTIONS), parse_float=Decimal)
    found = [row for row in shown["rows"] if row["cause"] != "none"]
    money = Decimal(500 * RATES[MODEL]["output"]).scaleb(-9)
    assert [
        (row["day"], row["cause"], row["billed_quantity"], row["difference_usd"]) for row in found
    ] == [(SECOND.isoformat(), "unmetered", 500, money)]
    assert shown["total"]["unexplained_usd"] == 0
    booked = json.loads(
        cli.ok("reconcile", "approve", *OPTIONS, "--reason", "a laptop", "--yes"),
        parse_float=Decimal,
    )
    assert (booked["adjustments"], booked["amount_usd"]) == (1, money)
