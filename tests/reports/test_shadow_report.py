"""Elements in shadow mode are counted and shown before they are enforced."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from gateway.domain.routing.refusal_count_key import RefusalCountKey
from gateway.reports.question import ask
from gateway.reports.reports import Reports
from gateway.storage.budgets.refusals import RefusalStore
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests.storage.factories import event

HOUR = datetime(2026, 11, 20, 12, tzinfo=UTC)
DENIED = ["residency", "is in eu, allowed is us (tag:phi/regions)"]


def decision(
    *, shadow: list[list[str]] | None = None, ranked: list[str] | None = None
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "candidates": [
            {"deployment": "gpt-eu", "obstacles": [], **({"shadow": shadow} if shadow else {})},
            {"deployment": "other", "obstacles": [], "shadow": [DENIED]},
        ]
    }
    return found | ({} if ranked is None else {"shadow_ranked": ranked})


def test_each_shadow_rule_reports_its_would_be_effect(database: Database, finance: Reports) -> None:
    """A rule of the deployment that was used, a route that would have chosen another, a limit; and
    nothing else.
    """
    Ledger(database).write(
        [
            event(1, decision=decision(shadow=[DENIED])),
            event(2, decision=decision(shadow=[DENIED])),
            event(3, decision=decision(ranked=["other", "gpt-eu"])),
            event(4, decision=decision(ranked=["gpt-eu"])),
            event(5, decision=decision(ranked=[])),
            event(6, decision=decision()),
        ]
    )
    limited = RefusalCountKey(
        HOUR, "payments", "assistant", "confidential", "shadow:rate_limited", ("payments",)
    )
    denied = RefusalCountKey(
        HOUR, "payments", "assistant", "confidential", "residency_denied", ("class:confidential",)
    )
    RefusalStore(database).write(uuid4(), {limited: 7, denied: 9})
    report = finance.run("shadow", ask(month="2026-11"))
    assert [tuple(row.values()) for row in report.records()] == [
        ("limit", "payments", "assistant", "payments", "refuse (rate_limited)", 7),
        ("route", "payments", "assistant", "assistant", "refuse, not gpt-eu", 1),
        ("route", "payments", "assistant", "assistant", "send to other, not gpt-eu", 1),
        ("rule", "payments", "assistant", "tag:phi/regions", "deny gpt-eu", 2),
    ]
    assert finance.run("shadow", ask(month="2026-10")).rows == ()
    assert (
        len(finance.run("shadow", ask(where={"team": "payments", "route": "assistant"})).rows) == 4
    )
    assert finance.run("shadow", ask(where={"team": "search"})).rows == ()
    without_limits = finance.run("shadow", ask(where={"key": "k123456789"}))
    assert [row[0] for row in without_limits.rows] == ["route", "route", "rule"]
    assert any("Limits are counted" in note for note in without_limits.notes)
