"""Declares every table, and the columns of every view, as the newest migration leaves them; creates
none.

Migrations never import it, because each states its own step. Tests compare the two.
"""

from __future__ import annotations

from gateway.storage.postgres.schema import (
    alerts,
    allocation,
    audit,
    budgets,
    deployments,
    ledger,
    limits,
    locks,
    other_views,
    policy,
    provider_bills,
    rollups,
    schedules,
    usage_views,
)
from gateway.storage.postgres.schema.base import finance, metadata

__all__ = [
    "alerts",
    "allocation",
    "audit",
    "budgets",
    "deployments",
    "finance",
    "ledger",
    "limits",
    "locks",
    "metadata",
    "other_views",
    "policy",
    "provider_bills",
    "rollups",
    "schedules",
    "usage_views",
]
