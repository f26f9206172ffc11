"""A caller's messages about a budget: the fact, the reason and the next step."""

from __future__ import annotations

from datetime import UTC, datetime

from gateway.domain.budgets import messages
from gateway.domain.budgets.budgets import Account, BudgetPeriod, BudgetRule, BudgetScope

USD = 10**9
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def account(period: BudgetPeriod) -> Account:
    rule = BudgetRule(
        rule_id=f"payments/{period}",
        scope=BudgetScope.TEAM,
        team="payments",
        owner="payments",
        period=period,
        limit_nusd=5000 * USD,
        time_zone="Europe/Berlin",
    )
    return Account(account_id=rule.rule_id, rule=rule)


def test_a_used_up_budget_names_its_figures_its_reset_and_the_way_out() -> None:
    """The message follows DESIGN, so no reader has to ask about its meaning."""
    on = account(BudgetPeriod.MONTH)
    message = messages.exhausted(
        on,
        on.rule.period_at(NOW),
        limit_nusd=5000 * USD,
        spent_nusd=4_999_620_000_000,
        held_nusd=380_000_000,
        hold_nusd=120_000_000,
    )
    assert message == (
        "Budget payments/month is used up: $5,000.00 limit, $4,999.62 spent, $0.38 held or "
        "being booked; this "
        "request may cost up to $0.12. Resets 1 Dec 00:00 Europe/Berlin. Ask an admin for: "
        "tollgate budget grant payments/month 500.00 --reason …"
    )


def test_a_budget_that_has_some_left_says_how_to_need_less() -> None:
    """The hold is an upper bound: a smaller maximum may fit."""
    on = account(BudgetPeriod.ONCE)
    message = messages.exhausted(
        on,
        on.rule.period_at(NOW),
        limit_nusd=10 * USD,
        spent_nusd=9 * USD,
        held_nusd=0,
        hold_nusd=2 * USD,
    )
    assert "has too little left" in message
    assert "A smaller max_tokens needs less. It never resets." in message


def test_unknown_and_unbounded_costs_have_clear_messages() -> None:
    """503 and 400, each with the reader's next step."""
    on = account(BudgetPeriod.DAY)
    assert "Nothing was sent. Try again shortly." in messages.away(on)
    assert "max_output_tokens or context_window" in messages.unbounded(on, "gpt-eu")
