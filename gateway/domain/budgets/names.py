"""Finds the budget account that an operator's text names: its full name, or an unambiguous short
form such as the team.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from gateway.domain.budgets.budgets import BudgetScope
from gateway.errors import BadUsage, NothingFound

MOST_NEAR = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedBudget:
    """A budget with its names.

    `scope`, `team` and `period` are None if its rule is no longer known.
    """

    account_id: str
    scope: str | None
    team: str | None
    period: str | None

    @property
    def shorthands(self) -> tuple[str, ...]:
        """Return the short names of a team's own budget: the team, and team and period."""
        if self.scope != BudgetScope.TEAM or self.team is None:
            return ()
        return (self.team, f"{self.team}/{self.period}")


def find_budget(wanted: str, known: Iterable[NamedBudget]) -> str:
    """Return the account that a budget's name means: the account's own name first, then an
    unambiguous short form.

    Raises `NothingFound` with similar names, `BadUsage` if several can be meant.
    """
    budgets = {budget.account_id: budget for budget in known}
    if wanted in budgets:
        return wanted
    meant = sorted(name for name, budget in budgets.items() if wanted in budget.shorthands)
    if len(meant) > 1:
        raise BadUsage(
            f"'{wanted}' can mean several budgets: {', '.join(meant)}. Name one of them."
        )
    if not meant:
        raise NothingFound(_unknown_name(wanted, budgets))
    return meant[0]


def _unknown_name(wanted: str, names: Collection[str]) -> str:
    """Return the error message for an unknown budget name, with similar known names."""
    near = get_close_matches(wanted, names, n=MOST_NEAR, cutoff=0.5)
    there = f"Near: {', '.join(near)}. " if near else ""
    return (
        f"No budget '{wanted}'. {there}tollgate budget list --all has all of them; one that a rule "
        "for each project or key keeps is there from its first request on."
    )
