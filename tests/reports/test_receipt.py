"""The receipt of one request: all attempts, every line's arithmetic, and the reasons for its
deployment.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from gateway.domain.ledger.usage_event import Outcome
from gateway.domain.money import usd_from_nusd
from gateway.domain.pricing.pricing import Line
from gateway.domain.pricing.tokens import TokenKind, TokenUsage, UsageSource
from gateway.reports.json_and_csv import receipt_to_json
from gateway.reports.receipts.attempt import AttemptReceipt
from gateway.reports.receipts.receipt import arithmetic
from gateway.reports.report import Dataset
from gateway.reports.reports import Reports
from tests.reports.conftest import Write
from tests.storage.factories import event, request_id

DECISION = {
    "objective": "priority",
    "rule": "confidential",
    "ranked": ["gpt-eu", "qwen-eu"],
    "candidates": [
        {
            "deployment": "gpt-us",
            "region": "us-east",
            "obstacles": [["residency", "is in us-east (confidential→eu)"]],
        },
        {"deployment": "qwen-eu", "region": "eu-de", "obstacles": []},
        {"deployment": "gpt-eu", "region": "eu", "obstacles": []},
    ],
}


def test_a_receipt_adds_up_line_by_line(finance: Reports, write: Write) -> None:
    """Who doubts a cost must be able to redo it: tokens times rate, line by line, to the total."""
    write(event(1))

    found = finance.receipt(request_id(1))

    assert found is not None
    (attempt,) = found.attempts
    assert (
        sum(usd_from_nusd(line.cost_nusd) for line in attempt.event.lines)
        == attempt.cost_usd
        == found.cost_usd
    )
    assert [arithmetic(line) for line in attempt.event.lines] == [
        "400 × 0.25 USD / 1,000,000 = 0.0001 USD",
        "50 × 10 USD / 1,000,000 = 0.0005 USD",
    ]


def test_a_rounded_line_says_that_it_is_rounded() -> None:
    """`=` must be true: if the nano-dollar was rounded, the receipt shows `≈`."""
    line = Line(kind=TokenKind.INPUT, tokens=1, usd_per_mtok=Decimal("0.0625"), cost_nusd=62)
    assert arithmetic(line) == "1 × 0.0625 USD / 1,000,000 ≈ 0.000000062 USD"


def test_a_receipt_shows_every_attempt_and_the_decision(finance: Reports, write: Write) -> None:
    """A retry costs too; and each deployment that was not used has its reason."""
    unknown: dict[str, Any] = {
        "usage": TokenUsage(),
        "usage_source": UsageSource.UNKNOWN,
        "lines": (),
        "cost_nusd": None,
        "held_nusd": 7,
        "outcome": Outcome.UPSTREAM_TIMEOUT,
    }
    write(
        event(1, decision=DECISION, **unknown),
        event(1, attempt=2, deployment="qwen-eu", decision=DECISION),
    )

    found = finance.receipt(request_id(1))

    assert found is not None
    assert [attempt.event.deployment for attempt in found.attempts] == ["gpt-eu", "qwen-eu"]
    assert (found.cost_usd, found.held_usd) == (Decimal("0.0006"), Decimal("0.000000007"))
    assert [(v.deployment, v.rank, v.reason) for v in found.attempts[0].verdicts] == [
        ("gpt-eu", 1, "eligible, number 1 by priority"),
        ("qwen-eu", 2, "eligible, number 2 by priority"),
        ("gpt-us", None, "left out: is in us-east (confidential→eu)"),
    ]
    sent = json.loads(receipt_to_json(found))
    assert sent["attempts"][0]["cost_usd"] is None
    assert sent["attempts"][1]["lines"][0]["arithmetic"].startswith("400 × 0.25 USD")


def test_a_receipt_names_the_dialect_of_a_translated_attempt() -> None:
    """After a failover to another dialect, the answer's oddities have their reason."""
    made = [event(1, features={"sent_as": "messages"}), event(1)]
    shown = [AttemptReceipt(event=one, price=None, adjustments=()).members() for one in made]
    assert [one["sent_as"] for one in shown] == ["messages", None]


def test_a_receipt_is_for_its_own_team_alone(finance: Reports, write: Write) -> None:
    """Another team's request must look exactly like one that does not exist."""
    write(event(1, team="payments"))
    assert finance.receipt(request_id(1), team="payments") is not None
    assert finance.receipt(request_id(1), team="research") is None
    assert finance.receipt(request_id(2), team="payments") is None
    assert finance.receipt(request_id(1), dataset=Dataset.DEMO) is None
