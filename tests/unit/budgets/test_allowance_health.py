"""Readiness tells that budgets and limits are kept without Postgres, and for how long."""

from __future__ import annotations

from gateway.domain.budgets.health import allowance_checks
from gateway.domain.checks import Status


def test_with_postgres_all_is_well() -> None:
    """Nothing is to be done."""
    checks = allowance_checks(budgets_away_s=None, lease_s=900, is_alone=False)
    assert [(check.status, check.remedy) for check in checks] == [(Status.OK, ""), (Status.OK, "")]


def test_without_postgres_both_say_so_and_how_long_it_lasts() -> None:
    """An operator must see the end coming before callers do."""
    budgets, limits = allowance_checks(budgets_away_s=100, lease_s=900, is_alone=True)
    assert (budgets.status, limits.status) == (Status.WARN, Status.WARN)
    assert "for another 800 s" in budgets.finding
    over, _ = allowance_checks(budgets_away_s=1000, lease_s=900, is_alone=True)
    assert "for another 0 s" in over.finding
