"""The policy document that `tollgate up` applies."""

from __future__ import annotations

import pytest

from gateway.cli.up.demo_policy import TEAM, Demo, document
from gateway.domain.budgets.budgets import BudgetKind
from gateway.wire.parsed_policy import parse


@pytest.mark.parametrize("has_external", [False, True])
def test_the_demo_team_has_a_budget_that_refuses_nothing(has_external: bool) -> None:
    """The README's `tollgate budget list` and the page Budgets were empty after `make run`. A hard
    one asks Postgres before the first request, and on a busy machine the tour failed with 503.
    """
    demo = Demo(
        engine_url="http://127.0.0.1:8001",
        engine_model="tiny",
        engine_key="file:/srv/engine-key",
        context_window=4096,
        has_external=has_external,
        may_fall_back=has_external,
    )

    parsed = parse(document(demo))

    (team,) = parsed.policy.teams.values()
    assert team.name == TEAM
    assert [budget.kind for budget in team.budgets] == [BudgetKind.SOFT]
    assert parsed.notes == ()
