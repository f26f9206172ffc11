"""Puts the parts of a policy by which reports allocate cost into a database, as an apply does, at
any moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal

from sqlalchemy import text

from gateway.domain.policy.allocation import PolicyAllocation
from gateway.domain.policy.cost_centres import CostCentreShare
from gateway.domain.policy.idle_cost import IdleRule
from gateway.storage.allocation.policy_allocation import write_allocation
from gateway.storage.postgres.database import Database

_ADD = """
INSERT INTO tollgate.policies (sha256, document, author, message, is_demo, applied_at)
VALUES ('x', 'version: 1', 'ada', '', false, :at) RETURNING version
"""
Idle = Mapping[str, tuple[IdleRule, Mapping[str, Decimal]]]


def centre(name: str, share: str = "1", start: date | None = None) -> CostCentreShare:
    """Return one cost centre's share of a team."""
    return CostCentreShare(name=name, share=Decimal(share), start=start)


def apply(
    database: Database,
    centres: Mapping[str, tuple[CostCentreShare, ...]],
    *,
    idle: Idle | None = None,
    at: datetime = datetime(2026, 11, 1, 8, tzinfo=UTC),
) -> None:
    """Apply a policy with these teams' cost centres and these deployments' idle rules."""
    with database.begin() as connection:
        version = int(connection.execute(text(_ADD), {"at": at}).scalar_one())
        allocation = PolicyAllocation(cost_centres=centres, idle=idle or {})
        write_allocation(connection, allocation, policy_version=version)
