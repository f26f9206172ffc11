"""`policy apply` and `team show` print a team's budgets and limits."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Cli
from tests.policy.documents import ALLOWED, changed


def test_an_apply_says_which_budgets_and_limits_come_and_change(
    applied: Cli, policy_file: Path
) -> None:
    """An admin confirms money: the figures are in the question, to the last digit."""
    policy_file.write_text(ALLOWED)
    first = applied("policy", "apply", str(policy_file), "--yes").err
    assert (
        "  + budget pilot-2026\n      of: team payments, period: once, limit_usd: "
        "200.000000001, kind: hard, "
        "alert_at: [], overdraft_usd: 1\n" in first
    )
    assert "  + limits payments/key:*\n      requests_per_minute: 60\n" in first
    policy_file.write_text(changed("limit_usd: 5000", "limit_usd: 5000.01", text=ALLOWED))
    second = applied("policy", "apply", str(policy_file), "--yes").err
    assert (
        "Compared with version 2:\n  ~ budget payments/month\n      limit_usd: 5000 → "
        "5000.01\nNote: " in second
    )


def test_a_team_is_shown_with_its_budgets_and_limits(applied: Cli, policy_file: Path) -> None:
    """Those that it shares with others of its cost centre too: they refuse as well."""
    assert json.loads(applied.ok("team", "show", "payments", "--format", "json"))["budgets"] == []
    policy_file.write_text(ALLOWED)
    applied.ok("policy", "apply", str(policy_file), "--yes")
    payments = json.loads(applied.ok("team", "show", "payments", "--format", "json"))
    assert [(b["budget"], b["owner"], b["limit_usd"], b["alert_at"]) for b in payments["budgets"]][
        :2
    ] == [
        ("payments/month", "payments", 5000, [0.5, 0.8, 1]),
        ("pilot-2026", "payments", 200.000000001, []),
    ]
    assert [
        (block["scope"], block["owner"], block["concurrent"]) for block in payments["limits"]
    ] == [
        ("team", "payments", 50),
        ("project", "checkout", None),
        ("key", "*", None),
    ]
    search = applied("team", "show", "search")
    assert "cost_centre:CC-0042/month  cost_centre  CC-0042" in search.out
    assert "It has no limit." in search.err
