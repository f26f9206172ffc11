"""Budgets for the storage tests: rules, slice requests and events of one team, and readers of
its accounts.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any
from uuid import UUID

from sqlalchemy import text

from gateway.domain.budgets.budgets import BudgetPeriod, BudgetRule, BudgetScope, Hold, SliceAsk
from gateway.domain.ledger.usage_event import UsageEvent
from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from gateway.storage.policy.policies import PolicyStore
from gateway.storage.postgres.database import Database
from tests.storage.factories import event

ACCOUNT = "payments/month"
NOVEMBER, DECEMBER = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)


def team_rule(limit_nusd: int = 1000, **changes: Any) -> BudgetRule:
    """Return a monthly budget of team payments. Another `rule_id` makes another budget."""
    values: dict[str, Any] = {
        "rule_id": ACCOUNT,
        "scope": BudgetScope.TEAM,
        "team": "payments",
        "owner": "payments",
        "period": BudgetPeriod.MONTH,
        "limit_nusd": limit_nusd,
    }
    return BudgetRule(**values | changes)


def declare(database: Database, *rules: BudgetRule, document: str | None = None) -> None:
    """Make these rules the current policy's budgets."""
    words = document or repr(rules)
    PolicyStore(database).apply(
        words,
        sha256=sha256(words.encode()).hexdigest(),
        author="ada",
        message="why",
        is_demo=False,
        expected_version=None,
        budgets=rules,
    )


def ask(turn: int, amount_nusd: int = 0, **changes: Any) -> SliceAsk:
    """Return a request for a slice of this amount or nothing."""
    values: dict[str, Any] = {
        "account_id": ACCOUNT,
        "rule_id": ACCOUNT,
        "starts_at": NOVEMBER,
        "ends_at": DECEMBER,
        "turn": turn,
        "returned_nusd": 0,
        "least_nusd": amount_nusd,
        "needed_nusd": amount_nusd,
        "most_nusd": amount_nusd,
        "held_nusd": 0,
    }
    return SliceAsk(**values | changes)


def hold(amount_nusd: int, *, account_id: str = ACCOUNT, is_overdraft: bool = False) -> Hold:
    """Return one attempt's hold on November's budget."""
    return Hold(account_id, int(NOVEMBER.timestamp()), amount_nusd, is_overdraft)


def spending(number: int, cost_nusd: int | None, *holds: Hold, **changes: Any) -> UsageEvent:
    """Return an event that is charged to budgets. Without a cost it counts at its first hold."""
    if cost_nusd is None:
        values: dict[str, Any] = {
            "usage": TokenUsage(),
            "usage_source": UsageSource.UNKNOWN,
            "held_nusd": holds[0].held_nusd,
        }
        changes = values | changes
    return event(number, cost_nusd=cost_nusd, lines=(), holds=holds, **changes)


def balance(
    database: Database, account_id: str = ACCOUNT, *, starts_at: datetime = NOVEMBER
) -> tuple[int, int]:
    """Return an account's spent and leased nano-dollars in a period, November's if none is
    named.
    """
    found = rows(
        database,
        "SELECT spent_nusd, leased_nusd FROM tollgate.budget_periods WHERE account_id = "
        f"'{account_id}' AND starts_at = '{starts_at.isoformat()}'",
    )
    return (int(found[0][0]), int(found[0][1])) if found else (0, 0)


def leases(database: Database) -> list[tuple[UUID, str, int, int]]:
    """Return the journal, account, outstanding and held amount of every lease."""
    return [
        (row[0], row[1], row[2], row[3])
        for row in rows(
            database,
            "SELECT journal_id, account_id, outstanding_nusd, held_nusd FROM tollgate.leases "
            "ORDER BY account_id, 1",
        )
    ]


def rows(database: Database, statement: str) -> Sequence[tuple[Any, ...]]:
    """Return the rows of a statement."""
    with database.begin() as connection:
        return [tuple(row) for row in connection.execute(text(statement))]
