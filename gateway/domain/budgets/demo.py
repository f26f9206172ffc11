"""Holds the invented monthly budgets of the demo data's teams; no policy has them, and no gateway
keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from gateway.domain.budgets.budgets import BudgetKind


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoBudget:
    """The monthly budget of a demo team."""

    limit_usd: Decimal
    kind: BudgetKind


# By team, near the teams' monthly spending: one lasts, one is tight, one is exceeded.
DEMO_BUDGETS: Mapping[str, DemoBudget] = {
    "payments": DemoBudget(limit_usd=Decimal(90), kind=BudgetKind.HARD),
    "research": DemoBudget(limit_usd=Decimal(130), kind=BudgetKind.SOFT),
    "support": DemoBudget(limit_usd=Decimal(40), kind=BudgetKind.HARD),
    "engineering": DemoBudget(limit_usd=Decimal(110), kind=BudgetKind.SOFT),
    "marketing": DemoBudget(limit_usd=Decimal(15), kind=BudgetKind.HARD),
}
